//! Asks the witnesses. Owns their order (the daemon comes first, because it knows how to reach an apiserver) and the
//! limits of each request; draws no conclusions.

mod cgroup;
mod cluster;
mod connect;
mod daemon;
mod definition;
mod kernel;
mod routes;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nodelb_core::model::service::ServiceName;
use nodelb_kube::apiserver::one_shot;
use nodelb_report::time::Time;
use serde_json::Value;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::facts::{Dns, Facts, KernelSettings, Probe, Stored};
use super::objects::is_for_proxies;
use super::rows;
use crate::endpoints::Endpoints;
use crate::without_daemon::{OpenStoredState, StoredState};
use crate::{DiagnoseOptions, ReadPeer};

/// Returns the chains of the firewall with the policy to drop forwarded packets.
pub type ReadForwardDrops = fn() -> io::Result<Vec<String>>;

/// What `diagnose` reads besides the answers of the daemon and of an API server.
#[derive(Clone, Copy)]
pub struct Readers {
    pub peer: ReadPeer,
    pub stored: OpenStoredState,
    pub forward_drops: ReadForwardDrops,
}

/// Time limit of the resolver.
const RESOLVE: Duration = Duration::from_secs(2);

pub(super) async fn facts(
    service: &ServiceName,
    options: &DiagnoseOptions,
    endpoints: &Endpoints,
    Readers { peer, stored: open, forward_drops }: Readers,
    now: Time,
) -> Facts {
    let service = service.clone();
    let (daemon, hints) = endpoints.ask_daemon(&service, now).await;
    let cluster = match &endpoints.settings {
        None => Probe::Skipped,
        Some(settings) => match one_shot::connect(settings, &hints).await {
            Ok(connected) => Probe::Ok(Box::pin(cluster::ask(&connected, &service, &endpoints.node)).await),
            Err(error) => Probe::Failed(error.to_string()),
        },
    };
    let outside_cgroup = daemon.ok().and_then(|daemon| cgroup::outside(&daemon.cgroup));
    let mut facts = Facts {
        stored: matches!(daemon, Probe::Failed(_)).then(|| stored(&open(), &service)),
        service,
        now: now.0 / 1_000,
        node: endpoints.node.clone(),
        daemon,
        cluster,
        connect_tests: Vec::new(),
        dns: None,
        // Only root may read them.
        kernel: KernelSettings { forward_drops: forward_drops().unwrap_or_default(), ..kernel::settings() },
        outside_cgroup,
    };
    if !options.no_connect {
        facts.connect_tests = connect::all(&connect::targets(&facts), peer).await;
        if options.is_verbose() {
            facts.dns = dns(&facts, endpoints).await;
        }
    }
    facts
}

/// Without the daemon: the addresses of the service in the pinned maps, as the other commands show them.
fn stored(state: &StoredState, service: &ServiceName) -> Stored {
    let rows = |route: &str, table: &str| {
        let body = (state.answer)(&format!("{route}?service={service}")).unwrap_or_default();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        rows::of(&answer, table)
    };
    let address = |row: &Value| Some(row["address"].as_str()?.to_owned());
    Stored {
        pins: (state.find_pins)(),
        frontends: rows::typed(rows("/frontends", "frontends")),
        node_addresses: rows("/maps", "node_addresses").iter().filter_map(address).collect(),
    }
}

async fn dns(facts: &Facts, endpoints: &Endpoints) -> Option<Dns> {
    facts.kubernetes_service().filter(|service| is_for_proxies(service))?;
    let name = format!("{}.{}.svc.cluster.local", facts.service.name, facts.service.namespace);
    // The name is absolute: with a search domain that has a wildcard record, any name would resolve.
    let absolute = format!("{name}.");
    let addresses: Result<Vec<String>, String> = match timeout(RESOLVE, lookup_host((absolute.as_str(), 0))).await {
        Ok(Ok(found)) => {
            Ok(found.map(|at| at.ip().to_canonical().to_string()).collect::<BTreeSet<_>>().into_iter().collect())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {RESOLVE:?}")),
    };
    let another = endpoints.another_at(addresses.as_deref().unwrap_or_default(), &facts.service).await;
    Some(Dns { name, addresses, another })
}

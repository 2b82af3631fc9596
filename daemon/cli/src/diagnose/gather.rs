//! Asks the witnesses. Owns their order (the daemon comes first, because it knows how to reach an apiserver) and the
//! limits of each request; draws no conclusions.

mod cluster;
mod daemon;
mod dial;

use std::collections::BTreeSet;
use std::time::Duration;

use nodelb_kube::apiserver::visit::Visitor;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::facts::{Dns, Facts, Witness};
use super::objects;
use crate::DiagnoseOptions;
use crate::means::Means;

/// Time limit of the resolver.
const RESOLVE: Duration = Duration::from_secs(2);

/// Asks all witnesses. `now` is in seconds since 1970.
pub(super) async fn facts(options: &DiagnoseOptions, means: &Means, now: u64) -> Facts {
    let service = options.service.clone();
    let (daemon, tips) = means.ask_daemon(&service).await;
    let cluster = match means.settings.clone() {
        None => Witness::NotAsked,
        Some(settings) => match Visitor::new(settings, tips) {
            Ok(visitor) => match visitor.open().await {
                Ok(visit) => Witness::Spoke(Box::pin(cluster::ask(&visit, &service, &means.node)).await),
                Err(nobody) => Witness::Silent(nobody.to_string()),
            },
            Err(error) => Witness::Silent(format!("{error:#}")),
        },
    };
    let mut facts = Facts { service, now, node: means.node.clone(), daemon, cluster, dials: Vec::new(), dns: None };
    if !options.no_connect {
        facts.dials = dial::all(&dial::targets(&facts)).await;
        facts.dns = dns(&facts, means).await;
    }
    facts
}

async fn dns(facts: &Facts, means: &Means) -> Option<Dns> {
    let service = facts.cluster.told()?.service.as_ref().ok()?.as_ref()?;
    if !objects::is_for_proxies(service) {
        return None;
    }
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
    let another = means.another_at(addresses.as_deref().unwrap_or_default(), &facts.service).await;
    Some(Dns { name, addresses, another })
}

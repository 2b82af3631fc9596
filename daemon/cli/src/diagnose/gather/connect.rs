//! Connects as any process of this host would: to each backend that connections reach, and to each frontend. A protocol without
//! connections is reported as proving nothing. No data is sent.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::Service;
use nix::errno::Errno;
use nodelb_core::model::addr::Protocol;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ReadPeer;
use crate::diagnose::facts::{ConnectTest, Daemon, Facts, FrontendRow, Outcome};
use crate::diagnose::objects::{is_ready, list, spec, text};

/// Time limit of one connection.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of backends and of frontends that are tried, and how many are tried concurrently.
const MOST: usize = 64;
const AT_A_TIME: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// The address as it is shown.
    to: String,
    /// The address to connect to; `None` if no connection can be made.
    at: Option<SocketAddr>,
    is_backend: bool,
}

/// Returns the targets that the daemon has; without it, those in the pinned maps or, if there are none, those that
/// Kubernetes has.
pub(super) fn targets(facts: &Facts) -> Vec<Target> {
    let stored = facts.stored.as_ref().filter(|stored| !stored.frontends.is_empty());
    let (backends, frontends) = match (facts.daemon.ok(), stored) {
        (Some(daemon), _) => of_daemon(daemon),
        (None, Some(stored)) => {
            let reached = stored.frontends.iter().flat_map(|row| &row.backends);
            of_rows(reached, stored.frontends.iter(), &stored.node_addresses)
        }
        (None, None) => of_cluster(facts),
    };
    backends.into_iter().take(MOST).chain(frontends.into_iter().take(MOST)).collect()
}

fn of_daemon(daemon: &Daemon) -> (BTreeSet<Target>, BTreeSet<Target>) {
    let reached = daemon.frontends.iter().flat_map(|row| daemon.reached(row));
    let served = daemon.frontends.iter().filter(|row| !row.is_denied() || !row.backends.is_empty());
    of_rows(reached, served, daemon.maps.as_ref().map_or(&[], |maps| &maps.node_addresses))
}

fn of_rows<'r>(
    reached: impl Iterator<Item = &'r String>,
    served: impl Iterator<Item = &'r FrontendRow>,
    node_addresses: &[String],
) -> (BTreeSet<Target>, BTreeSet<Target>) {
    let nodes: Vec<IpAddr> = node_addresses.iter().filter_map(|it| it.parse().ok()).collect();
    let backends = reached.map(|address| target(address, true, None)).collect();
    // Other frontends for clients outside the node are served on the node, too.
    let served = served.filter(|row| !row.is_only_for_outside());
    let frontends = served.map(|row| target(&row.address, false, Some(&nodes))).collect();
    (backends, frontends)
}

fn of_cluster(facts: &Facts) -> (BTreeSet<Target>, BTreeSet<Target>) {
    let slices = facts.cluster.ok().and_then(|cluster| cluster.slices.as_ref().ok()).into_iter().flatten();
    let mut backends = BTreeSet::new();
    for slice in slices {
        let ready = list(&slice.endpoints).iter().filter(|endpoint| is_ready(endpoint));
        for address in ready.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok()) {
            let ports = list(&slice.ports).iter().filter_map(|port| Some((port.port?, text(&port.protocol))));
            backends
                .extend(ports.filter_map(|(port, protocol)| Some(target(&l4(address, port, protocol)?, true, None))));
        }
    }
    (backends, facts.kubernetes_service().map(cluster_ip).unwrap_or_default())
}

fn cluster_ip(service: &Service) -> BTreeSet<Target> {
    let Ok(address) = text(&spec(service).cluster_ip).parse::<IpAddr>() else { return BTreeSet::new() };
    let ports = list(&spec(service).ports).iter();
    ports.filter_map(|port| Some(target(&l4(address, port.port, text(&port.protocol))?, false, None))).collect()
}

fn l4(address: IpAddr, port: i32, protocol: &str) -> Option<String> {
    let at = SocketAddr::new(address, port.try_into().ok()?);
    Some(format!("{at}/{}", if protocol.is_empty() { "TCP" } else { protocol }))
}

/// Parses an address. The address of a NodePort is one of the node's.
fn target(text: &str, is_backend: bool, nodes: Option<&[IpAddr]>) -> Target {
    let parsed = text.rsplit_once('/').and_then(|(at, protocol)| Some((at.parse::<SocketAddr>().ok()?, protocol)));
    let Some((at, "TCP")) = parsed else { return Target { to: text.into(), at: None, is_backend } };
    if !at.ip().is_unspecified() {
        return Target { to: text.into(), at: Some(at), is_backend };
    }
    let node = nodes.into_iter().flatten().find(|node| node.is_ipv4() == at.is_ipv4());
    let at = node.map(|node| SocketAddr::new(*node, at.port()));
    Target { to: at.map_or_else(|| text.into(), |at| format!("{at}/TCP")), at, is_backend }
}

pub(super) async fn all(targets: &[Target], read_peer: ReadPeer) -> Vec<ConnectTest> {
    let each = stream::iter(targets.iter().cloned()).map(|target| one(target, read_peer));
    each.buffered(AT_A_TIME).collect().await
}

async fn one(Target { to, at, is_backend }: Target, read_peer: ReadPeer) -> ConnectTest {
    let Some(at) = at else { return ConnectTest { to, is_backend, outcome: Outcome::Unprovable, peer: None } };
    let begun = Instant::now();
    let mut peer = None;
    let outcome = match timeout(TIMEOUT, TcpStream::connect(at)).await {
        Ok(Ok(stream)) => {
            let accepted = Outcome::Accepted(begun.elapsed());
            let read = |source| read_peer(stream.as_fd(), source, Protocol::Tcp);
            peer = stream.local_addr().and_then(read).ok().flatten().map(|peer| peer.to_string());
            accepted
        }
        Ok(Err(error)) => {
            let why = error.raw_os_error().map_or_else(|| error.to_string(), |raw| Errno::from_raw(raw).to_string());
            Outcome::Failed(why, begun.elapsed())
        }
        Err(_elapsed) => Outcome::Failed("no answer".into(), begun.elapsed()),
    };
    ConnectTest { to, is_backend, outcome, peer }
}

#[cfg(test)]
#[path = "tests/connect.rs"]
mod tests;

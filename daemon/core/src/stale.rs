//! Stale sockets: sockets that are connected to a backend that their service no longer has, and sockets that were
//! connected to an address before it became a service's. This module contains the rule. The daemon finds the sockets
//! and closes them.
//!
//! The rule considers both the frontend and the backend of a socket, never the backend alone: a backend that one
//! service loses may belong to another, or clients may connect to it directly.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compile::select::{self, Checks};
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::service::{BackendState, FrontendKind, PortKey};
use crate::snapshot::Snapshot;
use crate::state::entries::FrontendEntry;

/// A connected socket as reported by sock_diag(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Socket {
    /// The inode number of its network namespace.
    pub netns: u32,
    /// The kernel's cookie for the socket, which is never reused.
    pub cookie: u64,
    /// The family of the socket. An IPv6 socket may be connected to an IPv4 address.
    pub family: Family,
    /// The index of the interface that it is bound to; 0 for none.
    pub ifindex: u32,
    pub source: L4Addr,
}

/// A connection through a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    pub socket: Socket,
    /// The address that the client connected to; for a NodePort the address of a node.
    pub frontend: L4Addr,
    pub backend: L4Addr,
}

/// Why a socket is stale. Of several reasons, the last one in this order leaves it the most time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// The service port of the frontend no longer has the backend.
    Backend(Arc<PortKey>),
    /// No service has the frontend any more.
    Frontend(L4Addr),
    /// The service port of the frontend has this backend, which is not ready or fails its health checks, and others that
    /// the client would reach. It may be ready again soon.
    Unready(Arc<PortKey>, L4Addr),
}

/// Why a socket that connected to the frontend and reached the backend is stale; `None` if it is not, or if that cannot
/// be determined.
///
/// A backend keeps its existing connections while its service contains it as active, terminating or drained. In any
/// state, it keeps them while new connections may use it: if it is held, or quarantined together with all others. So it does
/// while a client that connects again would reach no other backend: it would only lose the one that may be ready soon. Apart
/// from that, traffic policies and hints do not matter, as in kube-proxy.
///
/// A backend counts as removed once the source of its service has reported everything that it could read. What another
/// source has not reported, or a file that could never be read, concerns other services, and backends that the maps
/// still offer are not taken away. A frontend counts as removed only once every source has reported everything,
/// whatever one of them reports later.
pub fn stale(snapshot: &Snapshot, frontend: L4Addr, backend: L4Addr) -> Option<Stale> {
    if is_offered(snapshot, frontend, backend) {
        return None;
    }
    let mut rows = keys(snapshot, frontend).filter_map(|key| snapshot.rows.get(&key)).peekable();
    if rows.peek().is_none() {
        return (snapshot.was_pruned || snapshot.is_complete()).then_some(Stale::Frontend(frontend));
    }
    let (claim, _) = rows.find_map(|row| row.owner())?;
    let key = &claim.key;
    if !snapshot.facts.is_synced(claim.source) {
        return None;
    }
    let (service, slices) = snapshot.facts.owner(&key.service)?;
    let mut candidates = select::merge(slices.iter(), &key.port, key.protocol, key.family);
    Checks::new(service, snapshot.facts.quarantine(&service.name)).mark(&mut candidates);
    select::mark_drained(&mut candidates, snapshot.facts.drains(&service.name));
    let named = candidates.iter().find(|candidate| candidate.address(key.protocol) == backend);
    let Some(named) = named else { return Some(Stale::Backend(Arc::clone(key))) };
    let is_better_elsewhere = match named.state() {
        BackendState::Active | BackendState::Terminating | BackendState::Maintenance => false,
        BackendState::Quarantined | BackendState::NotReady => is_answered(snapshot, frontend),
    };
    is_better_elsewhere.then(|| Stale::Unready(Arc::clone(key), backend))
}

/// Whether a client on this node that connects to the frontend now gets a backend.
fn is_answered(snapshot: &Snapshot, frontend: L4Addr) -> bool {
    let entry = keys(snapshot, frontend).find_map(|key| snapshot.realised.frontends.get(&key));
    entry.is_some_and(|entry| entry.lead().is_answered(&snapshot.realised))
}

/// Whether the maps still offer the backend for new connections to the frontend, regardless of the desired state: a
/// socket that reconnects could get it again.
fn is_offered(snapshot: &Snapshot, frontend: L4Addr, backend: L4Addr) -> bool {
    let entries = keys(snapshot, frontend).filter_map(|key| snapshot.realised.frontends.get(&key));
    let mut services = entries.filter_map(|entry| snapshot.realised.services.get(&entry.service));
    services.any(|entry| entry.cluster.iter().chain(&*entry.local).any(|slot| slot.addr == backend))
}

/// The keys that the programs may have found the frontend under: its own address, or that of a NodePort. The node may
/// have lost the node address of a NodePort in the meantime.
fn keys(snapshot: &Snapshot, frontend: L4Addr) -> impl Iterator<Item = L4Addr> {
    let is_nodeport = snapshot.config.guard.nodeport_range.contains(&frontend.port);
    std::iter::once(frontend).chain(is_nodeport.then(|| frontend.wildcard()))
}

/// The UDP addresses that have a backend for a client on this node.
pub fn answered(snapshot: &Snapshot) -> Answered {
    let is_answered = |(address, entry): &(&L4Addr, &FrontendEntry)| {
        address.protocol == Protocol::Udp && entry.lead().is_answered(&snapshot.realised)
    };
    let is_cluster_ip = |address: &L4Addr| {
        let owner = snapshot.rows.get(address).and_then(|row| row.owner());
        owner.is_some_and(|(claim, _)| claim.kind == FrontendKind::ClusterIP)
    };
    let answered = snapshot.realised.frontends.iter().filter(is_answered);
    Answered(answered.map(|(address, _)| (*address, is_cluster_ip(address))).collect())
}

/// The result of [`answered`]: the addresses, each with whether it is a ClusterIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered(BTreeMap<L4Addr, bool>);

impl Answered {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ClusterIPs that were not answered before. A socket that was connected to one of them before it was answered
    /// reaches no destination, because only the service ever answers there. At any other address, another host may have
    /// answered and may still do so.
    pub fn since(&self, before: &Self) -> Vec<L4Addr> {
        let is_new = |address: &L4Addr| !before.0.contains_key(address);
        let cluster_ips = self.0.iter().filter(|(_, is_cluster_ip)| **is_cluster_ip);
        cluster_ips.map(|(address, _)| *address).filter(is_new).collect()
    }
}

#[cfg(test)]
#[path = "tests/stale.rs"]
mod tests;

//! Which connections have outlived what they were made for: sockets that still talk to a backend their service no longer
//! has, and sockets that dialled an address before it became a service's. Owns the rule; finding the sockets and ending
//! them are the daemon's.
//!
//! A socket is judged by what it dialled and whom it reached, never by the backend alone: a backend that one service
//! loses may be another's, or be talked to directly.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compile::select::{self, Checks};
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::service::{BackendState, FrontendKind, PortKey};
use crate::snapshot::Snapshot;
use crate::state::entries::FrontendEntry;
use crate::state::entries::is_answered;

/// A connected socket, as sock_diag(7) knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Socket {
    /// Inode number of its network namespace.
    pub netns: u32,
    /// The kernel's own number for it, never given twice.
    pub cookie: u64,
    /// Its family; an IPv6 socket may be connected to an IPv4 address.
    pub family: Family,
    /// The interface it is bound to; 0 for none.
    pub ifindex: u32,
    /// Its own address.
    pub source: L4Addr,
}

/// A connection through a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Whose.
    pub socket: Socket,
    /// What it dialled; a node's own address where that was a NodePort.
    pub frontend: L4Addr,
    /// Whom it is connected to.
    pub backend: L4Addr,
}

/// Why a connection has nothing to wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// The service port that has the frontend no longer has the backend.
    Backend(Arc<PortKey>),
    /// No service has the frontend any more.
    Frontend(L4Addr),
}

/// Why a socket that dialled the frontend and reached the backend should move on; `None` if all is well, or if that
/// cannot be told.
///
/// A backend may go on with the connections it has while its service names it as active, terminating or drained, and
/// whatever its state while new connections may get it: held, or quarantined like all others. Over TCP it may for
/// as long as it is named at all. Traffic policies and hints do not matter, as in kube-proxy.
///
/// A backend is gone when the source of its service has told all it could read: what another source lacks, or a file
/// that never could be read, is of other services, and what the kernel still offers for it is not taken away. A
/// frontend is gone only when every source has told all.
pub fn stale(snapshot: &Snapshot, frontend: L4Addr, backend: L4Addr) -> Option<Stale> {
    if is_offered(snapshot, frontend, backend) {
        return None;
    }
    let mut rows = keys(snapshot, frontend).filter_map(|key| snapshot.rows.get(&key)).peekable();
    if rows.peek().is_none() {
        return snapshot.is_complete().then_some(Stale::Frontend(frontend));
    }
    let (claim, _) = rows.find_map(|row| row.owner())?;
    let key = &claim.key;
    if !snapshot.facts.is_synced(claim.source) {
        return None;
    }
    let (service, slices) = snapshot.facts.owner(&key.service)?;
    let mut candidates = select::merge(slices.iter(), &key.port, key.protocol, key.family);
    Checks::of(service, snapshot.facts.quarantine(&service.name)).mark(&mut candidates);
    let named = candidates.iter().find(|candidate| candidate.address(key.protocol) == backend);
    let keeps = named.is_some_and(|candidate| match candidate.state() {
        BackendState::Active | BackendState::Terminating | BackendState::Maintenance => true,
        BackendState::Quarantined | BackendState::NotReady => key.protocol == Protocol::Tcp,
    });
    (!keeps).then(|| Stale::Backend(Arc::clone(key)))
}

/// Whether the kernel may choose the backend for a new connection to the frontend, whatever is desired: a socket that
/// moved on could come back to it.
fn is_offered(snapshot: &Snapshot, frontend: L4Addr, backend: L4Addr) -> bool {
    let entries = keys(snapshot, frontend).filter_map(|key| snapshot.realised.frontends.get(&key));
    let mut services = entries.filter_map(|entry| snapshot.realised.services.get(&entry.service));
    services.any(|entry| entry.cluster.iter().chain(&*entry.local).any(|slot| slot.addr == backend))
}

/// Under which addresses the kernel may have found the frontend: its own, or a NodePort's. The node address of a
/// NodePort may be gone by now.
fn keys(snapshot: &Snapshot, frontend: L4Addr) -> impl Iterator<Item = L4Addr> {
    let is_nodeport = snapshot.config.guard.nodeport_range.contains(&frontend.port);
    std::iter::once(frontend).chain(is_nodeport.then(|| frontend.wildcard()))
}

/// The UDP addresses that a client on this node gets a backend at.
pub fn answered(snapshot: &Snapshot) -> Answered {
    let is_answered = |(address, entry): &(&L4Addr, &FrontendEntry)| {
        address.protocol == Protocol::Udp && is_answered(&snapshot.realised, entry)
    };
    let is_cluster_ip = |address: &L4Addr| {
        let owner = snapshot.rows.get(address).and_then(|row| row.owner());
        owner.is_some_and(|(claim, _)| claim.kind == FrontendKind::ClusterIP)
    };
    let answered = snapshot.realised.frontends.iter().filter(is_answered);
    Answered(answered.map(|(address, _)| (*address, is_cluster_ip(address))).collect())
}

/// See [`answered`]. Each address with whether it is a ClusterIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered(BTreeMap<L4Addr, bool>);

impl Answered {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ClusterIPs that were not answered before: a socket connected to one of them since then goes nowhere, for nobody
    /// but its service ever answers there. At any other address somebody else may have, and still do.
    pub fn since(&self, before: &Self) -> Vec<L4Addr> {
        let is_new = |address: &L4Addr| !before.0.contains_key(address);
        let cluster_ips = self.0.iter().filter(|(_, is_cluster_ip)| **is_cluster_ip);
        cluster_ips.map(|(address, _)| *address).filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests;

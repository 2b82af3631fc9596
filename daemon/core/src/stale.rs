//! Which connections have outlived what they were made for: sockets that still talk to a backend their service no longer
//! has, and sockets that dialled an address before it became a service's. Owns the rule; finding the sockets and ending
//! them are the daemon's.
//!
//! A socket is judged by what it dialled and whom it reached, never by the backend alone: a backend that one service
//! loses may be another's, or be talked to directly.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::addr::{Family, L4Addr, Protocol};
use crate::engine::Snapshot;
use crate::select::{self, Checks};
use crate::service::{BackendState, FrontendKind, PortKey, Source};
use crate::state::{FrontendEntry, MapState, ServiceEntry};
use crate::trace::wildcard;

/// How often something has changed so that sockets may have to move on; wraps never. Only whether a number is another
/// than before means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// For UDP sockets.
    pub udp: u64,
    /// For TCP sockets.
    pub tcp: u64,
}

impl Moves {
    pub(crate) fn note(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Udp => self.udp += 1,
            Protocol::Tcp => self.tcp += 1,
            Protocol::Sctp => {}
        }
    }
}

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

impl Snapshot {
    /// Whether every source has told all it has. Before that nothing that is missing is known to be gone.
    pub fn is_complete(&self) -> bool {
        let is_told = |source: &Source| self.facts.is_synced(*source) && self.facts.incomplete(*source).is_none();
        self.config.sources.iter().all(is_told)
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
    pub fn stale(&self, frontend: L4Addr, backend: L4Addr) -> Option<Stale> {
        if self.is_offered(frontend, backend) {
            return None;
        }
        let mut rows = self.keys(frontend).filter_map(|key| self.rows.get(&key)).peekable();
        if rows.peek().is_none() {
            return self.is_complete().then_some(Stale::Frontend(frontend));
        }
        let (claim, _) = rows.find_map(|row| row.owner())?;
        let key = &claim.key;
        if !self.facts.is_synced(claim.source) {
            return None;
        }
        let (service, slices) = self.facts.owner(&key.service)?;
        let mut candidates = select::merge(slices.iter(), &key.port, key.protocol, key.family);
        Checks::of(service, &self.facts).mark(&mut candidates);
        let named = candidates.iter().find(|candidate| candidate.address(key.protocol) == backend);
        let keeps = named.is_some_and(|candidate| match candidate.state() {
            BackendState::Active | BackendState::Terminating | BackendState::Maintenance => true,
            BackendState::Quarantined | BackendState::NotReady => key.protocol == Protocol::Tcp,
        });
        (!keeps).then(|| Stale::Backend(Arc::clone(key)))
    }

    /// Whether the kernel may choose the backend for a new connection to the frontend, whatever is desired: a socket that
    /// moved on could come back to it.
    fn is_offered(&self, frontend: L4Addr, backend: L4Addr) -> bool {
        let entries = self.keys(frontend).filter_map(|key| self.realised.frontends.get(&key));
        let mut services = entries.filter_map(|entry| self.realised.services.get(&entry.service));
        services.any(|entry| entry.cluster.iter().chain(&*entry.local).any(|slot| slot.addr == backend))
    }

    /// Under which addresses the kernel may have found the frontend: its own, or a NodePort's. The node address of a
    /// NodePort may be gone by now.
    fn keys(&self, frontend: L4Addr) -> impl Iterator<Item = L4Addr> {
        let is_nodeport = self.config.guard.nodeport_range.contains(&frontend.port);
        std::iter::once(frontend).chain(is_nodeport.then(|| wildcard(frontend)))
    }

    /// The UDP addresses that a client on this node gets a backend at.
    pub fn answered(&self) -> Answered {
        let is_answered = |(address, entry): &(&L4Addr, &FrontendEntry)| {
            address.protocol == Protocol::Udp && is_answered(&self.realised, entry)
        };
        let is_cluster_ip = |address: &L4Addr| {
            let owner = self.rows.get(address).and_then(|row| row.owner());
            owner.is_some_and(|(claim, _)| claim.kind == FrontendKind::ClusterIP)
        };
        let answered = self.realised.frontends.iter().filter(is_answered);
        Answered(answered.map(|(address, _)| (*address, is_cluster_ip(address))).collect())
    }
}

/// Whether the state has a backend for a client on this node that dials the frontend.
pub(crate) fn is_answered(state: &MapState, frontend: &FrontendEntry) -> bool {
    let view = |entry: &Arc<ServiceEntry>| {
        if frontend.inside_local { !entry.local.is_empty() } else { !entry.cluster.is_empty() }
    };
    state.services.get(&frontend.service).is_some_and(view)
}

/// See [`Snapshot::answered`]. Each address with whether it is a ClusterIP.
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

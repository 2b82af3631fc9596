//! Which backends of a service port new connections may get on this node: Kubernetes' rules (`CategorizeEndpoints` in
//! kube-proxy's `topology.go`, KEP-1669, KEP-2433, KEP-3015) as one pure function. Owns no state.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::addr::{Family, L4Addr, Protocol};
use crate::change::NodeFacts;
use crate::report::Choice;
use crate::service::{Backend, BackendState, FrontendKind, Hints, Service, Slice, TrafficPolicy};

/// A backend of one service port, and the slice that says so.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// Who says so; where several do, the one whose word counts.
    pub slice: &'a Arc<Slice>,
}

impl Candidate<'_> {
    /// Where it listens, for a port of this protocol.
    pub fn address(&self, protocol: Protocol) -> L4Addr {
        L4Addr::new(self.backend.addr, self.backend.port, protocol)
    }
}

/// Most service ports have a handful of backends.
pub type Candidates<'a> = SmallVec<[Candidate<'a>; 4]>;

/// Places in a list of candidates.
pub type Places = SmallVec<[usize; 4]>;

/// The union of the slices for one service port and family: each address once, in address order. Where slices disagree
/// the best state counts (so a non-terminating entry wins), then the first slice by name.
pub fn merge<'a>(
    slices: impl Iterator<Item = &'a Arc<Slice>>,
    port: &str,
    protocol: Protocol,
    family: Family,
) -> Candidates<'a> {
    let mut merged: Candidates<'a> = SmallVec::new();
    for slice in slices {
        let named = slice.ports.iter().filter(|p| p.protocol == protocol && *p.name == *port);
        let backends = named.flat_map(|p| &p.backends).filter(|b| b.addr.family() == family);
        merged.extend(backends.map(|backend| Candidate { backend, slice }));
    }
    let address = |candidate: &Candidate<'_>| (candidate.backend.addr, candidate.backend.port);
    // Stable: of equals the first slice stays first.
    merged.sort_by_key(|candidate| (address(candidate), effective_state(candidate.backend)));
    merged.dedup_by_key(|candidate| address(candidate));
    merged
}

/// The backend's state, with a weight of 0 read as what it is: a drained backend.
pub fn effective_state(backend: &Backend) -> BackendState {
    match backend.state {
        BackendState::Active | BackendState::Terminating if backend.weight == 0 => BackendState::Maintenance,
        state => state,
    }
}

/// What [`select`] decides: indexes into the candidates, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// For clients that may go anywhere.
    pub cluster: Places,
    /// For clients that must stay on this node.
    pub local: Places,
    /// Whether the service has any usable backend, here or elsewhere.
    pub has_backends: bool,
}

/// Selects among the candidates.
///
/// The cluster view is the active backends that hints leave to this node; without an active one, every terminating
/// backend that still serves, hints ignored. The local view is the active backends on this node; without one, the
/// terminating ones on this node; hints do not apply to it.
pub fn select(candidates: &[&Backend], node: &NodeFacts) -> Selection {
    let in_state = |state: BackendState| {
        candidates.iter().enumerate().filter(move |(_, b)| effective_state(b) == state).map(|(index, _)| index)
    };
    let active: Places = in_state(BackendState::Active).collect();
    let terminating: Places = in_state(BackendState::Terminating).collect();
    let on_this_node = |indexes: &[usize]| -> Places {
        let is_local = |index: &&usize| candidates[**index].node.as_deref() == Some(&*node.name);
        indexes.iter().filter(is_local).copied().collect()
    };

    let topology = topology(&active.iter().map(|&i| candidates[i]).collect::<SmallVec<[_; 4]>>(), node);
    let cluster = if active.is_empty() {
        terminating.clone()
    } else {
        active.iter().copied().filter(|&i| topology.admits(candidates[i], node)).collect()
    };
    let mut local = on_this_node(&active);
    if local.is_empty() {
        local = on_this_node(&terminating);
    }
    let has_backends = !active.is_empty() || !terminating.is_empty();
    Selection { cluster, local, has_backends }
}

/// Why each candidate is in the cluster view, or is not.
pub fn explain(candidates: &[&Backend], node: &NodeFacts) -> Vec<Choice> {
    let selection = select(candidates, node);
    let reason = |(index, backend): (usize, &&Backend)| {
        if selection.cluster.binary_search(&index).is_ok() {
            return Choice::Selected;
        }
        match effective_state(backend) {
            BackendState::Active => Choice::NotHinted,
            BackendState::Terminating => Choice::Terminating,
            BackendState::Quarantined => Choice::Quarantined,
            BackendState::Maintenance => Choice::Maintenance,
            BackendState::NotReady => Choice::NotReady,
        }
    };
    candidates.iter().enumerate().map(reason).collect()
}

/// How hints narrow the cluster view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    SameNode,
    SameZone,
    Anywhere,
}

/// One active backend without a hint switches the filter off, and so does a hint set that leaves this node nothing:
/// both are signs that the controller has not caught up.
fn topology(active: &[&Backend], node: &NodeFacts) -> Topology {
    let all_hinted = |of: fn(&Hints) -> &Vec<Arc<str>>| {
        !active.is_empty() && active.iter().all(|b| b.hints.as_deref().is_some_and(|hints| !of(hints).is_empty()))
    };
    let any_admitted = |topology: Topology| active.iter().any(|b| topology.admits(b, node));
    if all_hinted(|hints| &hints.nodes) && any_admitted(Topology::SameNode) {
        Topology::SameNode
    } else if all_hinted(|hints| &hints.zones) && !node.zone.is_empty() && any_admitted(Topology::SameZone) {
        Topology::SameZone
    } else {
        Topology::Anywhere
    }
}

impl Topology {
    fn admits(self, backend: &Backend, node: &NodeFacts) -> bool {
        let hinted = |of: fn(&Hints) -> &Vec<Arc<str>>, name: &str| {
            backend.hints.as_deref().is_some_and(|hints| of(hints).iter().any(|hint| **hint == *name))
        };
        match self {
            Self::SameNode => hinted(|hints| &hints.nodes, &node.name),
            Self::SameZone => hinted(|hints| &hints.zones, &node.zone),
            Self::Anywhere => true,
        }
    }
}

/// Which view a client on this node gets: the local one only where the internal policy says so, and only at addresses
/// of the cluster's inside. At an external address a client on the node takes the short cut to every backend, whatever
/// the external policy: that policy keeps the source address of clients from outside, which this client is not.
pub fn is_inside_local(service: &Service, kind: FrontendKind) -> bool {
    !kind.is_external() && service.internal_policy == TrafficPolicy::Local
}

/// Which view a client from outside gets.
pub fn is_outside_local(service: &Service, kind: FrontendKind) -> bool {
    let policy = if kind == FrontendKind::ClusterIP { service.internal_policy } else { service.external_policy };
    policy == TrafficPolicy::Local
}

#[cfg(test)]
mod tests;

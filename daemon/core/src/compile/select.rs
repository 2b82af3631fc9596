//! Which backends of a service port new connections may get on this node: Kubernetes' rules (`CategorizeEndpoints` in
//! kube-proxy's `topology.go`, KEP-1669, KEP-2433, KEP-3015), and what nodelb's own checks add to them, as one pure
//! function. Owns no state.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::health_check::Quarantine;
use crate::model::node::NodeFacts;
use crate::model::service::{Backend, BackendState, FrontendKind, Hints, Service, Slice, TrafficPolicy};

/// A backend of one service port, and the slice that says so.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// Who says so; where several do, the one whose word counts.
    pub slice: &'a Arc<Slice>,
    /// With which error it failed nodelb's own checks, if it did.
    pub failure: Option<&'a Arc<str>>,
}

impl Candidate<'_> {
    /// Where it listens, for a port of this protocol.
    pub fn address(&self, protocol: Protocol) -> L4Addr {
        L4Addr::new(self.backend.addr, self.backend.port, protocol)
    }

    /// What its state amounts to: checks take a backend out that its source would use, and nothing else.
    pub fn state(&self) -> BackendState {
        match effective_state(self.backend) {
            BackendState::Active | BackendState::Terminating if self.failure.is_some() => BackendState::Quarantined,
            state => state,
        }
    }
}

/// What a service's own checks have to say about which of its backends are chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks<'a> {
    /// The backends that failed them; `None` where none did, or the service has no checks.
    pub failed: Option<&'a Quarantine>,
    /// Whether backends that failed are used where there are no others.
    pub last_resort: bool,
}

impl<'a> Checks<'a> {
    /// What is known for this service. What was found by checks that it does not have any more counts for nothing.
    pub fn of(service: &Service, quarantine: Option<&'a Quarantine>) -> Self {
        match &service.health_check {
            None => Self::default(),
            Some(check) => Self { failed: quarantine, last_resort: check.last_resort },
        }
    }

    /// Notes at each candidate whether it failed.
    pub fn mark(&self, candidates: &mut [Candidate<'a>]) {
        let Some(failed) = self.failed else { return };
        for candidate in candidates {
            candidate.failure = failed.get(&(candidate.backend.addr, candidate.backend.port));
        }
    }
}

/// Most service ports have a handful of backends.
pub type Candidates<'a> = SmallVec<[Candidate<'a>; 4]>;

/// Places in a list of candidates.
pub type Places = SmallVec<[usize; 4]>;

/// The union of the slices for one service port and family: each address once, in address order. Where slices disagree
/// the best state counts (so a non-terminating entry wins), then the first slice by name. What checks found is not in
/// it yet: it is the same whichever slice says so.
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
        merged.extend(backends.map(|backend| Candidate { backend, slice, failure: None }));
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
/// backend that still serves; without one of those either, and if `last_resort` allows it, every quarantined one. Hints
/// apply to active backends only. The local view is the same of the backends on this node, without hints.
pub fn select(candidates: &[Candidate<'_>], node: &NodeFacts, last_resort: bool) -> Selection {
    let in_state = |state: BackendState| -> Places {
        let all = candidates.iter().enumerate();
        all.filter(|(_, candidate)| candidate.state() == state).map(|(index, _)| index).collect()
    };
    let active = in_state(BackendState::Active);
    let terminating = in_state(BackendState::Terminating);
    let quarantined = if last_resort { in_state(BackendState::Quarantined) } else { Places::new() };
    let on_this_node = |indexes: &[usize]| -> Places {
        let is_local = |index: &&usize| candidates[**index].backend.node.as_deref() == Some(&*node.name);
        indexes.iter().filter(is_local).copied().collect()
    };

    let topology = topology(&active.iter().map(|&i| candidates[i].backend).collect::<SmallVec<[_; 4]>>(), node);
    let in_order = [&active, &terminating, &quarantined];
    let first = in_order.iter().find(|places| !places.is_empty());
    let cluster = match first {
        None => Places::new(),
        Some(_) if !active.is_empty() => {
            active.iter().copied().filter(|&i| topology.admits(candidates[i].backend, node)).collect()
        }
        Some(places) => Places::clone(places),
    };
    let local = in_order.iter().map(|places| on_this_node(places)).find(|places| !places.is_empty());
    Selection { cluster, local: local.unwrap_or_default(), has_backends: first.is_some() }
}

/// Whether a backend may get a new connection, and if not, the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Choice {
    /// In the cluster view.
    Selected,
    /// In the cluster view although its source has taken it away: the service leads to an apiserver.
    Held,
    /// Not ready and not serving.
    NotReady,
    /// Terminating, and an active backend exists.
    Terminating,
    /// It failed nodelb's own checks, and the service has others or does not allow it; the row's reason is the last error.
    Quarantined,
    /// Drained by the operator, or of weight 0.
    Maintenance,
    /// Hints keep the clients of this node in other zones or on other nodes.
    NotHinted,
    /// It is one of nodelb's own admin addresses, not an address a connection can reach, or an address of this host or
    /// link only that Kubernetes has no business with: the row's reason says which.
    Refused,
}

impl Choice {
    /// How they print, in the order of their definition.
    pub const NAMES: [&'static str; 8] =
        ["Selected", "Held", "NotReady", "Terminating", "Quarantined", "Maintenance", "NotHinted", "Refused"];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// Why each candidate is in the cluster view, or is not.
pub fn explain(candidates: &[Candidate<'_>], node: &NodeFacts, last_resort: bool) -> Vec<Choice> {
    let selection = select(candidates, node, last_resort);
    let reason = |(index, candidate): (usize, &Candidate<'_>)| {
        if selection.cluster.binary_search(&index).is_ok() {
            return Choice::Selected;
        }
        match candidate.state() {
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

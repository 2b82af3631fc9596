//! Selects the backends of a service port that may receive new connections on this node: the rules of Kubernetes
//! (`CategorizeEndpoints` in kube-proxy's `topology.go`, KEP-1669, KEP-2433, KEP-3015) and the results of nodelb's own
//! health checks, as one pure function without state.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::drain::{self, Drain, Drains};
use crate::model::health_check::Quarantine;
use crate::model::node::NodeFacts;
use crate::model::service::{Backend, BackendState, FrontendKind, Hints, Service, Slice, TrafficPolicy};
use crate::state::entries::MAX_VIEW_SLOTS;

/// A backend of one service port, and the slice that contains it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub backend: &'a Backend,
    /// The slice that contains the backend; if several do, the one that takes precedence.
    pub slice: &'a Arc<Slice>,
    /// The error of nodelb's own health check; `None` if the backend did not fail it.
    pub failure: Option<&'a Arc<str>>,
    pub drain: Option<&'a Drain>,
}

impl Candidate<'_> {
    /// The transport address of the backend, for a port of this protocol.
    pub fn address(&self, protocol: Protocol) -> L4Addr {
        L4Addr::new(self.backend.addr, self.backend.port, protocol)
    }

    /// The resulting state. A drain or a failed check only changes the state of a backend that its source considers
    /// usable, and a drained backend is no last resort.
    pub fn state(&self) -> BackendState {
        match self.backend.effective_state() {
            BackendState::Active | BackendState::Terminating if self.drain.is_some() => BackendState::Maintenance,
            BackendState::Active | BackendState::Terminating if self.failure.is_some() => BackendState::Quarantined,
            state => state,
        }
    }
}

/// The results of a service's own health checks, as far as they affect selection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checks<'a> {
    /// The backends that failed; `None` if none did or the service has no checks.
    pub failed: Option<&'a Quarantine>,
    /// Whether backends that failed are used if there are no others.
    pub last_resort: bool,
}

impl<'a> Checks<'a> {
    /// The results that apply to this service. Results of checks that the service no longer has are ignored.
    pub fn new(service: &Service, quarantine: Option<&'a Quarantine>) -> Self {
        match &service.health_check {
            None => Self::default(),
            Some(check) => Self { failed: quarantine, last_resort: check.last_resort },
        }
    }

    /// Records in each candidate whether it failed.
    pub fn mark(&self, candidates: &mut [Candidate<'a>]) {
        let Some(failed) = self.failed else { return };
        for candidate in candidates {
            candidate.failure = failed.get(&(candidate.backend.addr, candidate.backend.port));
        }
    }
}

/// Records in each candidate whether the operator drains it.
pub fn mark_drained<'a>(candidates: &mut [Candidate<'a>], drains: Option<&'a Drains>) {
    let Some(drains) = drains else { return };
    for candidate in candidates {
        candidate.drain = drain::find(drains, (candidate.backend.addr, candidate.backend.port));
    }
}

/// The candidates of one service port. Most service ports have only a few backends.
pub type Candidates<'a> = SmallVec<[Candidate<'a>; 4]>;

/// Indexes into a list of candidates.
pub type Indexes = SmallVec<[usize; 4]>;

/// The union of the slices for one service port and family: each address once, in address order. If slices disagree,
/// the best state takes precedence (so a non-terminating entry wins), then the first slice by name. The results of
/// health checks and drains are not included yet; they do not depend on the slice.
pub fn merge<'a>(
    slices: impl Iterator<Item = &'a Arc<Slice>>,
    port: &str,
    protocol: Protocol,
    family: Family,
) -> Candidates<'a> {
    merge_admitted(slices, port, protocol, family, |_| true)
}

/// Merges the backends that meet the condition, which must not depend on more than the address and the source.
pub(crate) fn merge_admitted<'a>(
    slices: impl Iterator<Item = &'a Arc<Slice>>,
    port: &str,
    protocol: Protocol,
    family: Family,
    mut admits: impl FnMut(&Candidate<'a>) -> bool,
) -> Candidates<'a> {
    let address = |candidate: &Candidate<'_>| (candidate.backend.addr, candidate.backend.port);
    let mut merged: Candidates<'a> = SmallVec::new();
    // Most services have one slice, and many sources sort it.
    let (mut last, mut is_ascending) = (None, true);
    for slice in slices {
        for port in slice.ports_of(port, protocol) {
            merged.reserve(port.backends.len());
            for backend in port.backends.iter().filter(|b| b.addr.family() == family) {
                let candidate = Candidate { backend, slice, failure: None, drain: None };
                if admits(&candidate) {
                    is_ascending &= last.replace(address(&candidate)).is_none_or(|last| last < address(&candidate));
                    merged.push(candidate);
                }
            }
        }
    }
    if !is_ascending {
        // The sort is stable: among equal entries the first slice stays first.
        merged.sort_by_key(|candidate| (address(candidate), candidate.backend.effective_state()));
        merged.dedup_by_key(|candidate| address(candidate));
    }
    merged
}

/// The result of [`select`]: ascending indexes into the candidates. [`MAX_VIEW_SLOTS`] is not applied yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The backends for clients that may use any node.
    pub cluster: Indexes,
    /// The backends for clients that must stay on this node.
    pub local: Indexes,
    /// Whether the service has any usable backend, on this node or elsewhere.
    pub has_backends: bool,
    /// Whether the usable backends are quarantined ones, because there are no others.
    pub is_last_resort: bool,
    /// The same of the backends on this node.
    pub is_local_last_resort: bool,
}

/// Selects among the candidates.
///
/// The cluster view contains the active backends that topology hints allow for this node. If no backend is active, it
/// contains every terminating backend that still serves. If there is none of those either, and `last_resort` allows it,
/// it contains every quarantined backend. Hints apply to active backends only. The local view follows the same rules
/// for the backends on this node, without hints.
pub fn select(candidates: &[Candidate<'_>], node: &NodeFacts, last_resort: bool) -> Selection {
    let in_order = usable(last_resort);
    let (best, topology) = rules(candidates, node, last_resort);
    let (mut cluster, mut here) = (Indexes::with_capacity(candidates.len()), Indexes::new());
    for (index, candidate) in candidates.iter().enumerate() {
        if Some(candidate.state()) == best && topology.admits(candidate.backend, node) {
            cluster.push(index);
        }
        if candidate.backend.node.as_deref() == Some(&*node.name) {
            here.push(index);
        }
    }
    let of_state = |state| here.iter().copied().filter(|index| candidates[*index].state() == state).collect();
    let local = in_order.iter().map(|state| of_state(*state)).find(|places: &Indexes| !places.is_empty());
    let local = local.unwrap_or_default();
    let is_last_resort = best == Some(BackendState::Quarantined);
    let is_local_last_resort = local.first().is_some_and(|it| candidates[*it].state() == BackendState::Quarantined);
    Selection { cluster, local, has_backends: best.is_some(), is_last_resort, is_local_last_resort }
}

/// The state of the backends in the cluster view, `None` if there are none, and how hints restrict it.
fn rules(candidates: &[Candidate<'_>], node: &NodeFacts, last_resort: bool) -> (Option<BackendState>, Topology) {
    let exists = |state: &BackendState| candidates.iter().any(|candidate| candidate.state() == *state);
    let best = usable(last_resort).iter().copied().find(exists);
    let is_active = best == Some(BackendState::Active);
    (best, if is_active { topology(candidates, node) } else { Topology::Anywhere })
}

/// The states of backends that may be selected, the best one first.
fn usable(last_resort: bool) -> &'static [BackendState] {
    let all = &[BackendState::Active, BackendState::Terminating, BackendState::Quarantined];
    if last_resort { all } else { &all[..2] }
}

/// Whether a backend may receive new connections, and if not, the reason.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display, strum::VariantNames,
)]
pub enum Choice {
    /// In the cluster view.
    Selected,
    /// In the cluster view although its source does not report it: held, or as before the start.
    Held,
    /// Meant for the cluster view, which the maps do not have yet.
    Pending,
    /// Neither ready nor serving.
    NotReady,
    /// Terminating, while an active backend exists.
    Terminating,
    /// The backend failed nodelb's own health checks, and the service has other backends or does not allow a last
    /// resort. The row's reason is the last error.
    Quarantined,
    /// Drained by the operator, or of weight 0.
    Maintenance,
    /// Topology hints send the clients of this node to other zones or nodes.
    NotHinted,
    /// The service has more backends than [`MAX_VIEW_SLOTS`], and this is none of the first ones by address.
    TooMany,
    /// The backend is one of nodelb's own admin addresses, an address that no connection can reach, or an address that
    /// is valid only on this host or link and that Kubernetes must not use. The row's reason names the case.
    Refused,
}

/// The reason for each candidate why it is or is not in the cluster view.
pub fn explain(candidates: &[Candidate<'_>], node: &NodeFacts, last_resort: bool) -> Vec<Choice> {
    let (best, topology) = rules(candidates, node, last_resort);
    let mut selected = 0;
    let reason = |candidate: &Candidate<'_>| match candidate.state() {
        state if Some(state) == best && topology.admits(candidate.backend, node) => {
            selected += 1;
            if selected <= MAX_VIEW_SLOTS { Choice::Selected } else { Choice::TooMany }
        }
        BackendState::Active => Choice::NotHinted,
        BackendState::Terminating => Choice::Terminating,
        BackendState::Quarantined => Choice::Quarantined,
        BackendState::Maintenance => Choice::Maintenance,
        BackendState::NotReady => Choice::NotReady,
    };
    candidates.iter().map(reason).collect()
}

/// How hints restrict the cluster view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    SameNode,
    SameZone,
    Anywhere,
}

/// One active backend without a hint disables the filter, and so does a set of hints that leaves no backend for this
/// node. Both indicate that the controller has not caught up yet.
fn topology(candidates: &[Candidate<'_>], node: &NodeFacts) -> Topology {
    let is_active = |candidate: &&Candidate<'_>| candidate.state() == BackendState::Active;
    let active = || candidates.iter().filter(is_active).map(|candidate| candidate.backend);
    let all_hinted = |of: fn(&Hints) -> &Vec<Arc<str>>| {
        active().all(|b| b.hints.as_deref().is_some_and(|hints| !of(hints).is_empty()))
    };
    let any_admitted = |topology: Topology| active().any(|b| topology.admits(b, node));
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

/// Whether a client on this node gets the local view. This is so only if the internal policy requires it, and only at
/// addresses inside the cluster. At an external address, a client on the node uses every backend regardless of the
/// external policy: that policy preserves the source addresses of clients outside the cluster, and this client is not
/// one of them.
pub fn is_inside_local(service: &Service, kind: FrontendKind) -> bool {
    !kind.is_external() && service.internal_policy == TrafficPolicy::Local
}

/// Whether a client from outside gets the local view.
pub fn is_outside_local(service: &Service, kind: FrontendKind) -> bool {
    let policy = if kind == FrontendKind::ClusterIP { service.internal_policy } else { service.external_policy };
    policy == TrafficPolicy::Local
}

#[cfg(test)]
#[path = "tests/select.rs"]
mod tests;

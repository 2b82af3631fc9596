//! What is checked, and its state: computes the changes for the owner task from the changes of the sources and the
//! answers of backends. Pure, so that tests can try any order of files, edits and answers.
//!
//! A target is one address that one service checks. If [`HealthCheck::port`] is set, a backend that serves several of
//! the service's ports has one target, otherwise one per port. Two services that share a backend check it separately,
//! because each has its own settings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::compile::select::effective_state;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    BackendState, FrontendKind, FrontendSpec, Service, ServiceName, Slice, SliceName, Source,
};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::owner;
use nodelb_core::table::apiservers::Apiservers;

use super::before::{Before, Known, Used};
use super::state::{Condition, HealthState};

/// Minimum time between two reports about a service if only the error text of an unhealthy backend has changed, in
/// milliseconds. Only people read the text.
const TEXT_EVERY: u64 = 5_000;

/// Identifies a target during its lifetime; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TargetId(pub(super) u64);

/// A backend of a service, as [`Quarantine`] names it.
type Backend = (Addr, u16);

#[derive(Debug, Default)]
pub(super) struct Board {
    subjects: HashMap<ServiceName, Subject, RandomState>,
    slices: HashMap<SliceKey, Listed, RandomState>,
    targets: HashMap<TargetId, (ServiceName, Backend), RandomState>,
    last_id: u64,
    before: Before,
    /// The addresses that no Kubernetes service may make this host connect to.
    guard: Guard,
    /// Services with a quarantine that may differ from the last report to the owner task.
    unreported: BTreeSet<ServiceName>,
}

type SliceKey = (Source, SliceName);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    created: u64,
    source: Source,
    check: Option<Arc<HealthCheck>>,
    ways: Arc<[Way]>,
}

/// An address by which clients' packets may reach the backends of a service port with direct return.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    /// The name of the service port.
    port: Arc<str>,
    service: L4Addr,
}

/// The ways of a service, with TCP. Source ranges may exclude this host, so there is none by addresses with ranges.
fn ways(service: &Service) -> Arc<[Way]> {
    let is_forwarded = |kind| match kind {
        FrontendKind::LoadBalancer => service.source_ranges.is_none(),
        FrontendKind::ExternalIP => true,
        FrontendKind::Static => service.is_outside,
        FrontendKind::ClusterIP | FrontendKind::NodePort => false,
    };
    let has_ways = service.forward != Forward::Translate;
    let ports = service.ports.iter().filter(|port| has_ways && port.protocol == Protocol::Tcp);
    let ways = ports.flat_map(|port| {
        let frontends = port.frontends.iter().filter(|frontend| is_forwarded(frontend.kind));
        let address = |spec: &FrontendSpec| L4Addr::new(spec.addr, spec.port, Protocol::Tcp);
        frontends.map(move |spec| Way { port: Arc::clone(&port.name), service: address(spec) })
    });
    ways.collect()
}

/// Everything that is known under one service name.
#[derive(Debug, Default)]
struct Subject {
    /// In order of precedence, as in the core's table: only the checks of the first one are made, with its own slices.
    claims: Vec<Claim>,
    /// The check that the targets were last made for.
    check_before: Option<Arc<HealthCheck>>,
    slices: BTreeSet<SliceKey>,
    /// By the address that is checked.
    targets: BTreeMap<Backend, CheckedTarget>,
    /// The last report to the owner task, and its time.
    reported: Quarantine,
    reported_at: Moment,
}

#[derive(Debug)]
struct CheckedTarget {
    id: TargetId,
    health: HealthState,
    /// The backends that the answers apply to.
    backends: Vec<Backend>,
    ways: Vec<L4Addr>,
}

/// The backends of a slice that are to be checked.
#[derive(Debug)]
struct Listed {
    service: ServiceName,
    backends: Vec<ListedBackend>,
}

#[derive(Debug)]
struct ListedBackend {
    at: Backend,
    /// The name of the service port.
    port: Arc<str>,
    is_tcp: bool,
    /// Whether new connections of clients reach it: not while it terminates.
    is_active: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// Targets to check soon: they are new, or their check has changed.
    pub(super) entered: Vec<TargetId>,
    pub(super) left: Vec<TargetId>,
}

#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) at: SocketAddr,
    pub(super) check: Arc<HealthCheck>,
    /// The address of the service and the way there, if clients' packets reach the backend unchanged.
    pub(super) way: Option<(L4Addr, Forward)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) service: ServiceName,
    /// The first of the backends that the answers apply to.
    pub(super) backend: SocketAddr,
    pub(super) failure: Option<Arc<str>>,
}

impl Board {
    /// Creates a board that remembers which backends were unhealthy, and takes those that were in the maps for healthy
    /// otherwise.
    pub(super) fn recalling(unhealthy: BTreeMap<ServiceName, Quarantine>, used: Used) -> Self {
        let mut before = Before::new(unhealthy, used);
        before.wait_for(Source::Files);
        Self { before, ..Self::default() }
    }

    /// Also checks services of Kubernetes, except at addresses that the guard refuses.
    pub(super) fn with_kubernetes(mut self, guard: Guard) -> Self {
        self.before.wait_for(Source::Kubernetes);
        Self { guard, ..self }
    }

    /// Takes a batch of a source. The caller gets the consequences for the owner task from [`Board::changes`] and
    /// must send them in the same batch.
    pub(super) fn follow(&mut self, changes: &[Change]) -> Followed {
        let (mut touched, mut synced) = (BTreeSet::new(), Vec::new());
        for change in changes {
            match change {
                Change::UpsertService(service) => self.describe(service, &mut touched),
                Change::RemoveService(name, source) => self.forget(name, *source, &mut touched),
                Change::UpsertSlice(slice) => self.list(slice, &mut touched),
                Change::RemoveSlice(name, source) => self.unlist(&(*source, name.clone()), &mut touched),
                Change::Unread(namespaces) => self.before.set_unread(namespaces),
                Change::Synced { source, incomplete } => synced.push((*source, incomplete.is_none())),
                _ => {}
            }
        }
        let mut followed = Followed::default();
        for name in touched {
            self.rebuild(&name, &mut followed);
        }
        for (source, is_complete) in synced {
            let is_sent = |(_, subject): &(&ServiceName, &Subject)| {
                let is_described = subject.claims.iter().any(|claim| claim.source == source);
                let own = subject.slices.iter().filter(|(of, _)| *of == source);
                let mut listed = own.filter_map(|key| self.slices.get(key));
                // What an incomplete source has described may still lack its backends.
                is_described && (is_complete || listed.any(|listed| !listed.backends.is_empty()))
            };
            let sent: Vec<&ServiceName> = self.subjects.iter().filter(is_sent).map(|(name, _)| name).collect();
            self.before.end(source, is_complete, &sent);
        }
        followed
    }

    fn describe(&mut self, service: &Service, touched: &mut BTreeSet<ServiceName>) {
        let subject = self.subjects.entry(service.name.clone()).or_default();
        let (created, source, check) = (service.created.unwrap_or(0), service.source, service.health_check.clone());
        let before = subject.owner().cloned();
        subject.claims.retain(|claim| claim.source != source);
        subject.claims.push(Claim { created, source, check, ways: ways(service) });
        subject.claims.sort_by_key(|claim| (claim.created, claim.source));
        if subject.owner() != before.as_ref() {
            touched.insert(service.name.clone());
        }
    }

    fn forget(&mut self, name: &ServiceName, source: Source, touched: &mut BTreeSet<ServiceName>) {
        if let Some(subject) = self.subjects.get_mut(name) {
            subject.claims.retain(|claim| claim.source != source);
            touched.insert(name.clone());
            if subject.claims.is_empty() {
                self.before.forget(name, source);
            }
        }
    }

    fn list(&mut self, slice: &Slice, touched: &mut BTreeSet<ServiceName>) {
        let key = (slice.source, slice.name.clone());
        self.unlist(&key, touched);
        let is_checked = |backend: &&nodelb_core::model::service::Backend| {
            matches!(effective_state(backend), BackendState::Active | BackendState::Terminating)
        };
        let backends = slice.ports.iter().flat_map(|port| {
            port.backends.iter().filter(is_checked).map(|backend| ListedBackend {
                at: (backend.addr, backend.port),
                port: Arc::clone(&port.name),
                is_tcp: port.protocol == Protocol::Tcp,
                is_active: effective_state(backend) == BackendState::Active,
            })
        });
        let listed = Listed { service: slice.service.clone(), backends: backends.collect() };
        self.slices.insert(key.clone(), listed);
        self.subjects.entry(slice.service.clone()).or_default().slices.insert(key);
        touched.insert(slice.service.clone());
    }

    fn unlist(&mut self, key: &SliceKey, touched: &mut BTreeSet<ServiceName>) {
        if let Some(listed) = self.slices.remove(key) {
            if let Some(subject) = self.subjects.get_mut(&listed.service) {
                subject.slices.remove(key);
            }
            touched.insert(listed.service);
        }
    }

    /// Computes the service's targets from its present description and slices. Targets that stay keep their state.
    fn rebuild(&mut self, name: &ServiceName, followed: &mut Followed) {
        let Some(subject) = self.subjects.get_mut(name) else { return };
        let before = std::mem::take(&mut subject.targets);
        let owner = subject.owner().cloned();
        let check = owner.as_ref().and_then(|owner| owner.check.clone());
        let check_before = std::mem::replace(&mut subject.check_before, check);
        if let Some(Claim { source, check: Some(check), ways, .. }) = owner {
            let method_before = check_before.as_ref().map(|check| &check.method);
            let is_new_check = method_before.is_some_and(|method| *method != check.method);
            let is_moved = check_before.is_some_and(|before| before.interval != check.interval);
            let earlier = self.before.known(name, source);
            let mut wanted = wanted(&check, &ways, (source, &subject.slices), &self.slices);
            let is_permitted = |at: &Backend| source == Source::Files || is_permitted(&self.guard, *at);
            wanted.retain(|asked, _| is_permitted(asked));
            for wanted in wanted.values_mut() {
                wanted.ways.retain(|service| is_permitted(&(service.addr, service.port)));
            }
            for (asked, Wanted { backends, ways }) in wanted {
                let known = before.get(&asked);
                let health = match known {
                    Some(known) if is_new_check => known.health.clone().undecided(),
                    Some(known) => known.health.clone(),
                    None => newcomer(&backends, &before, earlier)
                        .unwrap_or_else(|| HealthState::new(check.starts_healthy, earlier.were_used(&backends))),
                };
                // An answer to the previous check does not answer the new one, which therefore has an id of its own.
                let id = match known {
                    Some(known) if !is_new_check && !is_moved => known.id,
                    _ => {
                        self.last_id += 1;
                        let id = TargetId(self.last_id);
                        self.targets.insert(id, (name.clone(), asked));
                        followed.entered.push(id);
                        id
                    }
                };
                subject.targets.insert(asked, CheckedTarget { id, health, backends, ways });
            }
        }
        let is_kept = |asked: &Backend, id| subject.targets.get(asked).is_some_and(|target| target.id == id);
        for (_, gone) in before.iter().filter(|(asked, target)| !is_kept(asked, target.id)) {
            self.targets.remove(&gone.id);
            followed.left.push(gone.id);
        }
        self.unreported.insert(name.clone());
    }

    pub(super) fn check(&self, id: TargetId) -> Option<Arc<HealthCheck>> {
        let (name, _) = self.targets.get(&id)?;
        self.subjects.get(name)?.owner()?.check.clone()
    }

    /// Returns the check of a target; `None` if the target no longer exists. It goes the way of clients' packets if the
    /// maps have one for the service.
    pub(super) fn question(&self, id: TargetId, maps: &MapState) -> Option<Question> {
        let (name, asked) = self.targets.get(&id)?;
        let subject = self.subjects.get(name)?;
        let Claim { source, check, .. } = subject.owner()?;
        let way = subject.targets.get(asked)?.ways.iter().find_map(|service| {
            let entry = maps.services.get(&maps.outside.get(service)?.service)?;
            let tag = entry.tag.filter(|tag| tag.source == *source && tag.service == owner::hash_of(name));
            (tag.is_some() && entry.forward != Forward::Translate).then_some((*service, entry.forward))
        });
        let (addr, port) = asked;
        Some(Question { at: SocketAddr::new(addr.ip(), *port), check: check.clone()?, way })
    }

    /// Takes an answer, and returns the turn if the target has turned. An answer of a removed target is ignored.
    pub(super) fn record(&mut self, id: TargetId, answer: Result<(), Arc<str>>) -> Option<Transition> {
        let (name, asked) = self.targets.get(&id)?;
        let subject = self.subjects.get_mut(name)?;
        let check = subject.owner()?.check.clone()?;
        let target = subject.targets.get_mut(asked)?;
        let before = target.health.failure().cloned();
        let has_turned = target.health.record(answer, check.rise, check.fall);
        let failure = target.health.failure().cloned();
        if failure != before {
            self.unreported.insert(name.clone());
        }
        let (addr, port) = *target.backends.first().unwrap_or(asked);
        has_turned.then(|| Transition { service: name.clone(), backend: SocketAddr::new(addr.ip(), port), failure })
    }

    /// Returns the changes to send to the owner task now.
    pub(super) fn changes(&mut self, now: Moment) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.unreported) {
            let Some(subject) = self.subjects.get_mut(&name) else { continue };
            let quarantine = subject.quarantine();
            let is_same = quarantine.keys().eq(subject.reported.keys());
            if is_same && quarantine != subject.reported && now.0 < subject.reported_at.0.saturating_add(TEXT_EVERY) {
                self.unreported.insert(name);
                continue;
            }
            if quarantine != subject.reported {
                subject.reported.clone_from(&quarantine);
                subject.reported_at = now;
                changes.push(Change::Quarantine(name.clone(), quarantine));
            }
            if subject.is_nothing() {
                self.subjects.remove(&name);
            }
        }
        changes
    }

    pub(super) fn counts(&self) -> BTreeMap<Condition, usize> {
        let mut counts = BTreeMap::new();
        for target in self.subjects.values().flat_map(|subject| subject.targets.values()) {
            *counts.entry(target.health.condition()).or_default() += 1;
        }
        counts
    }

    /// Returns what to remember over a restart: the backends with bad answers, also those of services that the source
    /// has not sent again yet.
    pub(super) fn unhealthy(&self) -> BTreeMap<ServiceName, Quarantine> {
        let mut unhealthy = self.before.unhealthy().clone();
        for (name, subject) in &self.subjects {
            let decided = subject.targets.values().filter(|target| target.health.condition() == Condition::Unhealthy);
            let quarantine: Quarantine = decided.flat_map(CheckedTarget::failures).collect();
            if !subject.targets.is_empty() {
                unhealthy.remove(name);
            }
            if !quarantine.is_empty() {
                unhealthy.insert(name.clone(), quarantine);
            }
        }
        unhealthy
    }
}

impl Subject {
    /// The description that takes precedence.
    fn owner(&self) -> Option<&Claim> {
        self.claims.first()
    }

    /// Returns the backends that are not to be used, each with its last error.
    fn quarantine(&self) -> Quarantine {
        self.targets.values().flat_map(CheckedTarget::failures).collect()
    }

    /// Whether nothing is known under the name, and nothing was reported to the owner task.
    fn is_nothing(&self) -> bool {
        self.claims.is_empty() && self.slices.is_empty() && self.reported.is_empty()
    }
}

impl CheckedTarget {
    fn failures(&self) -> impl Iterator<Item = (Backend, Arc<str>)> {
        let failure = self.health.failure();
        self.backends.iter().filter_map(move |backend| Some((*backend, Arc::clone(failure?))))
    }
}

/// Whether a Kubernetes service may make this host connect to the address: by the same rules as for backends.
fn is_permitted(guard: &Guard, (addr, port): Backend) -> bool {
    guard.admits_backend(L4Addr::new(addr, port, Protocol::Tcp), Source::Kubernetes, &Apiservers::default())
}

/// What an address is checked for.
#[derive(Default)]
struct Wanted {
    /// The backends that the answers apply to.
    backends: Vec<Backend>,
    ways: Vec<L4Addr>,
}

/// Returns the addresses to check. Only a backend's own port is reached by clients' packets.
fn wanted(
    check: &HealthCheck,
    ways: &[Way],
    (source, keys): (Source, &BTreeSet<SliceKey>),
    slices: &HashMap<SliceKey, Listed, RandomState>,
) -> BTreeMap<Backend, Wanted> {
    let ways_to = |backend: &ListedBackend| {
        let has_ways = backend.is_tcp && backend.is_active && check.port.is_none();
        let family = backend.at.0.family();
        let is_way = move |way: &&Way| has_ways && way.port == backend.port && way.service.addr.family() == family;
        ways.iter().filter(is_way).map(|way| way.service).collect::<Vec<_>>()
    };
    let mut backends: BTreeMap<Backend, Vec<L4Addr>> = BTreeMap::new();
    let own = keys.iter().filter(|(of, _)| *of == source);
    for listed in own.filter_map(|key| slices.get(key)) {
        // The port of another protocol does not answer over TCP.
        let answers = listed.backends.iter().filter(|backend| backend.is_tcp || check.port.is_some());
        backends.extend(answers.map(|backend| (backend.at, ways_to(backend))));
    }
    let mut wanted: BTreeMap<Backend, Wanted> = BTreeMap::new();
    for ((addr, port), ways) in backends {
        let wanted = wanted.entry((addr, check.port.unwrap_or(port))).or_default();
        wanted.backends.push((addr, port));
        wanted.ways = ways;
    }
    wanted
}

/// Returns the state of a target that was not checked at this address before: that of its backends at another address,
/// or that from before nodelb was started. `None` if nothing is known.
fn newcomer(
    backends: &[Backend],
    before: &BTreeMap<Backend, CheckedTarget>,
    earlier: Known<'_>,
) -> Option<HealthState> {
    if let Some(known) = before.values().find(|target| target.backends.iter().any(|b| backends.contains(b))) {
        return Some(known.health.clone().undecided());
    }
    Some(HealthState::unhealthy(Arc::clone(earlier.error(backends)?)))
}

#[cfg(test)]
#[path = "tests/board.rs"]
mod tests;

//! What is checked, and its state: computes the results for the owner task from the facts of the table and the answers of
//! backends. Pure, so that tests can try any order of files, edits and answers.
//!
//! A target is one address that one service checks. If [`HealthCheck::port`] is set, a backend that serves several of
//! the service's ports has one target, otherwise one per port. Two services that share a backend check it separately,
//! because each has its own settings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend as Listed, BackendState, FrontendKind, FrontendSpec, Service, ServiceName, Slice, Source,
};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::owner;
use nodelb_core::state::used::Used;
use nodelb_core::table::Facts;
use nodelb_core::table::apiservers::Apiservers;

use super::state::{Condition, HealthState, LastCheck, LastChecks};

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
    /// The facts that the targets follow from.
    facts: Facts,
    subjects: HashMap<ServiceName, Subject, RandomState>,
    targets: HashMap<TargetId, (ServiceName, Backend), RandomState>,
    last_id: u64,
    /// The backends that were unhealthy when nodelb ended, of services that their source has not reported yet.
    unhealthy_before: BTreeMap<ServiceName, Quarantine>,
    /// The backends of such services that were in the maps at the start. The previous daemon checked them until a moment ago.
    used: Used,
    /// The backends that were in the maps at the start as more than a last resort.
    used_as_passed: Used,
    /// The addresses that no Kubernetes service may make this host connect to; `None` if its services are not checked.
    kubernetes: Option<Guard>,
    /// Services with results that may differ from the last report to the owner task.
    unreported: BTreeSet<ServiceName>,
    /// The last checks of the backends of the targets.
    last: LastChecks,
}

/// A service with checks, or with results that the owner task still has.
#[derive(Debug, Default)]
struct Subject {
    /// The description that the targets were made for, which has a check.
    service: Option<Arc<Service>>,
    /// By the address that is checked.
    targets: BTreeMap<Backend, CheckedTarget>,
    /// The backends that may not be checked. They count as healthy.
    spared: BTreeSet<Backend>,
    /// The last report to the owner task, and its time.
    reported: Quarantine,
    passed: BTreeSet<Backend>,
    reported_at: Moment,
}

#[derive(Debug)]
struct CheckedTarget {
    id: TargetId,
    health: HealthState,
    /// The backends that the answers apply to.
    backends: Vec<Backend>,
    /// The addresses by which clients' packets may reach the backends with direct return.
    ways: Vec<L4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entered {
    pub(super) id: TargetId,
    pub(super) service: ServiceName,
    pub(super) interval: Duration,
    is_used: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// Targets to check soon: they are new, or their check has changed. Those that the maps have in use are first.
    pub(super) entered: Vec<Entered>,
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
    /// Creates a board that takes the backends that were in the maps for healthy. Checks services of Kubernetes if there is a
    /// guard, except at addresses that the guard refuses.
    pub(super) fn new((used, used_as_passed): (Used, Used), kubernetes: Option<Guard>) -> Self {
        Self { used, used_as_passed, kubernetes, ..Self::default() }
    }

    /// Remembers which backends were unhealthy when nodelb ended, also if that is read late: what a check has found since the
    /// start is newer.
    pub(super) fn recall(&mut self, mut unhealthy: BTreeMap<ServiceName, Quarantine>) {
        // What the maps use as more than a last resort has passed its checks since they were stored.
        unhealthy.retain(|name, failed| {
            failed.retain(|backend, _| !self.used_as_passed.has_of_any(name, *backend));
            !failed.is_empty()
        });
        for (name, failed) in &unhealthy {
            let subject = self.subjects.entry(name.clone()).or_default();
            for target in subject.targets.values_mut() {
                let is_checked = |backend: &Backend| self.last.contains_key(&(name.clone(), *backend));
                let error = target.backends.iter().find_map(|backend| failed.get(backend));
                if let Some(error) = error.filter(|_| !target.backends.iter().any(is_checked)) {
                    target.health = HealthState::continued(Err(Arc::clone(error)));
                }
            }
        }
        self.unreported.extend(unhealthy.keys().cloned());
        self.unhealthy_before = unhealthy;
        self.forget_before();
    }

    /// Makes the targets that follow from these facts. The caller gets the results for the owner task from
    /// [`Board::changes`].
    pub(super) fn follow(&mut self, facts: &Facts) -> Followed {
        let mut followed = Followed::default();
        let before = std::mem::replace(&mut self.facts, facts.clone());
        if !self.subjects.is_empty() || !facts.checked.is_empty() {
            let is_subject =
                |name: &&ServiceName| facts.checked.contains_key(*name) || self.subjects.contains_key(*name);
            let touched: BTreeSet<ServiceName> = facts.reported_since(&before).filter(is_subject).cloned().collect();
            touched.into_iter().for_each(|name| self.rebuild(name, &before, &mut followed));
            followed.entered.sort_by_key(|entered| !entered.is_used);
        }
        self.forget_before();
        followed
    }

    /// Forgets what the previous run has left of services that their source has reported now, with answers for their names:
    /// whatever it reports later is new. What is left then belongs to services or backends that no longer exist.
    fn forget_before(&mut self) {
        let Self { facts, subjects, unhealthy_before, used, kubernetes, unreported, .. } = self;
        if unhealthy_before.is_empty() && used.is_empty() {
            return;
        }
        let mut reported = BTreeSet::new();
        for (name, subject) in subjects.iter().filter(|(_, subject)| !subject.targets.is_empty()) {
            let is_known = |service: &&Arc<Service>| facts.is_synced(service.source) && !facts.awaits_names(name);
            if let Some(service) = subject.service.as_ref().filter(is_known) {
                reported.insert(name);
                used.forget(name, service.source);
            }
        }
        let sources = || std::iter::once(Source::Files).chain(kubernetes.as_ref().map(|_| Source::Kubernetes));
        let waiting: BTreeSet<u32> =
            facts.checked.keys().filter(|name| facts.awaits_names(name)).map(owner::hash_of).collect();
        used.retain(|source, name| {
            !facts.is_synced(source) || facts.incomplete(source).is_some() || waiting.contains(&name)
        });
        unhealthy_before.retain(|name, _| {
            let waits = sources().any(|source| !facts.is_known(source, name)) && !reported.contains(name);
            if !waits {
                unreported.insert(name.clone());
            }
            waits
        });
    }

    /// Computes the service's targets from its present description and slices. Targets that stay keep their state.
    fn rebuild(&mut self, name: ServiceName, facts_before: &Facts, followed: &mut Followed) {
        let facts = self.facts.clone();
        let is_checked = |(service, _): &(&Arc<Service>, _)| {
            service.health_check.is_some() && (service.source == Source::Files || self.kubernetes.is_some())
        };
        let owner = facts.owner(&name).filter(is_checked);
        let subject = self.subjects.entry(name.clone()).or_default();
        let before = std::mem::take(&mut subject.targets);
        let service_before = std::mem::replace(&mut subject.service, owner.map(|(service, _)| Arc::clone(service)));
        subject.spared.clear();
        if let (None, Some(gone)) = (owner, &service_before) {
            self.unhealthy_before.remove(&name);
            self.used.forget(&name, gone.source);
        }
        if let Some((service, slices)) = owner
            && let Some(check) = &service.health_check
        {
            let check_before = service_before.and_then(|service| service.health_check.clone());
            let is_new_check = check_before.as_ref().is_some_and(|before| before.method != check.method);
            let is_moved = check_before.is_some_and(|before| before.interval != check.interval);
            let guard = self.kubernetes.as_ref().filter(|_| service.source == Source::Kubernetes);
            for (asked, Wanted { backends, mut ways }) in wanted(service, check, slices) {
                if !is_permitted(guard, asked) {
                    subject.spared.extend(backends);
                    continue;
                }
                ways.retain(|service| is_permitted(guard, (service.addr, service.port)));
                let known = before.get(&asked);
                let is_used = || backends.iter().any(|backend| self.used.has(&name, service.source, *backend));
                let health = match known {
                    Some(known) if is_new_check => known.health.clone().undecided(),
                    Some(known) => known.health.clone(),
                    None => {
                        let is_late = facts_before.is_known(service.source, &name);
                        let earlier = self.unhealthy_before.get(&name).filter(|_| !is_late);
                        newcomer(&backends, &before, earlier, is_used())
                    }
                };
                // An answer to the previous check does not answer the new one, which therefore has an id of its own.
                let id = match known {
                    Some(known) if !is_new_check && !is_moved => known.id,
                    _ => {
                        self.last_id += 1;
                        let id = TargetId(self.last_id);
                        self.targets.insert(id, (name.clone(), asked));
                        let (service, interval) = (name.clone(), check.interval);
                        followed.entered.push(Entered { id, service, interval, is_used: is_used() });
                        id
                    }
                };
                subject.targets.insert(asked, CheckedTarget { id, health, backends, ways });
            }
        }
        let is_kept = |asked: &Backend, id| subject.targets.get(asked).is_some_and(|target| target.id == id);
        for (_, gone) in before.iter().filter(|(asked, target)| !is_kept(asked, target.id)) {
            self.targets.remove(&gone.id);
            for backend in &gone.backends {
                self.last.remove(&(name.clone(), *backend));
            }
            followed.left.push(gone.id);
        }
        self.unreported.insert(name);
    }

    pub(super) fn check(&self, id: TargetId) -> Option<Arc<HealthCheck>> {
        let (name, _) = self.targets.get(&id)?;
        self.subjects.get(name)?.service.as_ref()?.health_check.clone()
    }

    /// Returns the check of a target; `None` if the target no longer exists. It goes the way of clients' packets if the
    /// maps have one for the service.
    pub(super) fn question(&self, id: TargetId, maps: &MapState) -> Option<Question> {
        let (name, asked) = self.targets.get(&id)?;
        let subject = self.subjects.get(name)?;
        let service = subject.service.as_ref()?;
        let way = subject.targets.get(asked)?.ways.iter().find_map(|address| {
            let entry = maps.services.get(&maps.outside.get(address)?.service)?;
            let tag = entry.tag.filter(|tag| tag.source == service.source && tag.service == owner::hash_of(name));
            (tag.is_some() && entry.forward != Forward::Translate).then_some((*address, entry.forward))
        });
        let (addr, port) = asked;
        Some(Question { at: SocketAddr::new(addr.ip(), *port), check: service.health_check.clone()?, way })
    }

    /// Takes an answer, and returns the turn if the target has turned. An answer of a removed target is ignored.
    pub(super) fn record(&mut self, id: TargetId, answer: Result<(), Arc<str>>) -> Option<Transition> {
        let check = self.check(id)?;
        let (name, asked) = self.targets.get(&id)?;
        let target = self.subjects.get_mut(name)?.targets.get_mut(asked)?;
        let before = target.health.verdict().cloned();
        let has_turned = target.health.record(answer, &check);
        let verdict = target.health.verdict().cloned();
        if verdict != before {
            self.unreported.insert(name.clone());
        }
        let (addr, port) = *target.backends.first().unwrap_or(asked);
        let failure = verdict.and_then(Result::err);
        has_turned.then(|| Transition { service: name.clone(), backend: SocketAddr::new(addr.ip(), port), failure })
    }

    /// Notes the end of a check. One of a removed target is ignored.
    pub(super) fn note(&mut self, id: TargetId, last: LastCheck) {
        let Some((name, asked)) = self.targets.get(&id) else { return };
        let target = self.subjects.get(name).and_then(|subject| subject.targets.get(asked));
        let backends = target.into_iter().flat_map(|target| &target.backends);
        for backend in backends {
            self.last.insert((name.clone(), *backend), last);
        }
    }

    pub(super) fn last(&self) -> LastChecks {
        self.last.clone()
    }

    /// Whether there may be results that the owner task does not have yet.
    pub(super) fn has_results(&self) -> bool {
        !self.unreported.is_empty()
    }

    /// Returns the changes to send to the owner task now.
    pub(super) fn changes(&mut self, now: Moment) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.unreported) {
            let Some(subject) = self.subjects.get_mut(&name) else { continue };
            let (mut quarantine, passed) = subject.results();
            if let Some(earlier) = self.unhealthy_before.get_mut(&name) {
                earlier.retain(|backend, _| !passed.contains(backend));
            }
            // The backends that its source has not reported yet.
            let is_known = |service: &Arc<Service>| self.facts.is_known(service.source, &name);
            let earlier = self.unhealthy_before.get(&name).filter(|_| !subject.service.as_ref().is_some_and(is_known));
            for (backend, error) in earlier.into_iter().flatten() {
                quarantine.entry(*backend).or_insert_with(|| Arc::clone(error));
            }
            let is_same = quarantine.keys().eq(subject.reported.keys()) && passed == subject.passed;
            if is_same && quarantine != subject.reported && now.0 < subject.reported_at.0.saturating_add(TEXT_EVERY) {
                self.unreported.insert(name);
                continue;
            }
            if passed != subject.passed {
                subject.passed.clone_from(&passed);
                changes.push(Change::Passed(name.clone(), passed));
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
    /// has not reported again yet.
    pub(super) fn unhealthy(&self) -> BTreeMap<ServiceName, Quarantine> {
        let mut unhealthy = self.unhealthy_before.clone();
        for (name, subject) in &self.subjects {
            let decided = subject.targets.values().filter(|target| target.health.condition() == Condition::Unhealthy);
            let failures =
                decided.flat_map(CheckedTarget::verdicts).filter_map(|(at, verdict)| Some((at, verdict.err()?)));
            let mut quarantine = unhealthy.remove(name).unwrap_or_default();
            let checked: BTreeSet<Backend> =
                subject.targets.values().flat_map(|target| target.backends.iter().copied()).collect();
            quarantine.retain(|backend, _| !checked.contains(backend));
            quarantine.extend(failures);
            if !quarantine.is_empty() {
                unhealthy.insert(name.clone(), quarantine);
            }
        }
        unhealthy
    }
}

impl Subject {
    /// Returns the backends that have failed, each with its last error, and those that have passed.
    fn results(&self) -> (Quarantine, BTreeSet<Backend>) {
        let (mut failed, mut passed) = (Quarantine::new(), self.spared.clone());
        for (backend, verdict) in self.targets.values().flat_map(CheckedTarget::verdicts) {
            match verdict {
                Ok(()) => drop(passed.insert(backend)),
                Err(error) => drop(failed.insert(backend, error)),
            }
        }
        (failed, passed)
    }

    /// Whether nothing is checked, and the owner task has no results.
    fn is_nothing(&self) -> bool {
        self.service.is_none() && self.reported.is_empty() && self.passed.is_empty()
    }
}

impl CheckedTarget {
    /// The backends with the last answer that counts, if there was one.
    fn verdicts(&self) -> impl Iterator<Item = (Backend, Result<(), Arc<str>>)> {
        let verdict = self.health.verdict();
        self.backends.iter().filter_map(move |backend| Some((*backend, verdict?.clone())))
    }
}

/// Whether a service may make this host connect to the address: by the same rules as for backends.
fn is_permitted(guard: Option<&Guard>, (addr, port): Backend) -> bool {
    let address = L4Addr::new(addr, port, Protocol::Tcp);
    guard.is_none_or(|guard| guard.admits_backend(address, Source::Kubernetes, &Apiservers::default()))
}

/// What an address is checked for.
#[derive(Default)]
struct Wanted {
    /// The backends that the answers apply to.
    backends: Vec<Backend>,
    ways: Vec<L4Addr>,
}

/// Returns the addresses to check. Only a backend's own port is reached by clients' packets.
fn wanted(service: &Service, check: &HealthCheck, slices: &[Arc<Slice>]) -> BTreeMap<Backend, Wanted> {
    let mut backends: BTreeMap<Backend, Vec<L4Addr>> = BTreeMap::new();
    for port in slices.iter().flat_map(|slice| &slice.ports) {
        let ways_to = |backend: &Listed| {
            let has_ways = port.protocol == Protocol::Tcp && check.port.is_none();
            let has_ways = has_ways && backend.effective_state() == BackendState::Active;
            let family = backend.addr.family();
            let all = has_ways.then(|| ways(service, &port.name)).into_iter().flatten();
            all.filter(|way| way.addr.family() == family).collect()
        };
        let asked = port.backends.iter().filter(|backend| backend.is_checked(check, port.protocol));
        backends.extend(asked.map(|backend| ((backend.addr, backend.port), ways_to(backend))));
    }
    let mut wanted: BTreeMap<Backend, Wanted> = BTreeMap::new();
    for ((addr, port), ways) in backends {
        let wanted = wanted.entry((addr, check.port.unwrap_or(port))).or_default();
        wanted.backends.push((addr, port));
        wanted.ways = ways;
    }
    wanted
}

/// The addresses by which clients' packets may reach the backends of the service port with direct return, with TCP. Source
/// ranges may exclude this host, so there is none by addresses with ranges.
fn ways(service: &Service, name: &str) -> Vec<L4Addr> {
    let is_forwarded = |kind| match kind {
        FrontendKind::LoadBalancer => service.source_ranges.is_none(),
        FrontendKind::ExternalIP => true,
        FrontendKind::Static => service.is_outside,
        FrontendKind::ClusterIP | FrontendKind::NodePort => false,
    };
    let has_ways = service.forward != Forward::Translate;
    let ports = service.ports.iter().filter(|port| has_ways && port.protocol == Protocol::Tcp && *port.name == *name);
    let frontends = ports.flat_map(|port| &port.frontends).filter(|frontend| is_forwarded(frontend.kind));
    frontends.map(|spec: &FrontendSpec| L4Addr::new(spec.addr, spec.port, Protocol::Tcp)).collect()
}

/// Returns the state of a target that was not checked at this address before: that of its backends at another address,
/// or that from before nodelb was started, if either is known.
fn newcomer(
    backends: &[Backend],
    before: &BTreeMap<Backend, CheckedTarget>,
    earlier: Option<&Quarantine>,
    is_used: bool,
) -> HealthState {
    if let Some(known) = before.values().find(|target| target.backends.iter().any(|b| backends.contains(b))) {
        return known.health.clone().undecided();
    }
    match backends.iter().find_map(|backend| earlier?.get(backend)) {
        Some(error) => HealthState::continued(Err(Arc::clone(error))),
        None if is_used => HealthState::continued(Ok(())),
        None => HealthState::default(),
    }
}

#[cfg(test)]
#[path = "tests/board.rs"]
mod tests;

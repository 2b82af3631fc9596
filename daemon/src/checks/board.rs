//! What is checked and how it stands: from what the file source says and what backends answer to what the owner is told.
//! Pure, so that any order of files, edits and answers can be tried out.
//!
//! A target is one address that one service asks: of a backend that serves several of its ports there is one where
//! [`HealthCheck::port`] says which, else one per port. Two services that have a backend in common ask it each for
//! themselves, as each says how.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::compile::select::effective_state;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, Service, ServiceName, Slice, SliceName, Source};

use super::state::{Condition, Standing};

/// A new text for a backend that stays unhealthy is told no sooner than this after the service was last told of, in
/// milliseconds: people read it, nothing hangs on it.
const TEXT_EVERY: u64 = 5_000;

/// Names a target for as long as there is one; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TargetId(pub(super) u64);

/// A backend of a service, as [`Quarantine`] names it.
type Backend = (Addr, u16);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Board {
    subjects: HashMap<ServiceName, Subject, RandomState>,
    slices: HashMap<SliceName, Listed, RandomState>,
    targets: HashMap<TargetId, (ServiceName, Backend), RandomState>,
    last_id: u64,
    /// What was unhealthy when nodelb ended, of services that the source has not told of yet.
    remembered: BTreeMap<ServiceName, Quarantine>,
    /// Whether what the source tells first was checked until a moment ago, by the daemon before.
    continues: bool,
    /// Services whose quarantine may be another than the owner was told.
    untold: BTreeSet<ServiceName>,
}

/// All that is known under one service name.
#[derive(Debug, Default)]
struct Subject {
    check: Option<Arc<HealthCheck>>,
    /// What the targets were last made from.
    check_before: Option<Arc<HealthCheck>>,
    slices: BTreeSet<SliceName>,
    /// By the address that is asked.
    targets: BTreeMap<Backend, Target>,
    /// What the owner was told, and when.
    told: Quarantine,
    told_at: Moment,
}

#[derive(Debug)]
struct Target {
    id: TargetId,
    standing: Standing,
    /// Whose health it is.
    backends: Vec<Backend>,
}

/// The backends of a slice that are to be checked, and whether they are served over TCP.
#[derive(Debug)]
struct Listed {
    service: ServiceName,
    backends: Vec<(Backend, bool)>,
}

/// What follows from a batch of the source.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// To be asked soon: new, or to be asked something else than before.
    pub(super) entered: Vec<TargetId>,
    /// Not to be asked any more.
    pub(super) left: Vec<TargetId>,
}

/// A question to a backend.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) at: SocketAddr,
    pub(super) check: Arc<HealthCheck>,
}

/// A target that has become healthy or unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) service: ServiceName,
    /// The first of the backends whose health it is.
    pub(super) backend: SocketAddr,
    /// Why it is unhealthy, if it is.
    pub(super) failure: Option<Arc<str>>,
}

impl Board {
    /// A board that knows what was unhealthy before; if it `continues`, also that the others were not.
    pub(super) fn recalling(remembered: BTreeMap<ServiceName, Quarantine>, continues: bool) -> Self {
        Self { remembered, continues, ..Self::default() }
    }

    /// Takes in what the file source says. What follows for the owner is to be asked for with [`Board::news`], and to be
    /// told in the same batch.
    pub(super) fn follow(&mut self, changes: &[Change]) -> Followed {
        let mut touched = BTreeSet::new();
        let mut is_complete = false;
        for change in changes {
            match change {
                Change::UpsertService(service) => self.describe(service, &mut touched),
                Change::RemoveService(name, Source::Files) => self.forget(name, &mut touched),
                Change::UpsertSlice(slice) => self.list(slice, &mut touched),
                Change::RemoveSlice(name, Source::Files) => self.unlist(name, &mut touched),
                Change::Synced { incomplete, .. } => is_complete = incomplete.is_none(),
                _ => {}
            }
        }
        let mut followed = Followed::default();
        for name in touched {
            self.rebuild(&name, &mut followed);
        }
        if is_complete {
            // What nobody has asked for by now is of services or backends that are gone.
            self.remembered.clear();
            self.continues = false;
        }
        followed
    }

    fn describe(&mut self, service: &Service, touched: &mut BTreeSet<ServiceName>) {
        let subject = self.subjects.entry(service.name.clone()).or_default();
        if subject.check != service.health_check {
            subject.check.clone_from(&service.health_check);
            touched.insert(service.name.clone());
        }
    }

    fn forget(&mut self, name: &ServiceName, touched: &mut BTreeSet<ServiceName>) {
        if let Some(subject) = self.subjects.get_mut(name) {
            subject.check = None;
            touched.insert(name.clone());
        }
    }

    fn list(&mut self, slice: &Slice, touched: &mut BTreeSet<ServiceName>) {
        self.unlist(&slice.name, touched);
        let is_checked = |backend: &&nodelb_core::model::service::Backend| {
            matches!(effective_state(backend), BackendState::Active | BackendState::Terminating)
        };
        let backends = slice.ports.iter().flat_map(|port| {
            let is_tcp = port.protocol == Protocol::Tcp;
            port.backends.iter().filter(is_checked).map(move |backend| ((backend.addr, backend.port), is_tcp))
        });
        let listed = Listed { service: slice.service.clone(), backends: backends.collect() };
        self.slices.insert(slice.name.clone(), listed);
        self.subjects.entry(slice.service.clone()).or_default().slices.insert(slice.name.clone());
        touched.insert(slice.service.clone());
    }

    fn unlist(&mut self, name: &SliceName, touched: &mut BTreeSet<ServiceName>) {
        if let Some(listed) = self.slices.remove(name) {
            if let Some(subject) = self.subjects.get_mut(&listed.service) {
                subject.slices.remove(name);
            }
            touched.insert(listed.service);
        }
    }

    /// Makes the targets of the service those that follow from its description and slices now. Those that stay keep how
    /// they stand.
    fn rebuild(&mut self, name: &ServiceName, followed: &mut Followed) {
        let Some(subject) = self.subjects.get_mut(name) else { return };
        let before = std::mem::take(&mut subject.targets);
        let check_before = std::mem::replace(&mut subject.check_before, subject.check.clone());
        if let Some(check) = subject.check.clone() {
            let method_before = check_before.as_ref().map(|check| &check.method);
            let is_asked_anew = method_before.is_some_and(|method| *method != check.method);
            let is_moved = check_before.is_some_and(|before| before.interval != check.interval);
            let remembered = self.remembered.get(name);
            for (asked, backends) in wanted(&check, &subject.slices, &self.slices) {
                let known = before.get(&asked);
                let standing = match known {
                    Some(known) if is_asked_anew => known.standing.clone().asked_anew(),
                    Some(known) => known.standing.clone(),
                    None => newcomer(&backends, &before, remembered)
                        .unwrap_or_else(|| Standing::new(check.starts_healthy, self.continues)),
                };
                // The answer to a question of before is not one to the question of now: that has an id of its own.
                let id = match known {
                    Some(known) if !is_asked_anew && !is_moved => known.id,
                    _ => {
                        self.last_id += 1;
                        let id = TargetId(self.last_id);
                        self.targets.insert(id, (name.clone(), asked));
                        followed.entered.push(id);
                        id
                    }
                };
                subject.targets.insert(asked, Target { id, standing, backends });
            }
        }
        let is_kept = |asked: &Backend, id| subject.targets.get(asked).is_some_and(|target| target.id == id);
        for (_, gone) in before.iter().filter(|(asked, target)| !is_kept(asked, target.id)) {
            self.targets.remove(&gone.id);
            followed.left.push(gone.id);
        }
        self.untold.insert(name.clone());
    }

    /// What a target is to be asked; `None` if it is gone.
    pub(super) fn question(&self, id: TargetId) -> Option<Question> {
        let (name, (addr, port)) = self.targets.get(&id)?;
        let check = self.subjects.get(name)?.check.clone()?;
        Some(Question { at: SocketAddr::new(addr.ip(), *port), check })
    }

    /// Takes in an answer; the turn, if it made one. The answer of a target that is gone counts for nothing.
    pub(super) fn hear(&mut self, id: TargetId, answer: Result<(), Arc<str>>) -> Option<Turn> {
        let (name, asked) = self.targets.get(&id)?;
        let subject = self.subjects.get_mut(name)?;
        let check = subject.check.as_ref()?;
        let target = subject.targets.get_mut(asked)?;
        let before = target.standing.failure().cloned();
        let has_turned = target.standing.hear(answer, check.rise, check.fall);
        let failure = target.standing.failure().cloned();
        if failure != before {
            self.untold.insert(name.clone());
        }
        let (addr, port) = *target.backends.first().unwrap_or(asked);
        has_turned.then(|| Turn { service: name.clone(), backend: SocketAddr::new(addr.ip(), port), failure })
    }

    /// What the owner is to be told now.
    pub(super) fn news(&mut self, now: Moment) -> Vec<Change> {
        let mut changes = Vec::new();
        for name in std::mem::take(&mut self.untold) {
            let Some(subject) = self.subjects.get_mut(&name) else { continue };
            let quarantine = subject.quarantine();
            let is_same = quarantine.keys().eq(subject.told.keys());
            if is_same && quarantine != subject.told && now.0 < subject.told_at.0.saturating_add(TEXT_EVERY) {
                self.untold.insert(name);
                continue;
            }
            if quarantine != subject.told {
                subject.told.clone_from(&quarantine);
                subject.told_at = now;
                changes.push(Change::Quarantine(name.clone(), quarantine));
            }
            if subject.is_nothing() {
                self.subjects.remove(&name);
            }
        }
        changes
    }

    /// How many targets there are and how they stand.
    pub(super) fn counts(&self) -> BTreeMap<Condition, usize> {
        let mut counts = BTreeMap::new();
        for target in self.subjects.values().flat_map(|subject| subject.targets.values()) {
            *counts.entry(target.standing.condition()).or_default() += 1;
        }
        counts
    }

    /// What to remember over a restart: the backends whose answers were bad, also those of services that the source has
    /// not told of again.
    pub(super) fn unhealthy(&self) -> BTreeMap<ServiceName, Quarantine> {
        let mut unhealthy = self.remembered.clone();
        for (name, subject) in &self.subjects {
            let decided = subject.targets.values().filter(|target| target.standing.condition() == Condition::Unhealthy);
            let quarantine: Quarantine = decided.flat_map(Target::failures).collect();
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
    /// The backends that are not to be used, each with its last error.
    fn quarantine(&self) -> Quarantine {
        self.targets.values().flat_map(Target::failures).collect()
    }

    /// Whether nothing is known under the name, and nobody has been told anything.
    fn is_nothing(&self) -> bool {
        self.check.is_none() && self.slices.is_empty() && self.told.is_empty()
    }
}

impl Target {
    fn failures(&self) -> impl Iterator<Item = (Backend, Arc<str>)> {
        let failure = self.standing.failure();
        self.backends.iter().filter_map(move |backend| Some((*backend, Arc::clone(failure?))))
    }
}

/// Which addresses are to be asked, each with the backends whose health that is.
fn wanted(
    check: &HealthCheck,
    names: &BTreeSet<SliceName>,
    slices: &HashMap<SliceName, Listed, RandomState>,
) -> BTreeMap<Backend, Vec<Backend>> {
    let mut backends: BTreeSet<Backend> = BTreeSet::new();
    for listed in names.iter().filter_map(|name| slices.get(name)) {
        // Nothing answers over TCP at a port of another protocol.
        let answers = listed.backends.iter().filter(|(_, is_tcp)| *is_tcp || check.port.is_some());
        backends.extend(answers.map(|(backend, _)| *backend));
    }
    let mut wanted: BTreeMap<Backend, Vec<Backend>> = BTreeMap::new();
    for (addr, port) in backends {
        wanted.entry((addr, check.port.unwrap_or(port))).or_default().push((addr, port));
    }
    wanted
}

/// How a target stands that was not asked at this address before: as its backends did at another one, or as they did before
/// nodelb was started. `None` where nothing is known.
fn newcomer(
    backends: &[Backend],
    before: &BTreeMap<Backend, Target>,
    remembered: Option<&Quarantine>,
) -> Option<Standing> {
    if let Some(known) = before.values().find(|target| target.backends.iter().any(|b| backends.contains(b))) {
        return Some(known.standing.clone().asked_anew());
    }
    let error = remembered.and_then(|failed| backends.iter().find_map(|backend| failed.get(backend)))?;
    Some(Standing::unhealthy(Arc::clone(error)))
}

#[cfg(test)]
#[path = "tests/board.rs"]
mod tests;

//! Decides which Events are due: one for each service and reason, repeated with a count while the problem continues, at
//! a limited rate. Pure: uses a clock in seconds that never goes back; wall-clock time is used only for the dates and
//! names of Events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;

use nodelb_core::model::service::{PortKey, ServiceName, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_report::explain::reports;
use nodelb_report::explain::rows::FrontendReport;
use nodelb_report::filter::Filter;

/// How long a problem must last before it is reported, in seconds: endpoints come and go.
const MIN_DURATION: u64 = 10;

/// The largest additional delay in seconds. It depends on the name of the node, so that nodes which see the same
/// problem do not all report it at once.
const SPREAD: u64 = 60;

/// The time in seconds between two reports of the same problem.
const REPEAT_AFTER: u64 = 300;

/// A problem that ends and returns within this time in seconds counts as the same; apiservers keep Events for an hour.
const REMEMBERED: u64 = 3_000;

/// The rate limit: how many Events may be written at once, and the seconds until another one is allowed.
const BURST: u64 = 20;
const ONE_MORE: u64 = 10;

/// The maximum number of problems that are remembered; see [`share`].
const MAX_KNOWN: usize = 10_000;

/// The first pause in seconds after an error that is not about the written Event, and the longest.
const FIRST_PAUSE: u64 = 5;
const LONGEST_PAUSE: u64 = 300;

/// How long a forbidden write is not repeated, in seconds: permissions change rarely.
const FORBIDDEN_FOR: u64 = 3_600;

/// The reason of an Event; each has an entry in the catalogue of `diagnose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::AsRefStr)]
pub(super) enum Reason {
    BackendsHeld,
    AddressRefused,
    AddressConflict,
    NoBackends,
}

/// A problem of a service.
type Key = (ServiceName, Reason);

/// The problems in a snapshot that deserve an Event.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// A text for each service and reason: that of the first occurrence.
    texts: BTreeMap<Key, String>,
    /// Services with an available backend, on this node or on another.
    with_backends: BTreeSet<ServiceName>,
}

impl Problems {
    pub(super) fn of_snapshot(snapshot: &Snapshot) -> Self {
        let of_kubernetes = |name: &_| {
            let owner = snapshot.facts.owner(name);
            owner.is_some_and(|(service, _)| service.source == Source::Kubernetes)
        };
        let empty: BTreeSet<&PortKey> = snapshot.empty_ports().map(AsRef::as_ref).collect();
        let is_empty = |row: &FrontendReport| {
            let (protocol, family) = (row.address.protocol, row.address.addr.family());
            empty.contains(&PortKey { service: row.service.clone(), port: Arc::clone(&row.port), protocol, family })
        };
        Self::of_rows(&reports::frontends(snapshot, &Filter::default()), of_kubernetes, is_empty)
    }

    /// `rows` are those of `/frontends`: by address, the owner's first. `is_empty`: whether the port behind a row has no
    /// backend on any node; a `Local` policy may well have none on this node.
    fn of_rows(
        rows: &[FrontendReport],
        of_kubernetes: impl Fn(&ServiceName) -> bool,
        is_empty: impl Fn(&FrontendReport) -> bool,
    ) -> Self {
        let mut found = Self::default();
        let mut empty = Vec::new();
        let mut owner: Option<&FrontendReport> = None;
        for row in rows {
            let is_taken = owner.is_some_and(|owner| owner.address == row.address && owner.service != row.service);
            if owner.is_none_or(|owner| owner.address != row.address) {
                owner = Some(row).filter(|row| !row.status.is_denied());
            }
            if !of_kubernetes(&row.service) {
                continue;
            }
            let reason = match row.status {
                Status::Held => Some(Reason::BackendsHeld),
                Status::Conflict | Status::Refused if is_taken => Some(Reason::AddressConflict),
                Status::Conflict | Status::Refused => Some(Reason::AddressRefused),
                Status::Ok | Status::NoBackends | Status::LastResort | Status::Kept | Status::Pending => None,
            };
            if row.status == Status::NoBackends && is_empty(row) {
                empty.push(row);
            } else if !row.status.is_denied() {
                found.with_backends.insert(row.service.clone());
            }
            if let Some(reason) = reason {
                let text = || format!("{}: {}", row.address, row.error.as_deref().unwrap_or("unknown reason"));
                found.texts.entry((row.service.clone(), reason)).or_insert_with(text);
            }
        }
        for row in empty.into_iter().filter(|row| !found.with_backends.contains(&row.service)) {
            let text = || format!("{} and every other address of the service have no backends any more", row.address);
            found.texts.entry((row.service.clone(), Reason::NoBackends)).or_insert_with(text);
        }
        found
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) service: ServiceName,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// Its `metadata.name`.
    pub(super) name: String,
    /// Time of the first occurrence, in seconds since 1970.
    pub(super) first: u64,
    /// How often it has been reported, including this time.
    pub(super) count: u32,
}

/// The time of a check, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now {
    /// Seconds since the daemon started; never goes back.
    pub(super) since_start: u64,
    /// Seconds since 1970, by the current wall clock.
    pub(super) unix: u64,
}

/// The result of an attempt to write an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The apiserver has the Event.
    Written,
    /// The apiserver has deleted or rejected the Event, or the service was removed: the next report is a new Event.
    Rejected,
    /// nodelb may not write this Event, or any Event.
    Forbidden { is_everywhere: bool },
    /// The apiserver has not answered, or has requested a pause of this many seconds.
    Failed { retry_after: u64 },
}

#[derive(Debug)]
struct Occurrence {
    /// Time of the first occurrence, in seconds since 1970.
    first: u64,
    /// Since when every check has found it; `None` if the last check did not.
    since: Option<u64>,
    last_seen: u64,
    /// The earliest time of the next report.
    next: u64,
    count: u32,
}

/// The state of all known problems, and of the pace of writing; see the module.
#[derive(Debug)]
pub(super) struct Recorder {
    node: String,
    /// How long a problem must last before this node reports it, in seconds.
    delay: u64,
    known: HashMap<Key, Occurrence>,
    /// Services that had backends: only these can have *lost* their backends.
    had_backends: BTreeSet<ServiceName>,
    /// The time of the last attempt to write an Event of each namespace.
    turns: BTreeMap<Arc<str>, u64>,
    /// Until when the rate limit is used up; at most [`BURST`] times [`ONE_MORE`] after now.
    used_until: u64,
    paused_until: u64,
    /// The pause in seconds after the next consecutive failure.
    pause: u64,
}

impl Recorder {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            delay: MIN_DURATION + hash(node) % (SPREAD + 1),
            known: HashMap::new(),
            had_backends: BTreeSet::new(),
            turns: BTreeMap::new(),
            used_until: 0,
            paused_until: 0,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Sets the name of the node, unless it is empty. What was reported under another name belongs to another reporter,
    /// and is reported again.
    pub(super) fn set_node(&mut self, node: &str) {
        if !node.is_empty() && *node != self.node {
            let Self { node, delay, known, .. } = Self::new(node);
            (self.node, self.delay, self.known) = (node, delay, known);
        }
    }

    /// Whether no Event may be written now.
    pub(super) fn is_paused(&self, now: u64) -> bool {
        now < self.paused_until
    }

    /// The Events to write now. Those that are not [recorded](Self::record) as written remain due.
    pub(super) fn due(&mut self, now: Now, problems: &Problems) -> Vec<Due> {
        let Now { since_start: now, unix } = now;
        self.had_backends.extend(problems.with_backends.iter().cloned());
        self.known.retain(|key, known| {
            let is_seen = problems.texts.contains_key(key);
            known.since = known.since.filter(|_| is_seen);
            let is_recent = now.saturating_sub(known.last_seen) <= REMEMBERED;
            known.next > now || is_recent && (is_seen || known.count > 0)
        });
        let mut ready = Vec::new();
        for key in self.remembered(problems) {
            let new = Occurrence { first: unix, since: None, last_seen: now, next: 0, count: 0 };
            let known = self.known.entry(key.clone()).or_insert(new);
            known.last_seen = now;
            if known.since.is_none() && known.count == 0 {
                known.first = unix;
            }
            let since = *known.since.get_or_insert(now);
            if now.saturating_sub(since) >= self.delay && now >= known.next {
                ready.push(((known.next, since), key));
            }
        }
        let room = BURST.saturating_sub(self.used_until.saturating_sub(now).div_ceil(ONE_MORE));
        let mut due = Vec::new();
        for key in self.in_turn(ready, now).into_iter().take(usize::try_from(room).unwrap_or(usize::MAX)) {
            let ((service, reason), Some(message), Some(known)) = (key, problems.texts.get(key), self.known.get(key))
            else {
                continue;
            };
            // Equal for the same problem, different on each node.
            let id = hash((&self.node, &service.namespace, &service.name, reason, known.first));
            due.push(Due {
                service: service.clone(),
                reason: *reason,
                message: message.clone(),
                name: format!("{}.{id:016x}", service.name),
                first: known.first,
                count: known.count + 1,
            });
        }
        let has_problem = |service: &ServiceName| problems.texts.contains_key(&(service.clone(), Reason::NoBackends));
        self.had_backends.retain(|service| problems.with_backends.contains(service) || has_problem(service));
        due
    }

    /// The problems that are remembered, in their order. A namespace with more than its [`share`] loses first those of which
    /// no Event was written, and of these the newest.
    fn remembered<'p>(&mut self, problems: &'p Problems) -> Vec<&'p Key> {
        let is_news = |(service, reason): &&Key| *reason != Reason::NoBackends || self.had_backends.contains(service);
        let found: Vec<&Key> = problems.texts.keys().filter(is_news).collect();
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let new = found.iter().copied().filter(|key| !self.known.contains_key(*key));
        new.chain(self.known.keys()).for_each(|(name, _)| *counts.entry(Arc::clone(&name.namespace)).or_default() += 1);
        let share = share(counts.into_values().collect());
        let mut kept: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut has_room = |(name, _): &Key| {
            let kept = kept.entry(Arc::clone(&name.namespace)).or_default();
            *kept += usize::from(*kept <= share);
            *kept <= share
        };
        if share < usize::MAX {
            let mut known: Vec<(Key, Occurrence)> = self.known.drain().collect();
            known.sort_by_cached_key(|(key, known)| (known.next == 0, known.first, key.clone()));
            self.known.extend(known.into_iter().filter(|(key, _)| has_room(key)));
        }
        let mut left = MAX_KNOWN.saturating_sub(self.known.len());
        let mut is_remembered = |key: &&Key| {
            let is_known = self.known.contains_key(*key);
            let is_added = !is_known && left > 0 && has_room(key);
            left -= usize::from(is_added);
            is_known || is_added
        };
        found.into_iter().filter(|key| is_remembered(key)).collect()
    }

    /// One of each namespace after the other, beginning with the one that had its last turn longest ago, and of a namespace
    /// what has waited longest first: no namespace keeps another one waiting.
    fn in_turn<'p>(&mut self, mut ready: Vec<((u64, u64), &'p Key)>, now: u64) -> Vec<&'p Key> {
        self.turns.retain(|_, last| now.saturating_sub(*last) < REPEAT_AFTER);
        ready.sort_by_key(|(waiting, _)| *waiting);
        let mut before: BTreeMap<&str, usize> = BTreeMap::new();
        let ranked = ready.into_iter().map(|(_, key)| {
            let namespace = &*key.0.namespace;
            let turn = before.entry(namespace).or_default();
            *turn += 1;
            ((*turn, self.turns.get(namespace).copied()), key)
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, key)| key).collect()
    }

    /// Records an attempt to write an Event. Each attempt counts in the rate limit.
    pub(super) fn record(&mut self, due: &Due, now: u64, outcome: Outcome) {
        self.used_until = self.used_until.max(now) + ONE_MORE;
        self.turns.insert(Arc::clone(&due.service.namespace), now);
        let key = (due.service.clone(), due.reason);
        let mut known = self.known.get_mut(&key);
        match outcome {
            Outcome::Written => {
                (self.paused_until, self.pause) = (0, FIRST_PAUSE);
                if let Some(known) = &mut known {
                    (known.next, known.count) = (now + REPEAT_AFTER, due.count);
                }
            }
            Outcome::Rejected => {
                self.known.remove(&key);
            }
            Outcome::Forbidden { is_everywhere } => {
                if let Some(known) = &mut known {
                    known.next = now + FORBIDDEN_FOR;
                }
                if is_everywhere {
                    self.paused_until = now + FORBIDDEN_FOR;
                }
            }
            Outcome::Failed { retry_after } => {
                self.paused_until = now + self.pause.max(retry_after);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// The number of problems of one namespace that are remembered, if the namespaces have this many: all of those with few,
/// and equally many of the rest.
fn share(mut counts: Vec<usize>) -> usize {
    counts.sort_unstable();
    let (mut left, namespaces) = (MAX_KNOWN, counts.len());
    for (before, count) in counts.into_iter().enumerate() {
        let share = left / (namespaces - before);
        if count > share {
            return share.max(1);
        }
        left -= count;
    }
    usize::MAX
}

fn hash(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::new().hash_one(value)
}

#[cfg(test)]
#[path = "tests/recorder.rs"]
mod tests;

//! Decides which Events are due: one for each service and reason, repeated with a count while the problem continues, at
//! a limited rate. Pure: uses a clock in seconds that never goes back; wall-clock time is used only for the dates and
//! names of Events.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use nodelb_core::model::service::ServiceName;

use super::ByTrouble;
use super::troubles::{Reason, Seen};

/// How long a problem must last before it is reported, in seconds: endpoints come and go.
const SETTLED: u64 = 10;

/// The largest additional delay in seconds. It depends on the name of the node, so that nodes which see the same
/// problem do not all report it at once.
const SPREAD: u64 = 60;

/// The time in seconds between two reports of the same problem.
const AGAIN: u64 = 300;

/// A problem that ends and returns within this time in seconds counts as the same; apiservers keep Events for an hour.
const REMEMBERED: u64 = 3_000;

/// How many Events may be written at once, and the time in seconds after which another one is allowed.
const BURST: u64 = 20;
const ONE_MORE: u64 = 10;

/// The maximum number of problems that are remembered.
const MOST: usize = 10_000;

/// An Event that is due.
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

#[derive(Debug)]
struct Known {
    /// Time of the first occurrence, in seconds since 1970.
    first: u64,
    /// The time since which every check has found it; `None` if the last check did not.
    since: Option<u64>,
    last_seen: u64,
    /// The earliest time of the next report.
    next: u64,
    count: u32,
}

/// The state of all known problems; see the module.
#[derive(Debug)]
pub(super) struct Board {
    node: String,
    /// How long a problem must last before it is reported, in seconds.
    settled: u64,
    known: ByTrouble<Known>,
    /// Services that had backends: only these can have *lost* their backends.
    had_backends: BTreeSet<ServiceName>,
    /// The time up to which the rate limit is used up; at most [`BURST`] times [`ONE_MORE`] after now.
    used_until: u64,
}

impl Board {
    pub(super) fn new(node: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let settled = SETTLED + hasher.finish() % (SPREAD + 1);
        Self { node: node.into(), settled, known: ByTrouble::new(), had_backends: BTreeSet::new(), used_until: 0 }
    }

    /// The node has another name: what it reported under the old name belongs to another reporter, and is reported
    /// again.
    pub(super) fn rename(&mut self, node: &str) {
        let Self { had_backends, used_until, .. } = std::mem::replace(self, Self::new(node));
        (self.had_backends, self.used_until) = (had_backends, used_until);
    }

    /// The Events to report now. Those that are not [reported](Self::reported) remain due.
    pub(super) fn look(&mut self, now: Now, seen: &Seen) -> Vec<Due> {
        let Now { since_start: now, unix } = now;
        self.had_backends.extend(seen.with_backends.iter().cloned());
        self.known.retain(|key, known| {
            let is_seen = seen.troubles.contains_key(key);
            known.since = known.since.filter(|_| is_seen);
            let is_recent = now.saturating_sub(known.last_seen) <= REMEMBERED;
            known.next > now || is_recent && (is_seen || known.count > 0)
        });
        let mut due = Vec::new();
        let mut room = self.room(now);
        for (key, message) in &seen.troubles {
            let (service, reason) = key;
            let is_new = *reason != Reason::NoBackends || self.had_backends.contains(service);
            if !is_new || self.known.len() >= MOST && !self.known.contains_key(key) {
                continue;
            }
            let new = Known { first: unix, since: None, last_seen: now, next: 0, count: 0 };
            let known = self.known.entry(key.clone()).or_insert(new);
            known.last_seen = now;
            if known.since.is_none() && known.count == 0 {
                known.first = unix;
            }
            let since = *known.since.get_or_insert(now);
            let is_due = now.saturating_sub(since) >= self.settled && now >= known.next;
            if is_due && room > 0 {
                room -= 1;
                let (first, count) = (known.first, known.count + 1);
                let name = name(&self.node, service, *reason, first);
                due.push(Due {
                    service: service.clone(),
                    reason: *reason,
                    message: message.clone(),
                    name,
                    first,
                    count,
                });
            }
        }
        self.had_backends.retain(|service| {
            seen.with_backends.contains(service) || seen.troubles.contains_key(&(service.clone(), Reason::NoBackends))
        });
        due
    }

    /// How many Events may be reported now.
    fn room(&self, now: u64) -> u64 {
        let ahead = self.used_until.saturating_sub(now);
        BURST.saturating_sub(ahead.div_ceil(ONE_MORE))
    }

    /// Counts an attempt to report an Event in the rate limit, whether it succeeds or not.
    pub(super) fn attempted(&mut self, now: u64) {
        self.used_until = self.used_until.max(now) + ONE_MORE;
    }

    /// Records that an Event was reported.
    pub(super) fn reported(&mut self, due: &Due, now: u64) {
        if let Some(known) = self.known.get_mut(&(due.service.clone(), due.reason)) {
            known.next = now + AGAIN;
            known.count = due.count;
        }
    }

    /// The apiserver rejects this Event: it is not sent again before that time.
    pub(super) fn put_off(&mut self, due: &Due, until: u64) {
        if let Some(known) = self.known.get_mut(&(due.service.clone(), due.reason)) {
            known.next = until;
        }
    }

    /// The apiserver has deleted or rejected the Event, or the service is gone: the next report is a new Event.
    pub(super) fn forget(&mut self, due: &Due) {
        self.known.remove(&(due.service.clone(), due.reason));
    }
}

/// The name of the Event: the same for the same problem, different on each node.
fn name(node: &str, service: &ServiceName, reason: Reason, first: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (node, &service.namespace, &service.name, reason, first).hash(&mut hasher);
    format!("{}.{:016x}", service.name, hasher.finish())
}

#[cfg(test)]
#[path = "tests/board.rs"]
mod tests;

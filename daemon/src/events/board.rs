//! Which Events are due: one for each service and reason, repeated with a count while the trouble lasts, few at a time. Pure:
//! decides by a clock that never goes back, in seconds; the time of the world only dates and names what is told.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use nodelb_core::model::service::ServiceName;

use super::ByTrouble;
use super::troubles::{Reason, Seen};

/// A trouble is told when it has lasted for so long: endpoints come and go.
const SETTLED: u64 = 10;

/// And for up to so much longer, by the name of the node: what all nodes see they do not all tell at once.
const SPREAD: u64 = 60;

/// Between two times that the same is told.
const AGAIN: u64 = 300;

/// A trouble that ended is still the same one when it comes back within this time; apiservers keep Events for an hour.
const REMEMBERED: u64 = 3_000;

/// How many may be told at once, and how often there is room for one more.
const BURST: u64 = 20;
const ONE_MORE: u64 = 10;

/// The most troubles that are kept in mind.
const MOST: usize = 10_000;

/// An Event to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) service: ServiceName,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// Its `metadata.name`.
    pub(super) name: String,
    /// When it was first seen, in seconds since 1970.
    pub(super) first: u64,
    /// How often it has been told, this time included.
    pub(super) count: u32,
}

/// The time of a look, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now {
    /// Since the daemon started; never goes back.
    pub(super) since_start: u64,
    /// Since 1970, as the clock of the world has it at the moment.
    pub(super) unix: u64,
}

#[derive(Debug)]
struct Known {
    /// When it was first seen, in seconds since 1970.
    first: u64,
    /// Since when it has been seen in every look; `None` when it was not in the last one.
    since: Option<u64>,
    last_seen: u64,
    /// Not to be told before.
    next: u64,
    count: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    node: String,
    /// How long a trouble lasts before it is told.
    settled: u64,
    known: ByTrouble<Known>,
    /// Services that had backends: others are not without them *any more*.
    had_backends: BTreeSet<ServiceName>,
    /// Up to when room has been used; at most [`BURST`] times [`ONE_MORE`] ahead of now.
    used_until: u64,
}

impl Board {
    pub(super) fn new(node: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let settled = SETTLED + hasher.finish() % (SPREAD + 1);
        Self { node: node.into(), settled, known: ByTrouble::new(), had_backends: BTreeSet::new(), used_until: 0 }
    }

    /// The node has another name: what it reported under the old one is another reporter's, and is reported again.
    pub(super) fn rename(&mut self, node: &str) {
        let Self { had_backends, used_until, .. } = std::mem::replace(self, Self::new(node));
        (self.had_backends, self.used_until) = (had_backends, used_until);
    }

    /// What is to be told now. What is not [told](Self::told) then is due again.
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
            let is_news = *reason != Reason::NoBackends || self.had_backends.contains(service);
            if !is_news || self.known.len() >= MOST && !self.known.contains_key(key) {
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

    /// How many may be told now.
    fn room(&self, now: u64) -> u64 {
        let ahead = self.used_until.saturating_sub(now);
        BURST.saturating_sub(ahead.div_ceil(ONE_MORE))
    }

    /// It is about to be told: there is room for one less, whatever comes of it.
    pub(super) fn attempted(&mut self, now: u64) {
        self.used_until = self.used_until.max(now) + ONE_MORE;
    }

    /// It has been told.
    pub(super) fn told(&mut self, due: &Due, now: u64) {
        if let Some(known) = self.known.get_mut(&(due.service.clone(), due.reason)) {
            known.next = now + AGAIN;
            known.count = due.count;
        }
    }

    /// The apiserver does not take this one: it is left alone until then.
    pub(super) fn put_off(&mut self, due: &Due, until: u64) {
        if let Some(known) = self.known.get_mut(&(due.service.clone(), due.reason)) {
            known.next = until;
        }
    }

    /// The apiserver has forgotten it or makes nothing of it, or the service is gone: the next time is the first.
    pub(super) fn forget(&mut self, due: &Due) {
        self.known.remove(&(due.service.clone(), due.reason));
    }
}

/// The same for the same trouble, another one on each node.
fn name(node: &str, service: &ServiceName, reason: Reason, first: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (node, &service.namespace, &service.name, reason, first).hash(&mut hasher);
    format!("{}.{:016x}", service.name, hasher.finish())
}

#[cfg(test)]
#[path = "tests/board.rs"]
mod tests;

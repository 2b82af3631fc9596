//! Which Events are due: one for each service and reason, repeated with a count while the trouble lasts, few at a time. Pure;
//! time is in seconds since 1970.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use nodelb_core::service::ServiceName;

use super::ByTrouble;
use super::troubles::{Reason, Seen};

/// A trouble is told when it has lasted for so long: endpoints come and go.
const SETTLED: u64 = 10;

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
    /// When it was first seen.
    pub(super) first: u64,
    /// How often it has been told, this time included.
    pub(super) count: u32,
}

#[derive(Debug)]
struct Known {
    first: u64,
    last_seen: u64,
    told_at: Option<u64>,
    count: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    node: String,
    known: ByTrouble<Known>,
    /// Services that had backends: others are not without them *any more*.
    had_backends: BTreeSet<ServiceName>,
    /// Up to when room has been used; at most [`BURST`] times [`ONE_MORE`] ahead of now.
    used_until: u64,
}

impl Board {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.into(), known: ByTrouble::new(), had_backends: BTreeSet::new(), used_until: 0 }
    }

    /// What is to be told now. What is not [told](Self::told) then is due again.
    pub(super) fn look(&mut self, now: u64, seen: &Seen) -> Vec<Due> {
        self.had_backends.extend(seen.with_backends.iter().cloned());
        self.known.retain(|_, known| now.saturating_sub(known.last_seen) <= REMEMBERED);
        let mut due = Vec::new();
        let mut room = self.room(now);
        for (key, message) in &seen.troubles {
            let (service, reason) = key;
            let is_news = *reason != Reason::NoBackends || self.had_backends.contains(service);
            if !is_news || self.known.len() >= MOST && !self.known.contains_key(key) {
                continue;
            }
            let known =
                self.known.entry(key.clone()).or_insert(Known { first: now, last_seen: now, told_at: None, count: 0 });
            known.last_seen = now;
            let is_due = match known.told_at {
                None => now.saturating_sub(known.first) >= SETTLED,
                Some(at) => now.saturating_sub(at) >= AGAIN,
            };
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

    /// It has been told.
    pub(super) fn told(&mut self, due: &Due, now: u64) {
        self.used_until = self.used_until.max(now) + ONE_MORE;
        if let Some(known) = self.known.get_mut(&(due.service.clone(), due.reason)) {
            known.told_at = Some(now);
            known.count = due.count;
        }
    }

    /// The apiserver has forgotten it, or the service is gone: the next time is the first.
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
mod tests;

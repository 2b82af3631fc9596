//! The times of the checks. Pure: time and randomness are arguments.
//!
//! The first target of a service is checked at once, and its others one after the other, a thousand a second, but all of
//! them within an interval, so that ten thousand cause no burst. After that, each target has its own interval with a
//! jitter of a tenth, so that targets that began together drift apart. A target has at most one open check, and each
//! service its share of the open ones ([`Shares`]).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use foldhash::fast::RandomState;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;

use super::board::TargetId;
use crate::shares::{Share, Shares};

/// Time between two new targets of a service in milliseconds.
const NEWCOMER_EVERY: u64 = 1;
/// Maximum deviation from an interval, in per cent.
const JITTER_PERCENT: u64 = 10;

#[derive(Debug)]
pub(super) struct Schedule {
    seed: u64,
    queue: BTreeSet<(Moment, TargetId)>,
    targets: HashMap<TargetId, ScheduledTarget, RandomState>,
    services: HashMap<ServiceName, ScheduledService, RandomState>,
    shares: Shares<TargetId>,
}

#[derive(Clone, Debug)]
struct ScheduledTarget {
    due: Moment,
    share: Share,
    place: Place,
}

#[derive(Clone, Copy, Debug, Default)]
struct ScheduledService {
    targets: usize,
    /// When its next new target is due.
    newcomer_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Queued,
    Waiting,
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) target: TargetId,
    /// The share that the check counts in until [`Schedule::close`].
    pub(super) share: Share,
    /// The delay since the check was due, in milliseconds.
    pub(super) late: u64,
}

impl Schedule {
    /// Creates a schedule. `room` is the maximum number of open checks.
    pub(super) fn new(seed: u64, room: usize) -> Self {
        let (queue, targets, services) = (BTreeSet::new(), HashMap::default(), HashMap::default());
        Self { seed, queue, targets, services, shares: Shares::new(room) }
    }

    /// Schedules a target of the service soon: it is new, or its check has changed. A target with an open check is checked
    /// again after that check is closed.
    pub(super) fn enter(&mut self, target: TargetId, of: &ServiceName, interval: Duration, now: Moment) {
        let known = self.targets.get(&target);
        if known.is_some_and(|known| known.place != Place::Queued) {
            return;
        }
        let share = known.map_or_else(|| Share { service: of.clone(), was_silent: false }, |known| known.share.clone());
        let queued = known.map(|known| (known.due, target));
        let service = self.services.entry(of.clone()).or_default();
        match queued {
            Some(queued) => drop(self.queue.remove(&queued)),
            None => service.targets += 1,
        }
        let within = part(interval, 100);
        let mut due = service.newcomer_at.max(now);
        if due.0 >= now.0.saturating_add(within) {
            due = now.plus(self.hash(target, now) % within);
        } else {
            service.newcomer_at = due.plus(NEWCOMER_EVERY);
        }
        self.put(target, share, due);
    }

    fn put(&mut self, target: TargetId, share: Share, due: Moment) {
        self.queue.insert((due, target));
        self.targets.insert(target, ScheduledTarget { due, share, place: Place::Queued });
    }

    /// Removes a target that is no longer checked. Its open check stays open until it is closed.
    pub(super) fn leave(&mut self, target: TargetId) {
        let Some(known) = self.targets.remove(&target) else { return };
        self.queue.remove(&(known.due, target));
        if let Some(service) = self.services.get_mut(&known.share.service) {
            service.targets -= 1;
            if service.targets == 0 {
                self.services.remove(&known.share.service);
            }
        }
    }

    /// Returns the next target to check now. The caller repeats the call until the result is `None`.
    pub(super) fn next(&mut self, now: Moment) -> Option<Due> {
        while let Some((_, target)) = self.queue.first().copied().filter(|(due, _)| *due <= now) {
            self.queue.pop_first();
            if let Some(known) = self.targets.get_mut(&target) {
                known.place = Place::Waiting;
                self.shares.wait(&known.share, target);
            }
        }
        while let Some((share, target)) = self.shares.begin() {
            // A target that has left may still wait.
            let Some(known) = self.targets.get_mut(&target) else {
                self.shares.end(&share);
                continue;
            };
            known.place = Place::Open;
            return Some(Due { target, share, late: now.0.saturating_sub(known.due.0) });
        }
        None
    }

    /// Closes a check. `was_silent`: no answer arrived in time.
    pub(super) fn close(&mut self, asked: Due, was_silent: bool, interval: Duration, now: Moment) {
        let Due { target, mut share, late } = asked;
        self.shares.end(&share);
        if let Some(known) = self.targets.get(&target) {
            // Counted from the start of the check, so that slow answers do not stretch the interval.
            let due = known.due.plus(late + self.jittered(target, known.due, interval));
            share.was_silent = was_silent;
            self.put(target, share, due.max(now));
        }
    }

    fn hash(&self, target: TargetId, due: Moment) -> u64 {
        BuildHasherDefault::<DefaultHasher>::new().hash_one((self.seed, target, due))
    }

    fn jittered(&self, target: TargetId, due: Moment, interval: Duration) -> u64 {
        part(interval, 100 - JITTER_PERCENT + self.hash(target, due) % (2 * JITTER_PERCENT + 1))
    }

    /// Returns when the next target is due, unless a check is closed earlier.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.queue.first().map(|(due, _)| *due)
    }

    pub(super) const fn open(&self) -> usize {
        self.shares.open()
    }
}

/// Returns the minimum time between two checks with this interval, in milliseconds.
pub(super) fn shortest(interval: Duration) -> u64 {
    part(interval, 100 - JITTER_PERCENT)
}

fn part(interval: Duration, percent: u64) -> u64 {
    let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    (millis.saturating_mul(percent) / 100).max(1)
}

#[cfg(test)]
#[path = "tests/schedule.rs"]
mod tests;

//! The times of the checks. Pure: time and randomness are arguments.
//!
//! New targets are checked one after the other, a thousand a second, so that ten thousand of them cause no burst. After
//! that, each target has its own interval with a jitter of a tenth, so that targets that began together drift apart. A
//! target has at most one open check.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use foldhash::fast::RandomState;
use nodelb_core::model::moment::Moment;

use super::board::TargetId;

/// Time between two new targets in milliseconds.
const NEWCOMER_EVERY: u64 = 1;
/// Maximum deviation from an interval, in per cent.
const JITTER_PERCENT: u64 = 10;

#[derive(Debug)]
pub(super) struct Schedule {
    seed: u64,
    /// Maximum number of open checks per lane.
    room: usize,
    queue: BTreeSet<(Moment, TargetId)>,
    targets: HashMap<TargetId, ScheduledTarget, RandomState>,
    lanes: [Lane; 2],
    newcomer_at: Moment,
}

/// A queue of targets. Those that did not answer in time the last time have a lane of their own: a network that drops
/// all packets delays only its own targets.
#[derive(Debug, Default)]
struct Lane {
    /// Targets that are due but cannot be checked yet because the lane is full.
    waiting: VecDeque<TargetId>,
    open: usize,
}

#[derive(Clone, Copy, Debug)]
struct ScheduledTarget {
    due: Moment,
    lane: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Queued,
    Waiting,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) target: TargetId,
    /// The lane that the check counts as open in until [`Schedule::close`].
    pub(super) lane: usize,
    /// The delay since the check was due, in milliseconds.
    pub(super) late: u64,
}

impl Schedule {
    /// Creates a schedule. `room` is the maximum number of open checks in each of the two lanes.
    pub(super) fn new(seed: u64, room: usize) -> Self {
        let (queue, targets) = (BTreeSet::new(), HashMap::default());
        Self { seed, room: room.max(1), queue, targets, lanes: Default::default(), newcomer_at: Moment(0) }
    }

    /// Schedules a target soon: it is new, or its check has changed. A target with an open check is checked again after
    /// that check is closed.
    pub(super) fn enter(&mut self, target: TargetId, now: Moment) {
        let lane = match self.targets.get(&target) {
            Some(known) if known.place != Place::Queued => return,
            Some(known) => {
                self.queue.remove(&(known.due, target));
                known.lane
            }
            None => 0,
        };
        let due = self.newcomer_at.max(now);
        self.newcomer_at = due.plus(NEWCOMER_EVERY);
        self.put(target, lane, due);
    }

    fn put(&mut self, target: TargetId, lane: usize, due: Moment) {
        self.queue.insert((due, target));
        self.targets.insert(target, ScheduledTarget { due, lane, place: Place::Queued });
    }

    /// Removes a target that is no longer checked. Its open check stays open until it is closed.
    pub(super) fn leave(&mut self, target: TargetId) {
        if let Some(known) = self.targets.remove(&target) {
            self.queue.remove(&(known.due, target));
        }
    }

    /// Returns the next target to check now. The caller repeats the call until the result is `None`.
    pub(super) fn next(&mut self, now: Moment) -> Option<Due> {
        while let Some((_, target)) = self.queue.first().copied().filter(|(due, _)| *due <= now) {
            self.queue.pop_first();
            if let Some(known) = self.targets.get_mut(&target) {
                known.place = Place::Waiting;
                self.lanes[known.lane].waiting.push_back(target);
            }
        }
        let room = self.room;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            while lane.open < room
                && let Some(target) = lane.waiting.pop_front()
            {
                // A target that has left may still be in the queue.
                if let Some(known) = self.targets.get_mut(&target) {
                    known.place = Place::Open;
                    lane.open += 1;
                    return Some(Due { target, lane: number, late: now.0.saturating_sub(known.due.0) });
                }
            }
        }
        None
    }

    /// Closes a check. `was_silent`: no answer arrived in time.
    pub(super) fn close(&mut self, asked: Due, was_silent: bool, interval: Duration, now: Moment) {
        self.lanes[asked.lane].open -= 1;
        if let Some(known) = self.targets.get(&asked.target) {
            // Counted from the start of the check, so that slow answers do not stretch the interval.
            let due = known.due.plus(asked.late + self.jittered(asked.target, known.due, interval));
            self.put(asked.target, usize::from(was_silent), due.max(now));
        }
    }

    fn jittered(&self, target: TargetId, due: Moment, interval: Duration) -> u64 {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one((self.seed, target, due));
        part(interval, 100 - JITTER_PERCENT + hash % (2 * JITTER_PERCENT + 1))
    }

    /// Returns when the next target is due, unless a check is closed earlier.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.queue.first().map(|(due, _)| *due)
    }

    pub(super) fn open(&self) -> usize {
        self.lanes.iter().map(|lane| lane.open).sum()
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

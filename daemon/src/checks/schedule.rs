//! Who is asked when. Pure: time and chance come in as arguments.
//!
//! Newcomers are asked one after the other, a thousand a second, so that ten thousand of them are no burst; from then on
//! each in its own interval, give or take a tenth, so that those which have begun together drift apart. A target has at
//! most one question open.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use foldhash::fast::RandomState;
use nodelb_core::model::moment::Moment;

use super::board::TargetId;

/// From one newcomer to the next, in milliseconds.
const NEWCOMER_EVERY: u64 = 1;
/// By how many hundredths an interval may be shorter or longer.
const JITTER_PERCENT: u64 = 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Schedule {
    seed: u64,
    /// How many questions of one lane may be open.
    room: usize,
    queue: BTreeSet<(Moment, TargetId)>,
    targets: HashMap<TargetId, Target, RandomState>,
    lanes: [Lane; 2],
    /// When the next newcomer is due.
    newcomer_at: Moment,
}

/// Targets whose last question found no answer in time have a lane of their own: a network that has become a black hole
/// keeps its own targets waiting, and nobody else's.
#[derive(Debug, Default)]
struct Lane {
    /// Due, and not asked for want of room.
    waiting: VecDeque<TargetId>,
    open: usize,
}

#[derive(Clone, Copy, Debug)]
struct Target {
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

/// A target to be asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) target: TargetId,
    /// In which lane its question counts as open until it is [`Schedule::close`]d.
    pub(super) lane: usize,
    /// How long ago it should have been asked, in milliseconds.
    pub(super) late: u64,
}

impl Schedule {
    /// `room` is how many questions may be open in each of the two lanes.
    pub(super) fn new(seed: u64, room: usize) -> Self {
        let (queue, targets) = (BTreeSet::new(), HashMap::default());
        Self { seed, room: room.max(1), queue, targets, lanes: Default::default(), newcomer_at: Moment(0) }
    }

    /// Lets the target be asked soon: it is new, or is to be asked something else. One that is being asked is asked again
    /// when that is over.
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
        self.targets.insert(target, Target { due, lane, place: Place::Queued });
    }

    /// The target is not to be asked any more. A question that is open stays so until it is closed.
    pub(super) fn leave(&mut self, target: TargetId) {
        if let Some(known) = self.targets.remove(&target) {
            self.queue.remove(&(known.due, target));
        }
    }

    /// Whom to ask now: to be called until there is nobody.
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
                // One that has left is still in line.
                if let Some(known) = self.targets.get_mut(&target) {
                    known.place = Place::Open;
                    lane.open += 1;
                    return Some(Due { target, lane: number, late: now.0.saturating_sub(known.due.0) });
                }
            }
        }
        None
    }

    /// The question is over. `was_silent`: there was no answer in time.
    pub(super) fn close(&mut self, asked: Due, was_silent: bool, interval: Duration, now: Moment) {
        self.lanes[asked.lane].open -= 1;
        if let Some(known) = self.targets.get(&asked.target) {
            // Counted from when it was asked, so that slow answers do not stretch the interval.
            let due = known.due.plus(asked.late + self.jittered(asked.target, known.due, interval));
            self.put(asked.target, usize::from(was_silent), due.max(now));
        }
    }

    fn jittered(&self, target: TargetId, due: Moment, interval: Duration) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, target, due).hash(&mut hasher);
        part(interval, 100 - JITTER_PERCENT + hasher.finish() % (2 * JITTER_PERCENT + 1))
    }

    /// When there is next somebody to ask, unless a question is closed before.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// How many questions are open.
    pub(super) fn open(&self) -> usize {
        self.lanes.iter().map(|lane| lane.open).sum()
    }
}

/// The least time from one question to the next in this interval, in milliseconds.
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

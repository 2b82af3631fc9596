//! Where in the `slots` map each backend list lives. A list is a run: consecutive slots. A changed list gets a fresh
//! run; the old one rests until no BPF program can still be reading it, then is reused. Pure bookkeeping: whoever owns
//! the map owns one of these.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::moment::Moment;

/// How long a freed run rests, in milliseconds from the end of the round that freed it. A program that read the old view
/// word finishes within microseconds, so this is a margin of several orders of magnitude. It is no proof: a preempted
/// process may be off its CPU for longer, which is what [`Runs::wait_for_release`] is for.
pub const REST_MILLIS: u64 = 1_000;

/// Consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First slot.
    pub first: u32,
    /// How many; 0 is the empty run, which takes no room.
    pub len: u32,
}

/// A run that may still be read.
#[derive(Clone, Copy, Debug)]
struct Resting {
    run: Run,
    since: Moment,
    /// The number of the round that freed it.
    round: u64,
}

/// The free, used and resting parts of the `slots` map.
#[derive(Clone, Debug)]
pub struct Runs {
    /// What can be given out now.
    free: Extents,
    /// The same, and what rests: what can be given out once everything has rested.
    unused: Extents,
    /// Freed runs that may still be read, oldest first.
    resting: VecDeque<Resting>,
    /// How many rounds have ended.
    rounds: u64,
    /// In how many of them the owner knows that no program reads what they freed any more.
    released: u64,
    used: u32,
    resting_slots: u32,
}

impl Runs {
    /// An empty map of `limit` slots, whose freed runs rest by time alone: see [`Self::wait_for_release`].
    pub fn new(limit: u32) -> Self {
        let mut extents = Extents { limit, ..Extents::default() };
        extents.insert(Run { first: 0, len: limit });
        Self {
            free: extents.clone(),
            unused: extents,
            resting: VecDeque::new(),
            rounds: 0,
            released: u64::MAX,
            used: 0,
            resting_slots: 0,
        }
    }

    /// From now on a freed run is not reused before [`Self::release`] has named its round either, however long it rests.
    pub fn wait_for_release(&mut self) {
        self.released = 0;
    }

    /// Takes [`Self::wait_for_release`] back.
    pub fn rest_by_time_alone(&mut self) {
        self.released = u64::MAX;
    }

    /// No program reads anything any more that was freed in the first `rounds` rounds.
    pub fn release(&mut self, rounds: u64) {
        self.released = self.released.max(rounds);
    }

    /// How many rounds have ended: what [`Self::release`] counts.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Whether what was freed after so many rounds may be reused as far as [`Self::release`] goes.
    pub fn is_released(&self, round: u64) -> bool {
        round < self.released
    }

    /// Whether the round freed anything that rests.
    pub fn has_freed(&self, round: u64) -> bool {
        self.resting.back().is_some_and(|resting| resting.round >= round)
    }

    /// How many slots are in use, resting ones not counted.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many slots are resting.
    pub fn resting(&self) -> u32 {
        self.resting_slots
    }

    /// Takes the part of a map that is already in use, at start. False if it overlaps a used part or leaves the map:
    /// then the map's content is not to be trusted.
    #[must_use]
    pub fn reserve(&mut self, run: Run) -> bool {
        let is_free = run.len == 0 || self.free.cut(run) && self.unused.cut(run);
        if is_free {
            self.used += run.len;
        }
        is_free
    }

    /// A fresh run of `len` slots, or `None` if there is no room now (there may be after a rest).
    pub fn allocate(&mut self, len: u32, now: Moment) -> Option<Run> {
        if len == 0 {
            return Some(Run { first: 0, len: 0 });
        }
        self.wake(now);
        let run = self.free.best_fit(len)?;
        let is_unused = self.free.cut(run) && self.unused.cut(run);
        debug_assert!(is_unused, "what is free is unused");
        self.used += len;
        Some(run)
    }

    /// Whether there would be room for a run of `len` slots if everything had rested.
    pub fn has_room_after_rest(&self, len: u32) -> bool {
        self.unused.best_fit(len).is_some()
    }

    /// Gives the run back; it rests before it is reused.
    pub fn free(&mut self, run: Run, now: Moment) {
        if run.len > 0 {
            self.used -= run.len;
            self.resting_slots += run.len;
            self.unused.merge(run);
            self.resting.push_back(Resting { run, since: now, round: self.rounds });
        }
    }

    /// What was freed since the last call was in use until now: its rest begins.
    pub fn end_round(&mut self, ended: Moment) {
        let fresh = self.resting.iter_mut().rev().take_while(|resting| resting.round == self.rounds);
        fresh.for_each(|resting| resting.since = ended.max(resting.since));
        self.rounds += 1;
    }

    /// Gives back a run that no reader ever saw: it needs no rest.
    pub fn free_unpublished(&mut self, run: Run) {
        if run.len > 0 {
            self.used -= run.len;
            self.free.merge(run);
            self.unused.merge(run);
        }
    }

    fn wake(&mut self, now: Moment) {
        while let Some(&Resting { run, since, round }) = self.resting.front() {
            if !self.is_released(round) || since.plus(REST_MILLIS) > now {
                break;
            }
            self.resting.pop_front();
            self.resting_slots -= run.len;
            self.free.merge(run);
        }
    }
}

/// Parts of the map, never adjacent to each other.
#[derive(Clone, Debug, Default)]
struct Extents {
    limit: u32,
    /// By start.
    by_first: BTreeMap<u32, u32>,
    /// By length, for the best fit.
    by_len: BTreeSet<(u32, u32)>,
}

impl Extents {
    /// The first `len` slots of the shortest part that has so many.
    fn best_fit(&self, len: u32) -> Option<Run> {
        self.by_len.range((len, 0)..).next().map(|&(_, first)| Run { first, len })
    }

    /// Takes the run out; false if not all of it is there.
    fn cut(&mut self, run: Run) -> bool {
        let Some((&first, &len)) = self.by_first.range(..=run.first).next_back() else { return false };
        let (Some(end), Some(whole_end)) = (run.first.checked_add(run.len), first.checked_add(len)) else {
            return false;
        };
        if end > whole_end {
            return false;
        }
        self.remove(Run { first, len });
        self.insert(Run { first, len: run.first - first });
        self.insert(Run { first: end, len: whole_end - end });
        true
    }

    /// Puts the run in, in one piece with its neighbours.
    fn merge(&mut self, mut run: Run) {
        if let Some((&first, &len)) = self.by_first.range(..run.first).next_back()
            && first + len == run.first
        {
            self.remove(Run { first, len });
            run = Run { first, len: len + run.len };
        }
        if let Some((&first, &len)) = self.by_first.range(run.first..).next()
            && run.first + run.len == first
        {
            self.remove(Run { first, len });
            run.len += len;
        }
        debug_assert!(run.first + run.len <= self.limit, "a run inside the map");
        self.insert(run);
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.by_first.insert(run.first, run.len);
            self.by_len.insert((run.len, run.first));
        }
    }

    fn remove(&mut self, run: Run) {
        self.by_first.remove(&run.first);
        self.by_len.remove(&(run.len, run.first));
    }
}

#[cfg(test)]
mod tests;

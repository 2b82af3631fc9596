//! Where in the `slots` map each backend list lives. A list is a run: consecutive slots. A changed list gets a fresh
//! run; the old one rests until no BPF program can still be reading it, then is reused. Pure bookkeeping: whoever owns
//! the map owns one of these.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::datapath::Moment;

/// How long a freed run rests, in milliseconds. A program that read the old view word finishes within microseconds, so
/// this is a margin of several orders of magnitude, also for a virtual CPU that lost its time slice.
pub const REST_MILLIS: u64 = 1_000;

/// Consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First slot.
    pub first: u32,
    /// How many; 0 is the empty run, which takes no room.
    pub len: u32,
}

/// The free, used and resting parts of the `slots` map.
#[derive(Clone, Debug)]
pub struct Runs {
    limit: u32,
    /// Free extents by start, never adjacent to each other.
    free: BTreeMap<u32, u32>,
    /// The same extents by length, for the best fit.
    by_len: BTreeSet<(u32, u32)>,
    /// Freed runs that may still be read, oldest first.
    resting: VecDeque<(Moment, Run)>,
    used: u32,
}

impl Runs {
    /// An empty map of `limit` slots.
    pub fn new(limit: u32) -> Self {
        let mut runs =
            Self { limit, free: BTreeMap::new(), by_len: BTreeSet::new(), resting: VecDeque::new(), used: 0 };
        runs.insert_free(Run { first: 0, len: limit });
        runs
    }

    /// How many slots are in use, resting ones not counted.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many slots are resting.
    pub fn resting(&self) -> u32 {
        self.resting.iter().map(|(_, run)| run.len).sum()
    }

    /// Takes the part of a map that is already in use, at start. False if it overlaps a used part or leaves the map:
    /// then the map's content is not to be trusted.
    #[must_use]
    pub fn reserve(&mut self, run: Run) -> bool {
        if run.len == 0 {
            return true;
        }
        let Some((&first, &len)) = self.free.range(..=run.first).next_back() else { return false };
        let (Some(end), Some(free_end)) = (run.first.checked_add(run.len), first.checked_add(len)) else {
            return false;
        };
        if end > free_end {
            return false;
        }
        self.remove_free(Run { first, len });
        self.insert_free(Run { first, len: run.first - first });
        self.insert_free(Run { first: end, len: free_end - end });
        self.used += run.len;
        true
    }

    /// A fresh run of `len` slots, or `None` if there is no room now (there may be after a rest).
    pub fn allocate(&mut self, len: u32, now: Moment) -> Option<Run> {
        if len == 0 {
            return Some(Run { first: 0, len: 0 });
        }
        self.wake(now);
        let &(free_len, first) = self.by_len.range((len, 0)..).next()?;
        self.remove_free(Run { first, len: free_len });
        self.insert_free(Run { first: first + len, len: free_len - len });
        self.used += len;
        Some(Run { first, len })
    }

    /// Gives the run back; it rests before it is reused.
    pub fn free(&mut self, run: Run, now: Moment) {
        if run.len > 0 {
            self.used -= run.len;
            self.resting.push_back((now, run));
        }
    }

    /// Gives back a run that no reader ever saw: it needs no rest.
    pub fn free_unpublished(&mut self, run: Run) {
        if run.len > 0 {
            self.used -= run.len;
            self.merge_free(run);
        }
    }

    fn wake(&mut self, now: Moment) {
        while let Some(&(freed, run)) = self.resting.front() {
            if freed.plus(REST_MILLIS) > now {
                break;
            }
            self.resting.pop_front();
            self.merge_free(run);
        }
    }

    fn merge_free(&mut self, mut run: Run) {
        if let Some((&first, &len)) = self.free.range(..run.first).next_back()
            && first + len == run.first
        {
            self.remove_free(Run { first, len });
            run = Run { first, len: len + run.len };
        }
        if let Some((&first, &len)) = self.free.range(run.first..).next()
            && run.first + run.len == first
        {
            self.remove_free(Run { first, len });
            run.len += len;
        }
        debug_assert!(run.first + run.len <= self.limit, "a run inside the map");
        self.insert_free(run);
    }

    fn insert_free(&mut self, run: Run) {
        if run.len > 0 {
            self.free.insert(run.first, run.len);
            self.by_len.insert((run.len, run.first));
        }
    }

    fn remove_free(&mut self, run: Run) {
        self.free.remove(&run.first);
        self.by_len.remove(&(run.len, run.first));
    }
}

#[cfg(test)]
mod tests;

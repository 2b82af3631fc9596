//! The placement of backend lists in the `slots` map. A list is a run of consecutive slots. A changed list gets a new
//! run; the old one rests until no BPF program can still be reading it, and is then reused. This is bookkeeping only:
//! the owner of a map has one of these.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::moment::Moment;

/// The rest of a freed run, in milliseconds from the end of the round that freed it. A program that read the old view
/// word finishes within microseconds, so this is a margin of several orders of magnitude. It is no proof: a preempted
/// process may be off its CPU for longer, which [`Runs::wait_for_release`] takes into account.
pub const REST_MILLIS: u64 = 1_000;

/// The part of the map, as a divisor, that has no owner, so that lists can be written next to those that they replace.
const KEPT_FREE: u32 = 32;

/// The number of slots of a map of `limit` that can have an owner.
pub fn with_owner(limit: u32) -> u32 {
    limit - limit / KEPT_FREE
}

/// The number of slots that belong to the list of a service: as many as its longest one had. A backend that a drain or a
/// failed health check takes out of the list can come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owned(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The index of the first slot.
    pub first: u32,
    /// The number of slots; 0 is the empty run, which needs no space.
    pub len: u32,
}

/// A run that programs may still read.
#[derive(Clone, Copy, Debug)]
struct Resting {
    run: Run,
    since: Moment,
    /// The number of the round that freed it.
    round: u64,
}

/// The slots that a list needs: without a ring, and with it if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    pub list: u32,
    pub run: u32,
    pub owned: Owned,
}

/// The free, used and resting parts of the `slots` map.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The parts that can be assigned now.
    free: Extents,
    /// The free and the resting parts, which can be assigned once everything has rested.
    unused: Extents,
    /// The freed runs that programs may still read, oldest first.
    resting: VecDeque<Resting>,
    rounds: u64,
    /// The number of rounds known to have freed only what no program still reads.
    released: u64,
    used: u32,
    /// The sum of what is [`Owned`].
    owned: u32,
    resting_slots: u32,
}

impl Runs {
    /// An empty map of `limit` slots. Its freed runs rest by time alone: see [`Self::wait_for_release`].
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
            owned: 0,
            resting_slots: 0,
        }
    }

    /// From now on, a freed run is additionally not reused before [`Self::release`] has included its round.
    pub fn wait_for_release(&mut self) {
        self.released = 0;
    }

    /// Reverts [`Self::wait_for_release`].
    pub fn rest_by_time_alone(&mut self) {
        self.released = u64::MAX;
    }

    /// Records that no program still reads anything that was freed in the first `rounds` rounds.
    pub fn release(&mut self, rounds: u64) {
        self.released = self.released.max(rounds);
    }

    /// The number of completed rounds, to be passed to [`Self::release`] later.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Whether [`Self::release`] permits the reuse of what was freed in this round.
    pub fn is_released(&self, round: u64) -> bool {
        round < self.released
    }

    /// Whether anything that was freed in this round or later still rests.
    pub fn has_freed(&self, round: u64) -> bool {
        self.resting.back().is_some_and(|resting| resting.round >= round)
    }

    /// The number of slots in use, without resting ones.
    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn resting(&self) -> u32 {
        self.resting_slots
    }

    /// Reserves a part of the map that is already in use at the start, without making anything [`Owned`]. Returns
    /// false if it overlaps a used part or exceeds the map: then the content of the map cannot be trusted.
    #[must_use]
    pub fn reserve(&mut self, run: Run) -> bool {
        let is_free = run.len == 0 || self.free.cut(run) && self.unused.cut(run);
        if is_free {
            self.used += run.len;
        }
        is_free
    }

    /// A new run; `None` if there is no space now. There may be space after a rest. A list that is new or longer than ever
    /// gets only slots that no other one owns, and a ring leaves the part without an owner free.
    pub fn allocate(&mut self, need: Need, now: Moment) -> Option<Run> {
        if need.run == 0 {
            return Some(Run { first: 0, len: 0 });
        }
        if !self.may_take(need) {
            return None;
        }
        self.wake(now);
        let run = self.free.best_fit(need.run)?;
        let is_unused = self.free.cut(run) && self.unused.cut(run);
        debug_assert!(is_unused, "what is free is unused");
        self.used += need.run;
        Some(run)
    }

    fn may_take(&self, Need { list, run, owned }: Need) -> bool {
        let most = with_owner(self.free.limit);
        let more = list.saturating_sub(owned.0);
        (run == list || self.used.saturating_add(run) <= most) && (more == 0 || self.owned.saturating_add(more) <= most)
    }

    /// From now on, a list that owned these slots has `len`, without its ring.
    pub fn own(&mut self, owned: &mut Owned, len: u32) {
        self.owned += len.saturating_sub(owned.0);
        owned.0 = owned.0.max(len);
    }

    /// The service is deleted.
    pub fn disown(&mut self, owned: &mut Owned) {
        self.owned -= std::mem::take(owned).0;
    }

    /// Whether there would be space if everything had rested.
    pub fn has_room_after_rest(&self, need: Need) -> bool {
        self.may_take(need) && self.unused.best_fit(need.run).is_some()
    }

    /// Frees the run, which rests before it is reused.
    pub fn free(&mut self, run: Run, now: Moment) {
        if run.len > 0 {
            self.used -= run.len;
            self.resting_slots += run.len;
            self.unused.merge(run);
            self.resting.push_back(Resting { run, since: now, round: self.rounds });
        }
    }

    /// Starts the rest of the runs that were freed since the last call, because they were in use until now.
    pub fn end_round(&mut self, ended: Moment) {
        let fresh = self.resting.iter_mut().rev().take_while(|resting| resting.round == self.rounds);
        fresh.for_each(|resting| resting.since = ended.max(resting.since));
        self.rounds += 1;
    }

    /// Frees a run that was never published. It needs no rest.
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

/// Parts of the map that are never adjacent to each other.
#[derive(Clone, Debug, Default)]
struct Extents {
    limit: u32,
    /// The parts by first slot.
    by_first: BTreeMap<u32, u32>,
    /// The parts by length, to find the best fit.
    by_len: BTreeSet<(u32, u32)>,
}

impl Extents {
    /// The first `len` slots of the shortest part that is long enough.
    fn best_fit(&self, len: u32) -> Option<Run> {
        self.by_len.range((len, 0)..).next().map(|&(_, first)| Run { first, len })
    }

    /// Removes the run. Returns false if not all of it is present.
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

    /// Adds the run and merges it with adjacent parts.
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
#[path = "tests/runs.rs"]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);

fn id(number: u64) -> TargetId {
    TargetId(number)
}

/// Simulates a schedule in steps of a millisecond; `takes` returns how long a target needs and whether it was silent.
struct Play {
    schedule: Schedule,
    now: Moment,
    open: VecDeque<(Moment, Due, bool)>,
    /// When each target was checked.
    asked: BTreeMap<TargetId, Vec<u64>>,
    late: u64,
}

impl Play {
    fn new(room: usize, targets: u64) -> Self {
        let mut schedule = Schedule::new(7, room);
        (0..targets).for_each(|number| schedule.enter(id(number), Moment(0)));
        Self { schedule, now: Moment(0), open: VecDeque::new(), asked: BTreeMap::new(), late: 0 }
    }

    fn until(&mut self, end: u64, takes: impl Fn(TargetId) -> (u64, bool)) {
        while self.now.0 < end {
            let now = self.now;
            let over = self.open.iter().filter(|(at, ..)| *at <= now).copied().collect::<Vec<_>>();
            self.open.retain(|(at, ..)| *at > now);
            for (_, due, was_silent) in over {
                self.schedule.close(due, was_silent, INTERVAL, now);
            }
            while let Some(due) = self.schedule.next(now) {
                self.asked.entry(due.target).or_default().push(now.0);
                self.late += due.late;
                let (millis, was_silent) = takes(due.target);
                self.open.push_back((now.plus(millis), due, was_silent));
            }
            self.now = now.plus(1);
        }
    }

    /// Maximum number of checks in any 100 ms.
    fn peak(&self) -> usize {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        self.asked.values().flatten().for_each(|at| *counts.entry(at / 100).or_default() += 1);
        counts.into_values().max().unwrap_or(0)
    }
}

#[test]
fn ten_thousand_targets_are_no_burst_and_none_waits() {
    let mut play = Play::new(1_024, 10_000);
    play.until(60_000, |_| (1, false));
    assert_eq!(play.asked.len(), 10_000);
    assert_eq!(play.late, 0);
    assert!(play.peak() <= 200, "at most twice the mean of 100 in 100 ms: {}", play.peak());
    for asked in play.asked.values() {
        let gaps = asked.windows(2).map(|pair| pair[1] - pair[0]);
        assert!((5..=7).contains(&asked.len()), "{asked:?}");
        gaps.for_each(|gap| assert!((9_000..=11_000).contains(&gap), "{asked:?}"));
    }
}

#[test]
fn a_few_newcomers_are_asked_at_once() {
    let mut play = Play::new(1_024, 3);
    play.until(10, |_| (1, false));
    assert_eq!(play.asked.into_values().flatten().collect::<Vec<_>>(), [0, 1, 2]);
}

/// Half of the targets are behind a network that drops all packets, and only a few checks may be open. The other
/// targets are not affected after the silent ones are known.
#[test]
fn a_black_hole_delays_no_other_target() {
    let mut play = Play::new(20, 400);
    let is_silent = |target: TargetId| target.0.is_multiple_of(2);
    play.until(30_000, |target| if is_silent(target) { (2_000, true) } else { (1, false) });
    play.late = 0;
    play.asked.clear();
    play.until(130_000, |target| if is_silent(target) { (2_000, true) } else { (1, false) });
    let (silent, others): (Vec<_>, Vec<_>) = play.asked.iter().partition(|(target, _)| is_silent(**target));
    assert!(others.iter().all(|(_, asked)| asked.len() >= 9), "{others:?}");
    // 20 at a time, 2 s each, in 100 s.
    let count: usize = silent.iter().map(|(_, asked)| asked.len()).sum();
    assert!((900..=1_000).contains(&count), "the silent ones have their turns: {count}");
    assert!(silent.iter().all(|(_, asked)| asked.len() >= 3), "each of them: {silent:?}");
}

#[test]
fn another_interval_counts_at_once() {
    let mut schedule = Schedule::new(7, 8);
    schedule.enter(id(1), Moment(0));
    let due = schedule.next(Moment(0)).unwrap();
    schedule.close(due, false, Duration::from_secs(3_600), Moment(1));
    assert!(schedule.next(Moment(60_000)).is_none());
    schedule.enter(id(1), Moment(60_000));
    assert_eq!(schedule.next(Moment(60_000)).map(|due| due.target), Some(id(1)));
    assert!(schedule.next(Moment(60_000)).is_none(), "one question at a time");
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u64),
    Leave(u64),
    Begin,
    Close(prop::sample::Index, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..8_u64).prop_map(Step::Enter),
        1 => (0..8_u64).prop_map(Step::Leave),
        4 => Just(Step::Begin),
        4 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(index, was_silent)| Step::Close(index, was_silent)),
        3 => (0..20_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// In any order of events, there is at most one check per target, only targets that exist are checked, no limit is
    /// exceeded, no target is forgotten, and nothing is left at the end.
    #[test]
    fn no_target_is_checked_twice_or_forgotten(steps in prop::collection::vec(step(), 1..200)) {
        let (mut schedule, mut now) = (Schedule::new(1, 2), Moment(0));
        let (mut ids, mut open): (BTreeMap<u64, TargetId>, Vec<Due>) = Default::default();
        let mut last_id = 0;
        for step in steps {
            match step {
                Step::Enter(number) => {
                    // An id is never used again.
                    last_id += 1;
                    schedule.enter(*ids.entry(number).or_insert(id(last_id)), now);
                }
                Step::Leave(number) => if let Some(gone) = ids.remove(&number) {
                    schedule.leave(gone);
                },
                Step::Begin => if let Some(due) = schedule.next(now) {
                    prop_assert!(ids.values().any(|id| *id == due.target));
                    prop_assert!(open.iter().all(|other| other.target != due.target));
                    open.push(due);
                    prop_assert!(open.iter().filter(|other| other.lane == due.lane).count() <= 2);
                },
                Step::Close(index, was_silent) => if !open.is_empty() {
                    let due = open.swap_remove(index.index(open.len()));
                    schedule.close(due, was_silent, INTERVAL, now);
                },
                Step::Wait(millis) => now = now.plus(millis),
            }
            prop_assert_eq!(schedule.open(), open.len());
        }
        for due in open.drain(..) {
            schedule.close(due, false, INTERVAL, now);
        }
        now = now.plus(60_000);
        let mut asked = BTreeSet::new();
        while let Some(due) = schedule.next(now) {
            asked.insert(due.target);
            schedule.leave(due.target);
            schedule.close(due, false, INTERVAL, now);
        }
        prop_assert_eq!(asked, ids.into_values().collect::<BTreeSet<_>>());
        prop_assert!(schedule.queue.is_empty() && schedule.targets.is_empty() && schedule.open() == 0);
        prop_assert!(schedule.lanes.iter().all(|lane| lane.waiting.is_empty()));
    }
}

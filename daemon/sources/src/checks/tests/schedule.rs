use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);

fn id(number: u64) -> TargetId {
    TargetId(number)
}

fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

/// Simulates a schedule in steps of a millisecond; `takes` returns how long a target needs and whether it was silent.
struct Play {
    schedule: Schedule,
    now: Moment,
    open: VecDeque<(Moment, Due, bool)>,
    /// When each target was checked.
    asked: BTreeMap<TargetId, Vec<u64>>,
    late: u64,
    intervals: BTreeMap<ServiceName, Duration>,
}

impl Play {
    fn new(room: usize, targets: u64) -> Self {
        let mut play = Self::empty(room);
        play.enter("shop/web", 0..targets, INTERVAL);
        play
    }

    fn empty(room: usize) -> Self {
        let (schedule, now, open) = (Schedule::new(7, room), Moment(0), VecDeque::new());
        Self { schedule, now, open, asked: BTreeMap::new(), late: 0, intervals: BTreeMap::new() }
    }

    fn enter(&mut self, service: &str, targets: Range<u64>, interval: Duration) {
        self.intervals.insert(name(service), interval);
        targets.for_each(|number| self.schedule.enter(id(number), &name(service), interval, self.now));
    }

    fn until(&mut self, end: u64, takes: impl Fn(TargetId) -> (u64, bool)) {
        while self.now.0 < end {
            let now = self.now;
            let (over, open): (VecDeque<_>, _) =
                std::mem::take(&mut self.open).into_iter().partition(|(at, ..)| *at <= now);
            self.open = open;
            for (_, due, was_silent) in over {
                let interval = self.intervals[&due.share.service];
                self.schedule.close(due, was_silent, interval, now);
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
    // A quarter of the room for each half.
    let mut play = Play::new(80, 400);
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

/// Each new target of the node waited a millisecond for each other one.
#[test]
fn new_targets_of_one_service_delay_no_other_service() {
    let mut play = Play::empty(1_024);
    play.enter("b/big", 0..30_000, Duration::from_secs(30));
    play.until(5, |_| (1, false));
    play.enter("s/small", 30_000..30_002, Duration::from_secs(1));
    play.until(2_500, |_| (1, false));
    assert_eq!(play.asked[&id(30_000)].first(), Some(&5));
    assert_eq!(play.asked[&id(30_001)].first(), Some(&6));
    assert!(play.asked[&id(30_001)].len() >= 3, "{:?}", play.asked[&id(30_001)]);
}

/// A dead host was found ten seconds late, because 20,000 targets took 20 s one after the other.
#[test]
fn many_new_targets_are_all_checked_within_an_interval() {
    let mut play = Play::empty(1_024);
    play.enter("b/big", 0..20_000, Duration::from_secs(2));
    play.until(2_001, |_| (1, false));
    assert_eq!(play.asked.len(), 20_000);
}

/// 4,000 that do not answer for 10 s took all the room.
#[test]
fn silent_targets_of_one_service_delay_no_other_service() {
    let mut play = Play::empty(2_048);
    play.enter("evil/e", 0..4_000, Duration::from_secs(10));
    play.enter("shop/web", 4_000..4_002, Duration::from_secs(1));
    play.until(
        60_000,
        |target| if target.0 < 4_001 { (if target.0 < 4_000 { 10_000 } else { 500 }, true) } else { (1, false) },
    );
    for asked in [4_000, 4_001].map(|number| &play.asked[&id(number)]) {
        assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 1_100), "{asked:?}");
    }
}

#[test]
fn another_interval_counts_at_once() {
    let mut schedule = Schedule::new(7, 8);
    schedule.enter(id(1), &name("shop/web"), INTERVAL, Moment(0));
    let due = schedule.next(Moment(0)).unwrap();
    schedule.close(due, false, Duration::from_secs(3_600), Moment(1));
    assert!(schedule.next(Moment(60_000)).is_none());
    schedule.enter(id(1), &name("shop/web"), INTERVAL, Moment(60_000));
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
        let (mut schedule, mut now) = (Schedule::new(1, 4), Moment(0));
        let of = |number: u64| name(["a/x", "b/x", "b/y"][(number % 3) as usize]);
        let (mut ids, mut open): (BTreeMap<u64, TargetId>, Vec<Due>) = Default::default();
        let mut last_id = 0;
        for step in steps {
            match step {
                Step::Enter(number) => {
                    // An id is never used again.
                    last_id += 1;
                    schedule.enter(*ids.entry(number).or_insert(id(last_id)), &of(number), INTERVAL, now);
                }
                Step::Leave(number) => if let Some(gone) = ids.remove(&number) {
                    schedule.leave(gone);
                },
                Step::Begin => if let Some(due) = schedule.next(now) {
                    prop_assert!(ids.values().any(|id| *id == due.target));
                    prop_assert!(open.iter().all(|other| other.target != due.target));
                    open.push(due.clone());
                    prop_assert!(open.len() <= 4);
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
        prop_assert!(schedule.queue.is_empty() && schedule.targets.is_empty() && schedule.services.is_empty());
        prop_assert_eq!(schedule.open(), 0);
    }

    /// Whatever another tenant has, checks of a service begin when they would without it.
    #[test]
    fn a_neighbour_changes_no_time(
        services in prop::collection::vec((1_u64..60, 1_u64..4_000, any::<bool>(), 100_u64..5_000), 0..12),
        is_same_namespace in any::<bool>(),
        starts in 0_u64..500,
    ) {
        let namespace = if is_same_namespace { "a" } else { "b" };
        let play = |has_neighbour: bool| {
            // Eight of the own ones are open at most. The services of one namespace have half of the room together.
            let mut play = Play::empty(64);
            let mut takes: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            let mut first = 100;
            for (number, (count, millis, was_silent, interval)) in services.iter().enumerate().filter(|_| has_neighbour) {
                play.enter(&format!("{namespace}/x{number}"), first..first + count, Duration::from_millis(*interval));
                takes.extend((first..first + count).map(|target| (target, (*millis, *was_silent))));
                first += count;
            }
            let takes = |target: TargetId| takes.get(&target.0).copied().unwrap_or((1, false));
            play.until(starts, takes);
            play.enter("a/own", 0..4, Duration::from_millis(700));
            play.until(starts + 5_000, takes);
            play.asked.retain(|target, _| target.0 < 100);
            play.asked
        };
        let (with, without) = (play(true), play(false));
        if is_same_namespace {
            // It may wait until one of the same namespace has ended.
            prop_assert!(with.values().all(|asked| asked.len() >= 2) && without.len() == with.len());
        } else {
            prop_assert_eq!(with, without);
        }
    }
}

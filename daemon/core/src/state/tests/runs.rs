use super::{Need, Owned, REST_MILLIS, Run, Runs};
use crate::model::moment::Moment;

const NOW: Moment = Moment(0);
const RESTED: Moment = Moment(REST_MILLIS);

/// A list without a ring.
fn need(len: u32, owned: Owned) -> Need {
    Need { list: len, run: len, owned }
}

/// A reader may still have the old view word, so its slots must not be overwritten immediately.
#[test]
fn a_freed_run_rests_before_it_is_reused() {
    let mut runs = Runs::new(4);
    let run = runs.allocate(need(4, Owned::default()), NOW).expect("room");
    runs.free(run, NOW);
    assert_eq!((runs.used(), runs.resting()), (0, 4));
    assert_eq!(runs.allocate(need(1, Owned::default()), NOW), None);
    assert_eq!(runs.allocate(need(4, Owned::default()), RESTED), Some(run));
}

#[test]
fn adjacent_free_runs_merge() {
    let mut runs = Runs::new(6);
    let parts: Vec<Run> = (0..3).map(|_| runs.allocate(need(2, Owned::default()), NOW).expect("room")).collect();
    for part in [parts[1], parts[0], parts[2]] {
        runs.free(part, NOW);
    }
    assert_eq!(runs.allocate(need(6, Owned::default()), RESTED), Some(Run { first: 0, len: 6 }));
}

#[test]
fn an_unpublished_run_needs_no_rest() {
    let mut runs = Runs::new(2);
    let run = runs.allocate(need(2, Owned::default()), NOW).expect("room");
    runs.free_unpublished(run);
    assert_eq!(runs.allocate(need(2, Owned::default()), NOW), Some(run));
}

#[test]
fn the_empty_run_takes_no_room() {
    let mut runs = Runs::new(0);
    assert_eq!(runs.allocate(need(0, Owned::default()), NOW), Some(Run { first: 0, len: 0 }));
    assert_eq!(runs.allocate(need(1, Owned::default()), NOW), None);
}

#[test]
fn reserve_refuses_overlap_and_what_lies_outside() {
    let mut runs = Runs::new(10);
    assert!(runs.reserve(Run { first: 2, len: 3 }));
    assert!(!runs.reserve(Run { first: 4, len: 2 }), "overlap");
    assert!(!runs.reserve(Run { first: 8, len: 3 }), "outside");
    assert!(!runs.reserve(Run { first: u32::MAX, len: 3 }), "overflow");
    assert!(runs.reserve(Run { first: 5, len: 5 }));
    assert_eq!(runs.allocate(need(2, Owned::default()), NOW), Some(Run { first: 0, len: 2 }));
    assert_eq!(runs.allocate(need(1, Owned::default()), NOW), None);
}

/// However long it has rested: a process may be off its CPU for longer than any fixed time.
#[test]
fn a_run_that_must_be_released_is_not_reused_before_it_is() {
    let mut runs = Runs::new(4);
    runs.wait_for_release();
    let run = runs.allocate(need(4, Owned::default()), NOW).expect("room");
    runs.free(run, NOW);
    runs.end_round(NOW);
    assert_eq!(runs.allocate(need(1, Owned::default()), Moment(1_000_000)), None);
    assert!(runs.has_room_after_rest(need(4, Owned::default())));
    runs.release(runs.rounds());
    assert_eq!(runs.allocate(need(4, Owned::default()), Moment(REST_MILLIS - 1)), None, "released, and not rested");
    assert_eq!(runs.allocate(need(4, Owned::default()), RESTED), Some(run));
}

#[test]
fn a_run_freed_after_the_release_was_asked_for_waits_for_the_next() {
    let mut runs = Runs::new(4);
    runs.wait_for_release();
    let (first, second) = (
        runs.allocate(need(2, Owned::default()), NOW).expect("room"),
        runs.allocate(need(2, Owned::default()), NOW).expect("room"),
    );
    runs.free(first, NOW);
    runs.end_round(NOW);
    let asked = runs.rounds();
    runs.free(second, NOW);
    runs.release(asked);
    runs.end_round(NOW);
    assert_eq!(runs.allocate(need(2, Owned::default()), RESTED), Some(first));
    assert_eq!(runs.allocate(need(1, Owned::default()), RESTED), None);
    runs.release(runs.rounds());
    assert_eq!(runs.allocate(need(2, Owned::default()), RESTED), Some(second));
}

/// One tenant's new lists took the last slot, and another one's list could not even become shorter.
#[test]
fn lists_get_no_slots_that_others_own() {
    let (mut runs, mut long, mut short) = (Runs::new(64), Owned::default(), Owned::default());
    assert_eq!(runs.allocate(need(63, long), NOW), None, "two have no owner");
    let run = runs.allocate(need(60, long), NOW).expect("room");
    runs.own(&mut long, 60);
    runs.allocate(need(2, short), NOW).expect("room");
    runs.own(&mut short, 2);
    assert_eq!(
        (runs.allocate(need(1, Owned::default()), NOW), runs.has_room_after_rest(need(1, Owned::default()))),
        (None, false)
    );
    assert_eq!(runs.allocate(need(3, short), NOW), None, "it never had as many");
    assert_eq!(runs.allocate(need(2, short), NOW), Some(Run { first: 62, len: 2 }));
    // It has become shorter, and may come back.
    runs.free(run, NOW);
    runs.own(&mut long, 1);
    assert_eq!(runs.allocate(need(1, Owned::default()), RESTED), None);
    assert_eq!(runs.allocate(need(60, long), RESTED), Some(run));
    runs.free(run, RESTED);
    runs.disown(&mut long);
    assert!(runs.has_room_after_rest(need(60, Owned::default())));
}

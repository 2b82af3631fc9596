use super::*;

const BEFORE: Time = Time(1_000);
const START: Time = Time(60_000);

fn key(reason: Reason, object: &str) -> (Reason, String) {
    (reason, object.to_owned())
}

fn full(since: Time) -> Found {
    (key(Reason::MapNearlyFull, "map slots"), Some(since))
}

fn earlier() -> Earlier {
    Earlier::new([(key(Reason::MapNearlyFull, "map slots"), BEFORE)], START)
}

fn since(earlier: &Earlier, ((reason, object), own): &Found) -> Option<Time> {
    earlier.since(*reason, object, *own)
}

/// MapNearlyFull, NodePortBound, and the problems of sources began with each start.
#[test]
fn a_problem_that_stood_before_the_start_has_not_begun_with_it() {
    let mut earlier = earlier();
    let found = full(START);
    for is_complete in [false, true, true] {
        assert_eq!(since(&earlier, &found), Some(BEFORE));
        earlier.note(std::slice::from_ref(&found), is_complete);
    }
    assert_eq!(earlier.beginnings(&[found]), [(key(Reason::MapNearlyFull, "map slots"), BEFORE)].into());
    let other = (key(Reason::MapNearlyFull, "map services"), Some(START));
    assert_eq!(since(&earlier, &other), Some(START));
}

#[test]
fn a_problem_that_has_ended_begins_again() {
    for ended in [Vec::new(), vec![full(Time(70_000))]] {
        let mut earlier = earlier();
        earlier.note(&[full(START)], false);
        earlier.note(&ended, false);
        assert_eq!(since(&earlier, &full(Time(70_000))), Some(Time(70_000)), "{ended:?}");
    }
    // It began again between two looks.
    let mut earlier = earlier();
    earlier.note(&[full(START)], true);
    assert_eq!(since(&earlier, &full(Time(70_000))), Some(Time(70_000)));
}

#[test]
fn what_is_not_found_until_everything_was_looked_for_has_ended() {
    let mut earlier = earlier();
    earlier.note(&[], false);
    assert_eq!(since(&earlier, &full(START)), Some(BEFORE));
    assert_eq!(earlier.beginnings(&[]).len(), 1, "the next run needs it, if this one ends now");
    earlier.note(&[], true);
    assert_eq!(since(&earlier, &full(START)), Some(START));
}

#[test]
fn the_file_is_not_trusted() {
    let many = (0..5_000).map(|number| (key(Reason::FileNotServed, &number.to_string()), BEFORE));
    assert_eq!(Earlier::new(many, START).0.len(), MAX_PROBLEMS);
    let wrong =
        [(key(Reason::MapNearlyFull, "map slots"), Time(START.0 + 1)), (key(Reason::Held, &"x".repeat(2_000)), BEFORE)];
    assert_eq!(Earlier::new(wrong, START), Earlier::default());
}

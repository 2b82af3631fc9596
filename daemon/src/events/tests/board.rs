use super::*;

fn seen(troubles: &[(&str, Reason)], with_backends: &[&str]) -> Seen {
    let name = |text: &str| text.parse::<ServiceName>().unwrap();
    Seen {
        troubles: troubles.iter().map(|(service, reason)| ((name(service), *reason), "why".to_owned())).collect(),
        with_backends: with_backends.iter().map(|service| name(service)).collect(),
    }
}

/// The start of the daemon in these tests, in seconds since 1970.
const START: u64 = 1_700_000_000;

fn at(now: u64) -> Now {
    Now { since_start: now, unix: START + now }
}

/// A board for a node with no delay in addition to [`SETTLED`].
fn board() -> Board {
    Board { settled: SETTLED, ..Board::new("n1") }
}

fn tell(board: &mut Board, now: u64, seen: &Seen) -> Vec<Due> {
    let due = board.look(at(now), seen);
    for due in &due {
        board.attempted(now);
        board.reported(due, now);
    }
    due
}

#[test]
fn a_problem_is_reported_when_it_lasts_and_then_every_few_minutes() {
    let mut board = board();
    let held = seen(&[("shop/web", Reason::BackendsHeld)], &["shop/web"]);
    assert!(tell(&mut board, 100, &held).is_empty(), "it may be over in a moment");
    let first = tell(&mut board, 110, &held);
    assert_eq!((first.len(), first[0].count, first[0].first), (1, 1, START + 100));
    assert!((111..410).all(|now| tell(&mut board, now, &held).is_empty()));
    let again = tell(&mut board, 410, &held);
    assert_eq!((again[0].count, &again[0].name), (2, &first[0].name));
    // It ends and returns: the same Event.
    assert!(tell(&mut board, 420, &seen(&[], &["shop/web"])).is_empty());
    assert!(tell(&mut board, 430, &held).is_empty());
    assert_eq!(tell(&mut board, 711, &held)[0].count, 3);
    // A long time later it is another Event.
    assert!(tell(&mut board, 10_000, &held).is_empty());
    let other = tell(&mut board, 10_010, &held);
    assert!(other[0].count == 1 && other[0].name != first[0].name, "{other:?}");
}

#[test]
fn what_could_not_be_written_is_due_again() {
    let mut board = board();
    let refused = seen(&[("shop/web", Reason::AddressRefused)], &[]);
    board.look(at(0), &refused);
    let due = board.look(at(20), &refused);
    assert_eq!(board.look(at(25), &refused), due, "the same, with the same name");
    board.reported(&due[0], 25);
    board.forget(&due[0]);
    assert!(board.look(at(30), &refused).is_empty());
    let first = board.look(at(40), &refused);
    assert_eq!((first[0].count, first[0].first), (1, START + 30), "forgotten, so it is the first of its kind");
}

#[test]
fn only_who_had_backends_can_be_without_them() {
    let mut board = board();
    let empty = seen(&[("shop/web", Reason::NoBackends)], &[]);
    assert!((0..1000).all(|now| tell(&mut board, now, &empty).is_empty()), "scaled to none from the start");
    tell(&mut board, 1000, &seen(&[], &["shop/web"]));
    tell(&mut board, 1001, &empty);
    assert_eq!(tell(&mut board, 1011, &empty).len(), 1);
    // The service is deleted and created again, without backends.
    tell(&mut board, 1020, &seen(&[], &[]));
    assert!(board.had_backends.is_empty());
}

#[test]
fn a_storm_is_reported_in_small_batches() {
    let mut board = board();
    let names: Vec<String> = (0..500).map(|n| format!("shop/s{n:03}")).collect();
    let troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    let storm = seen(&troubles, &[]);
    tell(&mut board, 0, &storm);
    let mut reported = 0;
    for now in 10..310 {
        reported += u64::try_from(tell(&mut board, now, &storm).len()).unwrap();
        assert!(reported <= BURST + (now - 10) / ONE_MORE + 1, "{reported} at {now}");
    }
    assert!(reported >= BURST + 20, "and they are reported: {reported}");
}

#[test]
fn what_ended_unreported_starts_again() {
    let mut board = board();
    let refused = seen(&[("shop/web", Reason::AddressRefused)], &[]);
    for now in (0..100).step_by(10) {
        assert!(tell(&mut board, now, &refused).is_empty(), "it flaps at {now}");
        tell(&mut board, now + 5, &seen(&[], &[]));
    }
    assert!(board.known.is_empty());
    tell(&mut board, 200, &refused);
    assert_eq!(tell(&mut board, 210, &refused)[0].first, START + 200);
    // A reported problem must also last for the full time again when it returns.
    tell(&mut board, 300, &seen(&[], &[]));
    assert!(tell(&mut board, 900, &refused).is_empty());
    let again = tell(&mut board, 910, &refused);
    assert_eq!((again[0].count, again[0].first), (2, START + 200));
}

#[test]
fn what_is_not_taken_makes_room_for_the_others() {
    let mut board = board();
    let both = seen(&[("a/web", Reason::AddressRefused), ("b/web", Reason::AddressRefused)], &[]);
    board.look(at(0), &both);
    let due = board.look(at(10), &both);
    assert_eq!(due.len(), 2);
    board.put_off(&due[0], 10 + 3_600);
    assert_eq!(board.look(at(12), &both), due[1..]);
    // It is not reported even if it ends and returns.
    board.look(at(20), &seen(&[], &[]));
    board.look(at(30), &both);
    assert!(board.look(at(60), &both).iter().all(|due| &*due.service.namespace == "b"));
    board.look(at(3_600), &both);
    let later = board.look(at(3_700), &both);
    assert_eq!((later[0].count, later[0].first), (1, START + 30));
}

#[test]
fn attempts_use_up_the_room() {
    let mut board = board();
    let names: Vec<String> = (0..50).map(|n| format!("shop/s{n:03}")).collect();
    let troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    let storm = seen(&troubles, &[]);
    board.look(at(0), &storm);
    let due = board.look(at(10), &storm);
    assert_eq!(due.len() as u64, BURST);
    due.iter().for_each(|_| board.attempted(10));
    assert!(board.look(at(12), &storm).is_empty(), "none was reported, and there is no room left");
}

#[test]
fn a_step_of_the_clock_of_the_world_tells_nothing() {
    let mut board = board();
    let refused = seen(&[("shop/web", Reason::AddressRefused)], &[]);
    board.look(Now { since_start: 0, unix: 5 }, &refused);
    assert!(board.look(Now { since_start: 2, unix: START }, &refused).is_empty());
    let due = board.look(Now { since_start: 10, unix: 0 }, &refused);
    assert_eq!((due.len(), due[0].first), (1, 5));
}

#[test]
fn nodes_do_not_all_tell_at_once() {
    let settled: BTreeSet<u64> = (0..200).map(|n| Board::new(&format!("node-{n}")).settled).collect();
    assert!(settled.len() > 40 && settled.iter().all(|it| (SETTLED..=SETTLED + SPREAD).contains(it)), "{settled:?}");
}

/// A reload of `node.name`: Events name their reporter, so those with the old name no longer belong to this node.
#[test]
fn a_renamed_node_reports_again_in_its_new_name() {
    let mut board = board();
    let held = seen(&[("shop/web", Reason::BackendsHeld)], &["shop/web"]);
    tell(&mut board, 100, &held);
    let before = tell(&mut board, 110, &held);
    board.rename("n2");
    board.settled = SETTLED;
    assert!(tell(&mut board, 111, &held).is_empty());
    let after = tell(&mut board, 121, &held);
    assert_eq!((after.len(), after[0].count), (1, 1));
    assert_ne!(after[0].name, before[0].name);
    let without = seen(&[("shop/web", Reason::NoBackends)], &[]);
    tell(&mut board, 130, &without);
    assert_eq!(tell(&mut board, 140, &without).len(), 1, "that it had backends is still known");
}

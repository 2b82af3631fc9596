use super::*;

fn seen(troubles: &[(&str, Reason)], with_backends: &[&str]) -> Seen {
    let name = |text: &str| text.parse::<ServiceName>().unwrap();
    Seen {
        troubles: troubles.iter().map(|(service, reason)| ((name(service), *reason), "why".to_owned())).collect(),
        with_backends: with_backends.iter().map(|service| name(service)).collect(),
    }
}

fn tell(board: &mut Board, now: u64, seen: &Seen) -> Vec<Due> {
    let due = board.look(now, seen);
    due.iter().for_each(|due| board.told(due, now));
    due
}

#[test]
fn a_trouble_is_told_when_it_stays_and_then_every_few_minutes() {
    let mut board = Board::new("n1");
    let held = seen(&[("shop/web", Reason::BackendsHeld)], &["shop/web"]);
    assert!(tell(&mut board, 100, &held).is_empty(), "it may be over in a moment");
    let first = tell(&mut board, 110, &held);
    assert_eq!((first.len(), first[0].count, first[0].first), (1, 1, 100));
    assert!((111..410).all(|now| tell(&mut board, now, &held).is_empty()));
    let again = tell(&mut board, 410, &held);
    assert_eq!((again[0].count, &again[0].name), (2, &first[0].name));
    // It ends and comes back: the same Event.
    assert!(tell(&mut board, 420, &seen(&[], &["shop/web"])).is_empty());
    assert!(tell(&mut board, 430, &held).is_empty());
    assert_eq!(tell(&mut board, 711, &held)[0].count, 3);
    // Long after it is another one.
    assert!(tell(&mut board, 10_000, &held).is_empty());
    let other = tell(&mut board, 10_010, &held);
    assert!(other[0].count == 1 && other[0].name != first[0].name, "{other:?}");
}

#[test]
fn what_could_not_be_written_is_due_again() {
    let mut board = Board::new("n1");
    let refused = seen(&[("shop/web", Reason::AddressRefused)], &[]);
    board.look(0, &refused);
    let due = board.look(20, &refused);
    assert_eq!(board.look(25, &refused), due, "the same, with the same name");
    board.told(&due[0], 25);
    board.forget(&due[0]);
    assert!(board.look(30, &refused).is_empty());
    let first = board.look(40, &refused);
    assert_eq!((first[0].count, first[0].first), (1, 30), "forgotten, so it is the first of its kind");
}

#[test]
fn only_who_had_backends_can_be_without_them() {
    let mut board = Board::new("n1");
    let empty = seen(&[("shop/web", Reason::NoBackends)], &[]);
    assert!((0..1000).all(|now| tell(&mut board, now, &empty).is_empty()), "scaled to none from the start");
    tell(&mut board, 1000, &seen(&[], &["shop/web"]));
    tell(&mut board, 1001, &empty);
    assert_eq!(tell(&mut board, 1011, &empty).len(), 1);
    // The service is deleted and made again, with nothing behind it.
    tell(&mut board, 1020, &seen(&[], &[]));
    assert!(board.had_backends.is_empty());
}

#[test]
fn a_storm_is_told_in_drops() {
    let mut board = Board::new("n1");
    let names: Vec<String> = (0..500).map(|n| format!("shop/s{n:03}")).collect();
    let troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    let storm = seen(&troubles, &[]);
    tell(&mut board, 0, &storm);
    let mut told = 0;
    for now in 10..310 {
        told += u64::try_from(tell(&mut board, now, &storm).len()).unwrap();
        assert!(told <= BURST + (now - 10) / ONE_MORE + 1, "{told} at {now}");
    }
    assert!(told >= BURST + 20, "and they are told: {told}");
}

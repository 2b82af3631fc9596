use super::*;

fn drained(text: &str) -> Drained {
    text.parse().expect("a backend")
}

#[test]
fn a_backend_has_a_port_or_all_ports_of_its_address() {
    for (text, shown) in [
        ("192.0.2.11", "192.0.2.11"),
        ("192.0.2.11:8080", "192.0.2.11:8080"),
        ("2001:db8::11", "2001:db8::11"),
        ("[2001:db8::11]", "2001:db8::11"),
        ("[2001:db8::11]:8080", "[2001:db8::11]:8080"),
    ] {
        assert_eq!(drained(text).to_string(), shown);
    }
    for text in [
        "",
        "web",
        "192.0.2.11:",
        "192.0.2.11:65536",
        "192.0.2.11:80/TCP",
        "192.0.2.0/24",
        "[192.0.2.11]",
        "[fe80::1%1]:80",
    ] {
        assert!(text.parse::<Drained>().is_err(), "{text}");
    }
}

#[test]
fn the_drain_of_a_port_is_found_and_no_other_address_is_drained() {
    let drain = |by: &str| Drain { by: by.into(), since: 0, until: None };
    let drains = Drains::from([
        (drained("192.0.2.11"), drain("all")),
        (drained("192.0.2.11:80"), drain("one")),
        (drained("192.0.2.12:80"), drain("other")),
    ]);
    let by = |addr: &str, port| find(&drains, (addr.parse().expect("an address"), port)).map(|drain| &*drain.by);
    assert_eq!([by("192.0.2.11", 80), by("192.0.2.11", 81)], [Some("one"), Some("all")]);
    assert_eq!([by("192.0.2.12", 80), by("192.0.2.12", 81)], [Some("other"), None]);
    assert_eq!(by("192.0.2.1", 80), None);
}

#[test]
fn a_drain_shows_its_author_and_its_end() {
    let (by, since) = ("root (login alice)".into(), 1_763_640_184);
    let drain = Drain { by, since, until: Some(since + 5_400) };
    assert_eq!(drain.to_string(), "drained by root (login alice) until 2025-11-20T13:33:04Z");
    assert_eq!(drain.length().as_deref(), Some("1h30m"));
    assert!(!drain.is_over(since + 5_399) && drain.is_over(since + 5_400));
    let endless = Drain { until: None, ..drain };
    assert_eq!(endless.to_string(), "drained by root (login alice) until nodelb undrain");
    assert!(endless.length().is_none() && !endless.is_over(u64::MAX));
}

#[test]
fn of_two_drains_of_a_backend_the_later_end_counts() {
    let drain = |by: &str, until| Drain { by: by.into(), since: 0, until };
    let (all, one) = (drained("192.0.2.11"), drained("192.0.2.11:80"));
    for (of_all, of_one, expected) in
        [(Some(9), Some(3), "all"), (Some(3), Some(9), "one"), (None, Some(9), "all"), (Some(9), None, "one")]
    {
        let drains = Drains::from([(all, drain("all", of_all)), (one, drain("one", of_one))]);
        assert_eq!(find(&drains, (one.addr, 80)).map(|drain| &*drain.by), Some(expected), "{of_all:?} {of_one:?}");
    }
    let other = drained("192.0.2.11:81");
    let drains = Drains::from([all, one, other, drained("192.0.2.12")].map(|backend| (backend, drain("root", None))));
    let others = |backend| overlapping(&drains, backend).map(|(other, _)| *other).collect::<Vec<_>>();
    assert_eq!((others(all), others(one)), (vec![one, other], vec![all]));
}

use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::FrontendKind;

use super::*;

fn problems(texts: &[(&str, Reason)], with_backends: &[&str]) -> Problems {
    let name = |text: &str| text.parse::<ServiceName>().unwrap();
    Problems {
        texts: texts.iter().map(|(service, reason)| ((name(service), *reason), "why".to_owned())).collect(),
        with_backends: with_backends.iter().map(|service| name(service)).collect(),
    }
}

/// The start of the daemon in these tests, in seconds since 1970.
const START: u64 = 1_700_000_000;

fn at(now: u64) -> Now {
    Now { since_start: now, unix: START + now }
}

/// A recorder for a node with no delay in addition to [`MIN_DURATION`].
fn recorder() -> Recorder {
    Recorder { delay: MIN_DURATION, ..Recorder::new("n1") }
}

/// Writes every Event that is due.
fn write(recorder: &mut Recorder, now: u64, problems: &Problems) -> Vec<Due> {
    let due = recorder.due(at(now), problems);
    due.iter().for_each(|due| recorder.record(due, now, Outcome::Written));
    due
}

fn key(due: Due) -> Key {
    (due.service, due.reason)
}

#[test]
fn a_problem_is_reported_when_it_lasts_and_then_every_few_minutes() {
    let mut recorder = recorder();
    let held = problems(&[("shop/web", Reason::BackendsHeld)], &["shop/web"]);
    assert!(write(&mut recorder, 100, &held).is_empty(), "it may be over in a moment");
    let first = write(&mut recorder, 110, &held);
    assert_eq!((first.len(), first[0].count, first[0].first), (1, 1, START + 100));
    assert!((111..410).all(|now| write(&mut recorder, now, &held).is_empty()));
    let again = write(&mut recorder, 410, &held);
    assert_eq!((again[0].count, &again[0].name), (2, &first[0].name));
    // It ends and returns: the same Event.
    assert!(write(&mut recorder, 420, &problems(&[], &["shop/web"])).is_empty());
    assert!(write(&mut recorder, 430, &held).is_empty());
    assert_eq!(write(&mut recorder, 711, &held)[0].count, 3);
    // A long time later it is another Event.
    assert!(write(&mut recorder, 10_000, &held).is_empty());
    let other = write(&mut recorder, 10_010, &held);
    assert!(other[0].count == 1 && other[0].name != first[0].name, "{other:?}");
}

#[test]
fn what_could_not_be_written_is_due_again() {
    let mut recorder = recorder();
    let refused = problems(&[("shop/web", Reason::AddressRefused)], &[]);
    recorder.due(at(0), &refused);
    let due = recorder.due(at(20), &refused);
    assert_eq!(recorder.due(at(25), &refused), due, "the same, with the same name");
    recorder.record(&due[0], 25, Outcome::Written);
    recorder.record(&due[0], 25, Outcome::Rejected);
    assert!(recorder.due(at(30), &refused).is_empty());
    let first = recorder.due(at(40), &refused);
    assert_eq!((first[0].count, first[0].first), (1, START + 30), "forgotten, so it is the first of its kind");
}

#[test]
fn only_a_service_that_had_backends_can_lose_them() {
    let mut recorder = recorder();
    let empty = problems(&[("shop/web", Reason::NoBackends)], &[]);
    assert!((0..1000).all(|now| write(&mut recorder, now, &empty).is_empty()), "scaled to none from the start");
    write(&mut recorder, 1000, &problems(&[], &["shop/web"]));
    write(&mut recorder, 1001, &empty);
    assert_eq!(write(&mut recorder, 1011, &empty).len(), 1);
    // The service is deleted and created again, without backends.
    write(&mut recorder, 1020, &problems(&[], &[]));
    assert!(recorder.had_backends.is_empty());
}

#[test]
fn a_storm_is_reported_at_a_limited_rate() {
    let mut recorder = recorder();
    let names: Vec<String> = (0..500).map(|n| format!("shop/s{n:03}")).collect();
    let troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    let storm = problems(&troubles, &[]);
    write(&mut recorder, 0, &storm);
    let mut written = 0;
    for now in 10..310 {
        written += u64::try_from(write(&mut recorder, now, &storm).len()).unwrap();
        assert!(written <= BURST + (now - 10) / ONE_MORE + 1, "{written} at {now}");
    }
    assert!(written >= BURST + 20, "and they are written: {written}");
}

#[test]
fn many_problems_of_a_namespace_do_not_delay_the_one_of_another() {
    let mut recorder = recorder();
    let names: Vec<String> = (0..500).map(|n| format!("a/s{n:03}")).collect();
    let mut troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    for now in 0..100 {
        write(&mut recorder, now, &problems(&troubles, &[]));
    }
    troubles.extend([("z/one", Reason::AddressRefused), ("z/two", Reason::AddressRefused)]);
    let mut written = Vec::new();
    for now in 100..100 + MIN_DURATION + 4 * ONE_MORE {
        written.extend(write(&mut recorder, now, &problems(&troubles, &[])));
    }
    let of_z = written.iter().filter(|due| &*due.service.namespace == "z").count();
    assert_eq!(of_z, 2, "in turn: {written:?}");
}

#[test]
fn a_namespace_that_fills_the_memory_costs_others_no_event() {
    let mut recorder = recorder();
    let names: Vec<String> = (0..MAX_KNOWN + 100).map(|n| format!("a/s{n:05}")).collect();
    let mut troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    write(&mut recorder, 0, &problems(&troubles, &[]));
    let reported: BTreeSet<_> = write(&mut recorder, 10, &problems(&troubles, &[])).into_iter().map(key).collect();
    assert_eq!((recorder.known.len(), reported.len() as u64), (MAX_KNOWN, BURST));
    let others = ["b/one", "z/one", "z/two"];
    troubles.extend(others.map(|name| (name, Reason::AddressRefused)));
    let times = (71..200).step_by(10);
    let written: Vec<Due> = times.flat_map(|now| write(&mut recorder, now, &problems(&troubles, &[]))).collect();
    let of_others: BTreeSet<String> = written.iter().map(|due| due.service.to_string()).collect();
    assert!(others.iter().all(|name| of_others.contains(*name)), "{of_others:?}");
    assert!(recorder.known.len() <= MAX_KNOWN);
    assert!(reported.iter().all(|key| recorder.known.contains_key(key)), "what was reported goes last");
    // Who stays is known for as long as the problem lasts.
    let known: BTreeSet<Key> = recorder.known.keys().cloned().collect();
    write(&mut recorder, 210, &problems(&troubles, &[]));
    assert_eq!(recorder.known.keys().cloned().collect::<BTreeSet<_>>(), known);
}

#[test]
fn namespaces_with_more_than_their_share_have_equally_many() {
    let all = |counts: &[usize]| share(counts.to_vec());
    assert_eq!(all(&[]), usize::MAX);
    assert_eq!(all(&[MAX_KNOWN / 2, MAX_KNOWN / 2]), usize::MAX);
    assert_eq!(all(&[MAX_KNOWN + 1]), MAX_KNOWN);
    assert_eq!(all(&[MAX_KNOWN, 1, MAX_KNOWN]), (MAX_KNOWN - 1) / 2);
    assert_eq!(all(&vec![3; MAX_KNOWN]), 1);
    assert_eq!(all(&vec![1; MAX_KNOWN + 1]), 1, "the first ones");
}

#[test]
fn a_problem_that_ends_unreported_starts_again() {
    let mut recorder = recorder();
    let refused = problems(&[("shop/web", Reason::AddressRefused)], &[]);
    for now in (0..100).step_by(10) {
        assert!(write(&mut recorder, now, &refused).is_empty(), "it flaps at {now}");
        write(&mut recorder, now + 5, &problems(&[], &[]));
    }
    assert!(recorder.known.is_empty());
    write(&mut recorder, 200, &refused);
    assert_eq!(write(&mut recorder, 210, &refused)[0].first, START + 200);
    // A reported problem must also last for the full time again when it returns.
    write(&mut recorder, 300, &problems(&[], &[]));
    assert!(write(&mut recorder, 900, &refused).is_empty());
    let again = write(&mut recorder, 910, &refused);
    assert_eq!((again[0].count, again[0].first), (2, START + 200));
}

#[test]
fn a_forbidden_event_does_not_block_the_others() {
    let mut recorder = recorder();
    let both = problems(&[("a/web", Reason::AddressRefused), ("b/web", Reason::AddressRefused)], &[]);
    recorder.due(at(0), &both);
    let due = recorder.due(at(10), &both);
    assert_eq!(due.len(), 2);
    recorder.record(&due[0], 10, Outcome::Forbidden { is_everywhere: false });
    assert!(!recorder.is_paused(11));
    assert_eq!(recorder.due(at(12), &both), due[1..]);
    // It is not reported even if it ends and returns.
    recorder.due(at(20), &problems(&[], &[]));
    recorder.due(at(30), &both);
    assert!(recorder.due(at(60), &both).iter().all(|due| &*due.service.namespace == "b"));
    recorder.due(at(3_600), &both);
    let later = recorder.due(at(3_700), &both);
    assert_eq!((&*later[1].service.namespace, later[1].count, later[1].first), ("a", 1, START + 30));
}

#[test]
fn attempts_use_up_the_rate_limit() {
    let mut recorder = recorder();
    let names: Vec<String> = (0..50).map(|n| format!("shop/s{n:03}")).collect();
    let troubles: Vec<_> = names.iter().map(|name| (name.as_str(), Reason::AddressRefused)).collect();
    let storm = problems(&troubles, &[]);
    recorder.due(at(0), &storm);
    let due = recorder.due(at(10), &storm);
    assert_eq!(due.len() as u64, BURST);
    due.iter().for_each(|due| recorder.record(due, 10, Outcome::Failed { retry_after: 0 }));
    assert!(recorder.due(at(12), &storm).is_empty(), "none was written, and there is no room left");
}

#[test]
fn a_step_of_the_wall_clock_reports_nothing() {
    let mut recorder = recorder();
    let refused = problems(&[("shop/web", Reason::AddressRefused)], &[]);
    recorder.due(Now { since_start: 0, unix: 5 }, &refused);
    assert!(recorder.due(Now { since_start: 2, unix: START }, &refused).is_empty());
    let due = recorder.due(Now { since_start: 10, unix: 0 }, &refused);
    assert_eq!((due.len(), due[0].first), (1, 5));
}

#[test]
fn nodes_do_not_all_report_at_once() {
    let delays: BTreeSet<u64> = (0..200).map(|n| Recorder::new(&format!("node-{n}")).delay).collect();
    assert!(
        delays.len() > 40 && delays.iter().all(|it| (MIN_DURATION..=MIN_DURATION + SPREAD).contains(it)),
        "{delays:?}"
    );
}

/// A reload of `node.name`: Events name their reporter, so those with the old name no longer belong to this node.
#[test]
fn a_renamed_node_reports_again_in_its_new_name() {
    let mut recorder = recorder();
    let held = problems(&[("shop/web", Reason::BackendsHeld)], &["shop/web"]);
    write(&mut recorder, 100, &held);
    let before = write(&mut recorder, 110, &held);
    recorder.set_node("");
    recorder.set_node("n2");
    recorder.delay = MIN_DURATION;
    assert!(write(&mut recorder, 111, &held).is_empty());
    let after = write(&mut recorder, 121, &held);
    assert_eq!((after.len(), after[0].count), (1, 1));
    assert_ne!(after[0].name, before[0].name);
    let without = problems(&[("shop/web", Reason::NoBackends)], &[]);
    write(&mut recorder, 130, &without);
    assert_eq!(write(&mut recorder, 140, &without).len(), 1, "that it had backends is still known");
}

fn due_now(recorder: &mut Recorder) -> Due {
    let held = problems(&[("shop/web", Reason::BackendsHeld)], &[]);
    recorder.due(at(0), &held);
    recorder.due(at(MIN_DURATION), &held).remove(0)
}

#[test]
fn an_event_that_is_forbidden_everywhere_pauses_all_events() {
    let mut recorder = recorder();
    let due = due_now(&mut recorder);
    recorder.record(&due, 7, Outcome::Forbidden { is_everywhere: true });
    assert!(recorder.is_paused(7 + FORBIDDEN_FOR - 1) && !recorder.is_paused(7 + FORBIDDEN_FOR));
}

#[test]
fn pauses_double_to_minutes() {
    let mut recorder = recorder();
    let due = due_now(&mut recorder);
    let mut pauses = Vec::new();
    let mut now = 0;
    for _ in 0..9 {
        recorder.record(&due, now, Outcome::Failed { retry_after: 0 });
        let until = (now..).find(|at| !recorder.is_paused(*at)).unwrap();
        pauses.push(until - now);
        now = until;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    recorder.record(&due, now, Outcome::Written);
    assert!(!recorder.is_paused(now));
    recorder.record(&due, now, Outcome::Failed { retry_after: 60 });
    assert!(recorder.is_paused(now + 59) && !recorder.is_paused(now + 60), "as long as it asks for");
}

fn row(service: &str, address: &str, status: Status, backends: &[&str]) -> FrontendReport {
    let parse = |text: &&str| text.parse::<L4Addr>().unwrap();
    FrontendReport {
        address: parse(&address),
        kind: FrontendKind::ClusterIP,
        service: service.parse().unwrap(),
        port: "http".into(),
        backends: backends.iter().map(parse).collect(),
        flags: Vec::new(),
        outside: nodelb_report::explain::rows::OutsideAccess::Off,
        status,
        since: Moment(0),
        error: status.is_denied().then(|| "because".to_owned()),
    }
}

#[test]
fn each_problem_is_reported_once_with_its_reason() {
    let rows = [
        row("shop/owner", "10.96.0.1:80/TCP", Status::Ok, &["10.1.0.1:80/TCP"]),
        row("shop/late", "10.96.0.1:80/TCP", Status::Conflict, &[]),
        row("shop/refused", "10.96.0.2:80/TCP", Status::Refused, &[]),
        row("shop/held", "10.96.0.3:80/TCP", Status::Held, &["10.1.0.2:80/TCP"]),
        row("shop/empty", "10.96.0.4:80/TCP", Status::NoBackends, &[]),
        row("shop/empty", "10.96.0.4:81/TCP", Status::NoBackends, &[]),
        row("shop/half", "10.96.0.5:80/TCP", Status::NoBackends, &[]),
        row("shop/half", "10.96.0.5:81/TCP", Status::Ok, &["10.1.0.3:80/TCP"]),
        row("file/refused", "10.96.0.6:80/TCP", Status::Refused, &[]),
    ];
    let found = Problems::of_rows(&rows, |name| &*name.namespace != "file", |row| row.backends.is_empty());
    let texts: Vec<String> = found
        .texts
        .iter()
        .map(|((service, reason), message)| format!("{service} {}: {message}", reason.as_ref()))
        .collect();
    assert_eq!(
        texts,
        [
            "shop/empty NoBackends: 10.96.0.4:80/TCP and every other address of the service have no backends any more",
            "shop/held BackendsHeld: 10.96.0.3:80/TCP: unknown reason",
            "shop/late AddressConflict: 10.96.0.1:80/TCP: because",
            "shop/refused AddressRefused: 10.96.0.2:80/TCP: because",
        ]
    );
    let with: Vec<String> = found.with_backends.iter().map(ToString::to_string).collect();
    assert_eq!(with, ["shop/half", "shop/held", "shop/owner"]);
}

#[test]
fn no_backend_on_this_node_is_not_no_backend() {
    let rows = [row("shop/local", "10.96.0.1:80/TCP", Status::NoBackends, &[])];
    let found = Problems::of_rows(&rows, |_| true, |_| false);
    assert!(found.texts.is_empty() && found.with_backends.len() == 1, "{found:?}");
}

#[test]
fn every_reason_is_in_the_catalogue() {
    for reason in [Reason::BackendsHeld, Reason::AddressRefused, Reason::AddressConflict, Reason::NoBackends] {
        let entry = nodelb_cli::diagnose::catalogue::find(reason.as_ref());
        assert!(entry.is_some_and(|entry| entry.source == "nodelb"), "{reason:?}");
    }
}

use super::*;
use crate::model::addr::{Family, L4Addr, Protocol};
use crate::model::cause::Cause;
use crate::model::service::{Origin, PortKey, Source};

#[path = "history/rig.rs"]
mod rig;
use rig::*;

fn of_service(history: &History, name: &str) -> Vec<u64> {
    sequences(history.of_service(&name.parse().expect("valid in a test")))
}

#[test]
fn a_busy_service_drops_only_its_own_oldest_records() {
    let mut history = History::default();
    history.add(changed("shop/quiet"), at(1));
    history.add(Event::for_daemon(What::Started, "for a test"), at(1));
    for _ in 0..1_000 {
        history.add(changed("shop/busy"), at(2));
    }
    assert_eq!(of_service(&history, "shop/quiet"), [1]);
    assert_eq!(of_service(&history, "shop/busy"), (971..=1_002).collect::<Vec<_>>());
    assert_eq!((history.len(), history.last()), (MAX_OF_SERVICE + 2, 1_002));
}

#[test]
fn the_oldest_of_all_goes_when_there_are_too_many() {
    let mut history = History::default();
    let services = MAX_RECORDS + 10;
    for number in 0..services {
        history.add(changed(&format!("shop/s{number}")), at(1));
    }
    assert_eq!(history.len(), MAX_RECORDS);
    assert!(of_service(&history, "shop/s9").is_empty());
    assert_eq!(of_service(&history, "shop/s10"), [11]);
    assert_eq!(history.by_service.len(), MAX_RECORDS, "no name stays behind");
    assert_eq!(history.sizes, OrdSet::from_iter([(MAX_RECORDS, "shop".into())]));
}

/// One change each of thousands of namespaces left no start of the daemon, so that it had not crashed.
#[test]
fn changes_of_services_drop_no_record_of_the_node() {
    let mut history = History::default();
    history.add(Event::for_daemon(What::Started, "for a test"), at(1));
    // Another program has deleted an entry of a service.
    history.add(event("shop/web", What::Repaired, Kernel::Done), at(1));
    for _ in 0..2 * MAX_OF_SERVICE {
        history.add(changed("shop/web"), at(1));
    }
    assert!(!of_service(&history, "shop/web").contains(&2), "the latest records of the service are others");
    for number in 0..2 * MAX_RECORDS {
        history.add(changed(&format!("n{number}/web")), at(2));
    }
    assert_eq!(sequences(history.of_node()), [2, 1]);
    assert_eq!(history.len(), MAX_RECORDS + 2);
    // Nor do records of the node drop those of another kind, or of services.
    for _ in 0..3 * MAX_OF_KIND {
        history.add(Event::for_daemon(What::Repaired, "again"), at(3));
    }
    assert_eq!((history.len(), sequences(history.after(0))[0]), (MAX_RECORDS + MAX_OF_KIND + 1, 1));
    history.add(Event::for_daemon(What::Stopped, "for a test"), at(4));
    assert_eq!(history.of_node().filter(|it| it.event.what != What::Repaired).count(), 2);
    assert_eq!(history.by_kind.len(), 2, "starts and stops are of one kind");
}

/// Of 10,000 changes in five minutes, the history has fewer than half.
#[test]
fn slow_changes_are_counted_however_many_there_are() {
    let mut history = History::default();
    let triggered = |at| Event {
        cause: Cause { origin: Origin { triggered: Some(at), ..Origin::default() }, is_removed: false },
        ..changed("shop/web")
    };
    let start = 1_000_000;
    for _ in 0..200 {
        history.add(triggered(start - SLOW - 1), at(start));
    }
    for number in 0..9_800 {
        history.add(triggered(start + number), at(start + number));
    }
    let expected = Latencies { measured: 10_000, slow: 200, last_slow: Some(start) };
    assert_eq!(history.latencies_since(start), expected);
    assert_eq!(history.latencies_since(start + 300_000), Latencies::default());
    history.add(triggered(start), at(start));
    assert_eq!(history.latencies_since(0).measured, 10_001);
    history.add(triggered(1_000), at(1_000));
    assert_eq!(history.latencies_since(0), Latencies { measured: 1, ..Latencies::default() }, "the clock was set back");
}

/// One tenant that changed 200 services all the time left no record of anything else.
#[test]
fn a_busy_namespace_drops_only_its_own_oldest_records() {
    let mut history = History::default();
    history.add(changed("shop/quiet"), at(1));
    history.add(Event::for_daemon(What::Started, "for a test"), at(1));
    for number in 0..3 * MAX_RECORDS {
        history.add(changed(&format!("busy/s{}", number % 200)), at(2));
    }
    assert_eq!(of_service(&history, "shop/quiet"), [1]);
    assert_eq!((history.len(), sequences(history.after(0))[..2].to_vec()), (MAX_RECORDS + 1, vec![1, 2]));
    // Two that are busy have the same share.
    for number in 0..3 * MAX_RECORDS {
        history.add(changed(&format!("loud/s{}", number % 200)), at(3));
    }
    assert_eq!(of_service(&history, "shop/quiet"), [1]);
    let of = |namespace: &str| {
        let is_of = |record: &&Arc<Record>| {
            record.event.port.as_ref().is_some_and(|port| &*port.service.namespace == namespace)
        };
        history.after(0).filter(is_of).count()
    };
    assert_eq!((of("busy"), of("loud")), (MAX_RECORDS / 2, MAX_RECORDS / 2 - 1));
    assert_eq!(history.by_namespace.len(), 3);
    assert_eq!(history.sizes.len(), 3);
}

#[test]
fn a_returning_reader_misses_no_retained_record() {
    let mut history = History::default();
    for _ in 0..3 {
        history.add(changed("shop/web"), at(1));
    }
    let before = history.clone();
    history.add(changed("shop/web"), at(2));
    assert_eq!(sequences(before.after(0)), [1, 2, 3]);
    assert_eq!(sequences(history.after(before.last())), [4]);
    assert!(sequences(history.after(4)).is_empty() && sequences(history.after(u64::MAX)).is_empty());
}

#[test]
fn the_latency_of_a_retried_operation_starts_at_its_first_attempt() {
    let mut history = History::default();
    let failed = || Kernel::Failed("map slots is full".into());
    history.add(event("shop/web", What::Changed, failed()), at(1_000));
    history.add(event("shop/other", What::Changed, Kernel::Done), at(1_500));
    history.add(event("shop/web", What::Changed, failed()), at(2_000));
    let healed = history.add(event("shop/web", What::Healed, Kernel::Done), at(3_000));
    assert_eq!(healed.to_kernel, Some(2_000_007));
    history.add(event("shop/web", What::Changed, failed()), at(4_000));
    let healed = history.add(event("shop/web", What::Healed, Kernel::Done), at(4_001));
    assert_eq!(healed.to_kernel, Some(1_007));
    let untouched = history.add(event("shop/web", What::Held, Kernel::Untouched), at(5_000));
    assert_eq!((untouched.to_kernel, untouched.to_owner), (None, None));
}

#[test]
fn the_latency_of_a_source_is_never_negative() {
    let mut history = History::default();
    let origin = |triggered| Origin { triggered: Some(triggered), ..Origin::default() };
    let triggered = |at| Event { cause: Cause { origin: origin(at), is_removed: false }, ..changed("shop/web") };
    assert_eq!(history.add(triggered(900), at(1_000)).to_owner, Some(100));
    assert_eq!(history.add(triggered(2_000), at(1_000)).to_owner, Some(0));
}

#[test]
fn numbers_go_on_where_an_earlier_run_ended() {
    let mut before = History::default();
    before.add(changed("shop/web"), at(1));
    let written: Vec<Record> = before.after(0).map(|record| Record::clone(record)).collect();
    let mut history = History::default();
    for record in written.iter().chain(&written) {
        history.restore(record.clone());
    }
    history.add(changed("shop/web"), at(2));
    let found: Vec<(u64, bool)> = history.after(0).map(|it| (it.sequence, it.is_from_before)).collect();
    assert_eq!(found, [(1, true), (2, false)]);
}

#[test]
fn what_no_nodelb_can_have_written_is_left_out() {
    let mut history = History::default();
    let record =
        |sequence, event| Record { sequence, at: 1, to_owner: None, to_kernel: None, is_from_before: false, event };
    let shown = vec![l4("192.0.2.1:1"); MAX_SHOWN + 1];
    let long: Arc<str> = "x".repeat(10_000).into();
    history.restore(record(0, changed("shop/web")));
    history.restore(record(u64::MAX, changed("shop/web")));
    history.restore(record(1, Event { added: Addresses { shown, more: 0 }, ..changed("shop/web") }));
    history.restore(record(2, Event { detail: Some(Arc::clone(&long)), ..changed("shop/web") }));
    history.restore(record(3, Event { kernel: Kernel::Failed(long), ..changed("shop/web") }));
    assert!(history.is_empty() && history.last() == 0);
}

#[test]
fn a_list_names_some_and_counts_the_others() {
    let addresses = (1..=40).map(|number| l4(&format!("192.0.2.{number}:80")));
    let list: Addresses = addresses.collect();
    assert_eq!((list.shown.len(), list.more), (MAX_SHOWN, 8));
}

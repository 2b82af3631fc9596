use nodelb_core::model::addr::Family;
use nodelb_core::model::service::Source;
use nodelb_core::state::owner::IdOwner;

use super::*;

fn key(service: &str, family: Family) -> Arc<PortKey> {
    let service = service.parse().unwrap();
    Arc::new(PortKey { service, port: "http".into(), protocol: Protocol::Tcp, family })
}

fn counted(id: u32, service: &str, translated: u64) -> (ServiceId, Arc<PortKey>, Count) {
    (ServiceId(id), key(service, Family::Ipv4), Count { translated, refused: 0 })
}

/// Lines such as `shop/web 12`, and the sum of the others.
fn reported(ledger: &Ledger) -> Vec<String> {
    let own = ledger.own().map(|(series, count)| format!("{} {}", series.service, count.translated));
    own.chain(ledger.other().map(|count| format!("other {}", count.translated))).collect()
}

#[test]
fn both_families_of_a_port_are_one_series() {
    let mut ledger = Ledger::new(10);
    let six = (ServiceId(2), key("shop/web", Family::Ipv6), Count { translated: 5, refused: 1 });
    ledger.take([counted(1, "shop/web", 7), six].into_iter());
    assert_eq!(ledger.own().map(|(_, count)| count).collect::<Vec<_>>(), [Count { translated: 12, refused: 1 }]);
}

#[test]
fn the_largest_get_a_series_and_keep_it() {
    let mut ledger = Ledger::new(2);
    ledger.take([counted(1, "a/a", 1), counted(2, "a/b", 9), counted(3, "a/c", 5)].into_iter());
    assert_eq!(reported(&ledger), ["a/b 9", "a/c 5", "other 1"]);
    ledger.take([counted(1, "a/a", 1_000), counted(2, "a/b", 9), counted(3, "a/c", 6)].into_iter());
    assert_eq!(reported(&ledger), ["a/b 9", "a/c 6", "other 1000"]);
}

/// The count of one service never appears under another, and no series decreases.
#[test]
fn an_id_that_changes_hands_starts_at_zero() {
    let mut ledger = Ledger::new(10);
    ledger.take([counted(1, "a/a", 100)].into_iter());
    ledger.take([counted(1, "a/b", 3)].into_iter());
    assert_eq!(reported(&ledger), ["a/a 100", "a/b 3"]);
    ledger.take([counted(1, "a/a", 2)].into_iter());
    assert_eq!(reported(&ledger), ["a/a 102", "a/b 3"]);
    ledger.take([counted(1, "a/a", 1)].into_iter());
    assert_eq!(reported(&ledger), ["a/a 103", "a/b 3"]);
}

/// What it had counted since the last request was lost, without a reset.
#[test]
fn a_port_that_is_made_again_keeps_what_it_had() {
    let snapshot = |id| {
        let owner = IdOwner { key: key("a/a", Family::Ipv4), source: Source::Files };
        let mut snapshot = Snapshot::default();
        snapshot.owners = [(ServiceId(id), owner)].into_iter().collect();
        snapshot
    };
    let count = |translated| Count { translated, refused: 0 };
    let mut ledger = Ledger::new(10);
    ledger.update(&snapshot(1), |_| count(15));
    ledger.update(&snapshot(2), |id| count(if id == ServiceId(1) { 35 } else { 4 }));
    assert_eq!(reported(&ledger), ["a/a 39"]);
    ledger.update(&snapshot(2), |_| count(4));
    assert_eq!(reported(&ledger), ["a/a 39"]);
}

/// For a service that continues to exist.
#[test]
fn a_port_that_is_gone_makes_room_and_takes_nothing_from_the_others() {
    let mut ledger = Ledger::new(1);
    ledger.take([counted(1, "a/a", 100), counted(2, "a/b", 7)].into_iter());
    assert_eq!(reported(&ledger), ["a/a 100", "other 7"]);
    let renamed = PortKey { port: "web".into(), ..PortKey::clone(&key("a/a", Family::Ipv4)) };
    ledger.end([&renamed, &*key("a/b", Family::Ipv4)].into_iter());
    ledger.take([(ServiceId(1), renamed.into(), Count { translated: 3, refused: 0 })].into_iter());
    assert_eq!(reported(&ledger), ["a/a 3", "other 7"]);
    assert!(ledger.own().all(|(series, _)| &*series.port == "web"));
}

#[test]
fn what_has_gone_makes_room_for_others() {
    let mut ledger = Ledger::new(1);
    ledger.take([counted(1, "a/a", 100)].into_iter());
    ledger.update(&Snapshot::default(), |_| Count::default());
    assert_eq!(reported(&ledger), Vec::<String>::new());
    ledger.take([counted(1, "a/b", 3)].into_iter());
    assert_eq!(reported(&ledger), ["a/b 3"]);
}

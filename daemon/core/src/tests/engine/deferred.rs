//! Operations that wait for further reports: how long they wait, and which events end the wait.

use super::*;
use crate::history::{Event, Kernel};

fn files(incomplete: Option<&str>) -> Change {
    Change::Synced { source: Source::Files, incomplete: incomplete.map(Arc::from) }
}

fn renamed(full: &str, frontend: &str) -> Service {
    let mut service = service(full, frontend);
    service.ports[0].name = "web".into();
    service
}

fn renamed_slice(full: &str, backends: &[&str]) -> Slice {
    let mut slice = slice(full, "a", backends);
    slice.ports[0].name = "web".into();
    slice
}

/// Maps with an address of the port `http` of shop/web, and an engine that starts with them.
fn restarted() -> (Engine, MemoryDatapath) {
    let (_, datapath) = serving("shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    (engine_with(&datapath), datapath)
}

/// The backends of a frontend in the maps.
fn backends(datapath: &MemoryDatapath, address: &str) -> Vec<String> {
    let state = datapath.dump().expect("readable");
    match trace(&state, &(30_000..=32_767), l4(address)) {
        Verdict::Forwarded(_, slots) => slots.iter().map(|slot| slot.addr.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// An unreadable file cannot describe another port of a service that a readable file describes.
#[test]
fn a_port_renamed_before_the_start_is_updated_while_another_file_is_unreadable() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(renamed("shop/web", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(renamed_slice("shop/web", &["192.0.2.2:80"])));
    engine.change(files(Some("b.toml: line 3")));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.2:80/TCP"]);
    engine.change(files(None));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.2:80/TCP"]);
    assert_eq!(datapath.dump().expect("readable").services.len(), 2, "the old entry is pruned");
}

/// Its backends may be in the file that cannot be read.
#[test]
fn a_port_renamed_before_the_start_is_not_emptied_while_another_file_is_unreadable() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(renamed("shop/web", "198.51.100.10:80/TCP")));
    engine.change(files(Some("b.toml: line 3")));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.1:80/TCP"]);
    engine.change(files(None));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
}

/// A source may stay incomplete for months. A waiting operation is stored once, however often it is planned.
#[test]
fn deferred_operations_do_not_grow_with_the_rounds() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.10:80/TCP")));
    engine.change(files(Some("b.toml: line 3")));
    for round in 1..100 {
        let mut again = service("shop/web", "198.51.100.10:80/TCP");
        again.affinity_seconds = Some(round);
        engine.change(Change::UpsertService(again));
        engine.reconcile(&mut datapath, Moment(round.into()));
        assert_eq!(engine.deferred.len(), 1, "round {round}");
    }
}

fn two_sources_config() -> EngineConfig {
    EngineConfig {
        sources: BTreeSet::from([Source::Files, Source::Kubernetes]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    }
}

/// Maps where a service of Kubernetes has two addresses, and an engine that starts with them and knows its files.
fn two_sources(service: Service) -> (Engine, MemoryDatapath) {
    let (source, full) = (service.source, service.name.to_string());
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(two_sources_config(), MapState::default());
    engine.change(Change::UpsertService(service));
    engine.change(Change::UpsertSlice(Slice { source, ..slice(&full, "a", &["192.0.2.1:80"]) }));
    engine.reconcile(&mut datapath, Moment(0));
    (Engine::new(two_sources_config(), datapath.dump().expect("readable")), datapath)
}

fn with_two_addresses(mut service: Service) -> Service {
    service.ports[0].frontends.extend(self::service("x/x", "198.51.100.11:80/TCP").ports[0].frontends.clone());
    service
}

/// Runs a round, and those that are due without a change.
fn settle(engine: &mut Engine, datapath: &mut MemoryDatapath, mut now: Moment) {
    engine.reconcile(datapath, now);
    for _ in 0..10 {
        let Some(due) = engine.next_round() else { return };
        now = now.max(due);
        engine.reconcile(datapath, now);
    }
    panic!("never settles");
}

/// A service of files gives up its address .11, which Kubernetes may claim, and then all its backends: its list stays for
/// that address. Also returns the service with both addresses.
fn list_kept_for_kubernetes() -> (Engine, MemoryDatapath, Service) {
    let two = with_two_addresses(service("a/s", "198.51.100.10:80/TCP"));
    let (mut engine, mut datapath) = two_sources(two.clone());
    upsert(&mut engine, "a/s", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    engine.change(files(None));
    settle(&mut engine, &mut datapath, Moment(1));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &[])));
    settle(&mut engine, &mut datapath, Moment(2));
    (engine, datapath, two)
}

/// No later change touches the service. It is enough that the other address no longer points at it.
#[test]
fn a_list_kept_for_an_address_is_emptied_once_the_address_leads_elsewhere() {
    let (mut engine, mut datapath, _) = list_kept_for_kubernetes();
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.1:80/TCP"], "Kubernetes may claim .11");
    engine.change(Change::UpsertService(service("b/s", "198.51.100.11:80/TCP")));
    engine.change(Change::UpsertSlice(slice("b/s", "b", &["192.0.2.2:80"])));
    settle(&mut engine, &mut datapath, Moment(3));
    assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), ["192.0.2.2:80/TCP"]);
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
}

/// Found as: the history said that the address was gone, and clients got its backends for as long as Kubernetes did not
/// report.
#[test]
fn an_address_that_is_withdrawn_and_stays_is_not_done_before_it_is_gone() {
    let withdrawn = || {
        let (mut engine, mut datapath) = two_sources(with_two_addresses(service("a/s", "198.51.100.10:80/TCP")));
        engine.change(Change::UpsertService(with_two_addresses(service("a/s", "198.51.100.10:80/TCP"))));
        engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
        engine.change(files(None));
        settle(&mut engine, &mut datapath, Moment(1));
        engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
        let events = engine.reconcile(&mut datapath, Moment(2)).events;
        let changed = events.iter().find(|event| !event.withdrawn.is_empty()).expect("an event");
        assert_eq!((changed.what, &changed.kernel), (What::Changed, &Kernel::Deferred));
        assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), ["192.0.2.1:80/TCP"]);
        // Another change of the service says nothing of the address.
        engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80", "192.0.2.2:80"])));
        let events = engine.reconcile(&mut datapath, Moment(3)).events;
        assert!(events.iter().all(|event| event.what != What::Healed));
        (engine, datapath)
    };
    let healed = |events: &[Event]| events.iter().filter(|event| event.what == What::Healed).count();
    let (mut engine, mut datapath) = withdrawn();
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    assert_eq!(healed(&engine.reconcile(&mut datapath, Moment(4)).events), 1);
    assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), [] as [&str; 0]);
    // Another service gets it.
    let (mut engine, mut datapath) = withdrawn();
    engine.change(Change::UpsertService(service("b/s", "198.51.100.11:80/TCP")));
    engine.change(Change::UpsertSlice(slice("b/s", "b", &["192.0.2.2:80"])));
    assert_eq!(healed(&engine.reconcile(&mut datapath, Moment(4)).events), 1);
    assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), ["192.0.2.2:80/TCP"]);
}

/// The list is also emptied if its own service claims the address again, which touches the address but not the list.
#[test]
fn a_list_kept_for_an_address_is_emptied_once_its_own_service_claims_it() {
    let (mut engine, mut datapath, two) = list_kept_for_kubernetes();
    engine.change(Change::UpsertService(two));
    settle(&mut engine, &mut datapath, Moment(3));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
}

/// A file cannot be read, and nothing is known of it. Both services are in other files. Found as: the address led to the
/// backend of the service that had it, without end.
#[test]
fn an_unknown_file_keeps_no_address_of_services_that_are_known() {
    let (mut engine, mut datapath) = restarted();
    upsert(&mut engine, "shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    engine.change(files(Some("b.toml: line 3")));
    settle(&mut engine, &mut datapath, Moment(1));
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.12:80/TCP")));
    engine.change(Change::UpsertService(service("shop/new", "198.51.100.10:80/TCP")));
    settle(&mut engine, &mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
    let snapshot = engine.snapshot(Moment(2));
    assert_eq!(snapshot.realised.frontends, snapshot.desired.frontends);
    assert_eq!(snapshot.realised.services, snapshot.desired.services);
}

/// Kubernetes has not reported everything, but it has reported the service that the address was reserved for, without
/// that address.
#[test]
fn a_reserved_address_is_released_once_its_service_is_described_without_it() {
    let kubernetes = |service| Service { source: Source::Kubernetes, created: Some(1), ..service };
    let two = kubernetes(with_two_addresses(service("a/s", "198.51.100.10:80/TCP")));
    let (mut engine, mut datapath) = two_sources(two);
    // From a file, but with a creation time, so it has to wait for older ones.
    let young = Service { created: Some(2), ..service("b/s", "198.51.100.11:80/TCP") };
    engine.change(Change::UpsertService(young));
    engine.change(Change::UpsertSlice(slice("b/s", "b", &["192.0.2.2:80"])));
    engine.change(files(None));
    settle(&mut engine, &mut datapath, Moment(1));
    assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), ["192.0.2.1:80/TCP"]);
    engine.change(Change::UpsertService(kubernetes(service("a/s", "198.51.100.10:80/TCP"))));
    settle(&mut engine, &mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.11:80/TCP"), ["192.0.2.2:80/TCP"]);
}

/// Kubernetes has reported what it can, but not everything. A file takes over the name of one of its services. If a
/// file was read and contains no backends, this is reliable.
#[test]
fn a_list_taken_over_by_a_complete_source_is_emptied_immediately() {
    let kubernetes = service("a/s", "198.51.100.10:80/TCP");
    let kubernetes = Service { source: Source::Kubernetes, created: Some(1), ..kubernetes };
    let (mut engine, mut datapath) = two_sources(kubernetes.clone());
    engine.change(Change::UpsertService(kubernetes));
    engine.change(Change::UpsertSlice(Slice { source: Source::Kubernetes, ..slice("a/s", "a", &["192.0.2.1:80"]) }));
    engine.change(files(None));
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: Some("one namespace".into()) });
    settle(&mut engine, &mut datapath, Moment(1));
    engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
    settle(&mut engine, &mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
}

/// As after a restart without the permission to read a namespace. A service of another one has nothing in it.
#[test]
fn services_of_other_namespaces_do_not_wait_for_one_that_is_not_read() {
    const ADDRESSES: [(&str, &str); 3] =
        [("shop/a", "198.51.100.10:80/TCP"), ("shop/b", "198.51.100.11:80/TCP"), ("pay/c", "198.51.100.12:80/TCP")];
    let listed = |full: &str, backends: &[&str]| {
        Change::UpsertSlice(Slice { source: Source::Kubernetes, ..slice(full, full, backends) })
    };
    let described = |full: &str, address: &str| {
        Change::UpsertService(Service { source: Source::Kubernetes, created: Some(1), ..service(full, address) })
    };
    let describe = |engine: &mut Engine, datapath: &mut MemoryDatapath, services: &[(&str, &str)]| {
        for (full, address) in services {
            engine.change(described(full, address));
            engine.change(listed(full, &["192.0.2.1:80"]));
        }
        settle(engine, datapath, Moment(1));
    };
    let (mut engine, mut datapath) = two_sources(service("x/x", "198.51.100.9:80/TCP"));
    describe(&mut engine, &mut datapath, &ADDRESSES);
    let mut engine = Engine::new(two_sources_config(), datapath.dump().expect("readable"));
    describe(&mut engine, &mut datapath, &ADDRESSES[..2]);
    engine.change(described(ADDRESSES[2].0, ADDRESSES[2].1));
    // A list lacks it.
    engine.change(Change::RemoveService(name("shop/a"), Source::Kubernetes));
    engine.change(files(None));
    engine.change(Change::Unread(BTreeSet::from(["pay".into()])));
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: Some("pay may not be read".into()) });
    settle(&mut engine, &mut datapath, Moment(2));
    engine.change(listed("shop/b", &[]));
    settle(&mut engine, &mut datapath, Moment(3));
    let found = ADDRESSES.map(|(_, address)| backends(&datapath, address).len());
    assert_eq!(found, [0, 0, 1]);
    let is_there = |address: &str| datapath.dump().expect("readable").frontends.contains_key(&l4(address));
    assert_eq!(ADDRESSES.map(|(_, address)| is_there(address)), [false, true, true]);
}

/// The truth test found it: the row was Refused since a time at which the maps still served the address.
#[test]
fn an_address_that_stays_in_the_maps_is_refused_since_it_has_left_them() {
    let address = l4("198.51.100.10:80/TCP");
    let since = |engine: &Engine| {
        let snapshot = engine.snapshot(Moment(9));
        let status = snapshot.status_of(&snapshot.rows[&address], 0, address);
        (status.status, status.since)
    };
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(slice("shop/web", "a", &["192.0.2.1:80"])));
    engine.change(Change::Node(NodeFacts { addresses: [address.addr].into_iter().collect(), ..NodeFacts::default() }));
    engine.change(files(Some("b.toml: line 3")));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(since(&engine), (Status::Kept, Moment(1)));
    engine.change(files(None));
    engine.reconcile(&mut datapath, Moment(5));
    assert_eq!(since(&engine), (Status::Refused, Moment(5)));
}

/// Found as: after a boot without an API server, clients of a remembered service without backends waited, and no problem
/// said so. What has not been recalled may have backends that have not been reported.
#[test]
fn a_remembered_service_without_backends_is_refused_after_a_reboot() {
    let kubernetes = |service| Change::UpsertService(Service { source: Source::Kubernetes, ..service });
    let (mut engine, mut datapath) =
        (Engine::new(two_sources_config(), MapState::default()), MemoryDatapath::new(LIMITS));
    // The disk may be late.
    settle(&mut engine, &mut datapath, Moment(0));
    engine.change(kubernetes(service("a/s", "198.51.100.10:80/TCP")));
    engine.change(Change::Recalled(Source::Kubernetes));
    settle(&mut engine, &mut datapath, Moment(1));
    engine.change(kubernetes(service("b/s", "198.51.100.11:80/TCP")));
    settle(&mut engine, &mut datapath, Moment(2));
    let state = datapath.dump().expect("readable");
    let refuses = ["198.51.100.10:80/TCP", "198.51.100.11:80/TCP"].map(|address| state.refuses(l4(address)));
    assert_eq!(refuses, [true, false]);
    let (snapshot, address) = (engine.snapshot(Moment(2)), l4("198.51.100.10:80/TCP"));
    assert_eq!(snapshot.status_of(&snapshot.rows[&address], 0, address).status, Status::NoBackends);
}

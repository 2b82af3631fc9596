//! The first start with a service of many slices: they arrive one after another, and published runs have to rest.

use super::*;
use crate::trace;

const SLICES: usize = 18;
const ENDPOINTS: usize = 99;

fn piece(service: usize, piece: usize) -> Slice {
    let full = format!("shop/s{service}");
    let backends = (0..ENDPOINTS).map(|index| {
        let at = piece * ENDPOINTS + index;
        Backend {
            node: Some("n1".into()),
            ..Backend::new(l4(&format!("10.{service}.{}.{}:1", at / 256, at % 256)).addr, 8080)
        }
    });
    let port = SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends: backends.collect() };
    Slice { source: Source::Kubernetes, ports: vec![port], ..slice(&full, &format!("s{service}-{piece}"), &[]) }
}

fn cluster_service(index: usize) -> Service {
    let service = service(&format!("shop/s{index}"), &format!("198.51.100.{index}:80"));
    Service { source: Source::Kubernetes, ..service }
}

fn cluster_engine() -> Engine {
    let config =
        EngineConfig { sources: BTreeSet::from([Source::Kubernetes]), max_services: 1_024, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    engine.change(Change::Node(NodeFacts { name: "n1".into(), ..NodeFacts::default() }));
    engine
}

fn reported() -> Change {
    Change::Synced { source: Source::Kubernetes, incomplete: None }
}

/// About 85 frontends had the error "cannot be served: map slots is full" on the way to 356,400 slots of 524,288.
#[test]
fn many_slices_of_many_services_fit_on_a_first_start() {
    const SERVICES: usize = 100;
    let mut datapath = MemoryDatapath::new(Limits {
        frontends: 1_024,
        services: 1_024,
        slots: 524_288,
        affinity: 1,
        outside: 0,
        source_ranges: 0,
    });
    let mut engine = cluster_engine();
    let (mut failed, mut taken, mut now) = (0, 0, Moment(0));
    let mut round = |engine: &mut Engine, now: &mut Moment| {
        let round = engine.reconcile(&mut datapath, *now);
        *now = now.plus(1);
        engine.end_round(&mut datapath, *now);
        let (used, resting) = datapath.slots_used();
        taken = taken.max(used + resting);
        failed += round.failed;
        assert_eq!(round.errors, [], "nothing is wrong that could be reported");
        used
    };
    for index in 0..SERVICES {
        engine.change(Change::UpsertService(cluster_service(index)));
    }
    for at in 0..SLICES {
        for index in 0..SERVICES {
            engine.change(Change::UpsertSlice(piece(index, at)));
            round(&mut engine, &mut now);
            // A service with some backends serves immediately: no service waits for the rest of its slices.
            let snapshot = engine.snapshot(now);
            assert!(matches!(trace::verdict(&snapshot, l4(&format!("198.51.100.{index}:80"))), Verdict::Forwarded(..)));
            assert!(
                snapshot.realised.services.values().filter(|entry| !entry.cluster.is_empty()).count() > at.min(1) * 99
            );
        }
    }
    engine.change(reported());
    let used = round(&mut engine, &mut now);
    let in_the_end = 2 * SERVICES * SLICES * ENDPOINTS;
    assert_eq!((used as usize, failed), (in_the_end, 0));
    assert!(taken as usize <= in_the_end * 4 / 3, "{taken} slots were taken on the way to {in_the_end}");
    assert_eq!(engine.next_round(), None);
}

/// A list that becomes shorter, or that was empty, is written without waiting.
#[test]
fn only_a_list_that_grows_waits_for_the_rest_of_its_source() {
    let mut datapath = MemoryDatapath::new(Limits { slots: 4_096, ..LIMITS });
    let mut engine = cluster_engine();
    let count =
        |engine: &Engine| engine.snapshot(Moment(0)).realised.services.values().map(|e| e.cluster.len()).sum::<usize>();
    engine.change(Change::UpsertService(cluster_service(1)));
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(Change::UpsertSlice(piece(1, 0)));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(count(&engine), ENDPOINTS, "the first backends are served at once");
    engine.change(Change::UpsertSlice(piece(1, 1)));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!((count(&engine), engine.next_round()), (ENDPOINTS, Some(Moment(5_001))));
    let row = claimed(&engine.snapshot(Moment(2))).remove(0);
    assert_eq!(row.status, Status::Kept, "connections reach the first backends");
    engine.change(Change::UpsertSlice(piece(1, 2)));
    engine.change(Change::RemoveSlice(piece(1, 0).name, Source::Kubernetes));
    engine.reconcile(&mut datapath, Moment(3));
    assert_eq!(count(&engine), 2 * ENDPOINTS, "a backend is gone: no connection may be sent to it any more");
    engine.change(Change::UpsertSlice(piece(1, 3)));
    engine.reconcile(&mut datapath, Moment(4));
    assert_eq!((count(&engine), engine.next_round()), (2 * ENDPOINTS, Some(Moment(5_003))));
    engine.reconcile(&mut datapath, Moment(5_003));
    assert_eq!((count(&engine), engine.next_round()), (3 * ENDPOINTS, None), "not for ever, whatever the source does");
    engine.change(Change::UpsertSlice(piece(1, 4)));
    engine.change(reported());
    engine.reconcile(&mut datapath, Moment(5_004));
    assert_eq!((count(&engine), engine.next_round()), (4 * ENDPOINTS, None), "everything is known");
}

/// A list that does not fit only because of resting slots is written after the rest, without an error before that.
#[test]
fn a_list_that_waits_for_a_rest_is_pending_and_comes_in_after_it() {
    let mut datapath = MemoryDatapath::new(Limits { slots: 3, ..LIMITS });
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(service("a/s", "198.51.100.1:80")));
    engine.change(synced());
    let mut now = Moment(0);
    for backend in ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "192.0.2.4:80"] {
        engine.change(Change::UpsertSlice(slice("a/s", "a", &[backend])));
        assert_eq!(engine.reconcile(&mut datapath, now).errors, []);
        now = now.plus(10);
    }
    let row = claimed(&engine.snapshot(now)).remove(0);
    assert_eq!(row.status, Status::Pending);
    assert_eq!(
        row.error.as_deref(),
        Some("map slots has no space for this list yet: nodelb reuses slots one second after they were freed")
    );
    while let Some(due) = engine.next_round() {
        now = now.max(due);
        assert_eq!(engine.reconcile(&mut datapath, now).errors, []);
    }
    assert_eq!(claimed(&engine.snapshot(now)).remove(0).status, Status::Ok);
    assert!(now < Moment(1_200), "as soon as there is room, not seconds later: {now:?}");
}

/// Another entry has failed for so long that it is retried only every five seconds.
#[test]
fn a_list_that_rests_does_not_wait_for_the_retry_of_another_that_fails() {
    let is_broken = |op: &MapOp| matches!(op, MapOp::PutFrontend(address, _) if *address == l4("198.51.100.2:80"));
    let mut datapath = MemoryDatapath::new(Limits { slots: 3, ..LIMITS }).with_fault(Box::new(is_broken));
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(service("a/s", "198.51.100.1:80")));
    engine.change(Change::UpsertService(service("b/broken", "198.51.100.2:80")));
    engine.change(synced());
    let mut now = Moment(0);
    engine.reconcile(&mut datapath, now);
    while let Some(due) = engine.next_round().filter(|due| due.0 - now.0 < 5_000) {
        now = due;
        engine.reconcile(&mut datapath, now);
    }
    for backend in ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "192.0.2.4:80"] {
        now = now.plus(10);
        engine.change(Change::UpsertSlice(slice("a/s", "a", &[backend])));
        engine.reconcile(&mut datapath, now);
    }
    let row = |engine: &Engine| claimed(&engine.snapshot(Moment(0))).remove(0);
    assert_eq!(row(&engine).status, Status::Pending, "the list rests");
    let began = now;
    while row(&engine).status != Status::Ok {
        now = engine.next_round().expect("a retry is due");
        engine.reconcile(&mut datapath, now);
    }
    assert!(now.0 - began.0 < 1_200, "as soon as there is room, not seconds later: {now:?} after {began:?}");
    while engine.next_round().expect("something still fails").0 - now.0 < 5_000 {
        now = engine.next_round().expect("something still fails");
        engine.reconcile(&mut datapath, now);
    }
}

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::change::Change;
use crate::config::EngineConfig;
use crate::datapath::{Datapath, Limits};
use crate::engine::Engine;
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServicePort, Slice, SliceName, SlicePort, Source,
};
use crate::state::entries::{FrontendEntry, MapOp, MapState, ServiceEntry, ServiceId};
use crate::state::kernel_check::{Broken, Content, DriftKind, EntryKey, Fault, differing_entries};

const LIMITS: Limits = Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };
const FRONTEND: &str = "198.51.100.10:80";

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// A service as a file describes it.
fn facts() -> [Change; 2] {
    let (name, port) = ("a/s".parse().expect("valid in a test"), "http".into());
    let L4Addr { addr, port: number, .. } = l4(FRONTEND);
    let frontends = vec![FrontendSpec { addr, port: number, kind: FrontendKind::Static }];
    let service = Service {
        ports: vec![ServicePort { name: Arc::clone(&port), protocol: Protocol::Tcp, frontends }],
        ..Service::new(name, Source::Files)
    };
    let slice = Slice {
        name: SliceName::new("a", "s"),
        service: service.name.clone(),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort {
            name: port,
            protocol: Protocol::Tcp,
            backends: vec![Backend::new(l4("192.0.2.1:80").addr, 80)],
        }],
        problem: None,
    };
    [Change::UpsertService(service), Change::UpsertSlice(slice)]
}

fn engine(realised: MapState) -> Engine {
    let config = EngineConfig {
        sources: BTreeSet::from([Source::Files]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    };
    Engine::new(config, realised)
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

/// An engine without pending work.
fn settled() -> (Engine, MemoryDatapath) {
    let (mut engine, mut maps) = (engine(MapState::default()), MemoryDatapath::new(LIMITS));
    facts().into_iter().chain([synced()]).for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(0));
    (engine, maps)
}

/// The steps of the check and of the owner task.
fn check(engine: &mut Engine, maps: &MemoryDatapath) -> usize {
    let content = Content { state: maps.dump().expect("memory can be read"), ..Content::default() };
    let suspects = differing_entries(&content, &engine.snapshot(Moment(1)).realised);
    engine.accept_actual(&content, &suspects)
}

#[test]
fn a_deleted_frontend_is_restored_and_reported_once() {
    let (mut engine, mut maps) = settled();
    let before = maps.dump().expect("memory can be read");
    maps.apply(&[MapOp::DeleteFrontend(l4(FRONTEND))], Moment(1));
    assert_eq!(check(&mut engine, &maps), 1);
    let round = engine.reconcile(&mut maps, Moment(1));
    assert_eq!((round.done, round.repaired.len()), (1, 1));
    let drift = &round.repaired[0];
    assert_eq!((drift.kind, drift.fault), (DriftKind::Frontend, Fault::Missing));
    assert_eq!(maps.dump().expect("memory can be read"), before);
    assert_eq!(check(&mut engine, &maps), 0);
    assert!(engine.reconcile(&mut maps, Moment(2)).repaired.is_empty());
}

#[test]
fn a_failed_repair_is_reported_when_it_succeeds() {
    let (mut engine, mut maps) = settled();
    maps.apply(&[MapOp::DeleteFrontend(l4(FRONTEND))], Moment(1));
    let mut maps = maps.with_fault(Box::new(|op| matches!(op, MapOp::PutFrontend(..))));
    check(&mut engine, &maps);
    let round = engine.reconcile(&mut maps, Moment(1));
    assert_eq!((round.failed, round.repaired.len()), (1, 0));
    maps.clear_fault();
    let due = engine.next_round().expect("a retry is due");
    assert_eq!(engine.reconcile(&mut maps, due).repaired.len(), 1);
}

/// The next attempt waited for an unrelated round.
#[test]
fn a_failed_repair_is_tried_again_while_a_source_is_incomplete() {
    let (mut engine, mut maps) = settled();
    engine.change(Change::Synced { source: Source::Files, incomplete: Some("z.toml".into()) });
    engine.reconcile(&mut maps, Moment(1));
    maps.apply(&[MapOp::DeleteFrontend(l4(FRONTEND))], Moment(1));
    let mut maps = maps.with_fault(Box::new(|op| matches!(op, MapOp::PutFrontend(..))));
    check(&mut engine, &maps);
    engine.reconcile(&mut maps, Moment(1));
    maps.clear_fault();
    let due = engine.next_round().expect("a retry is due");
    engine.reconcile(&mut maps, due);
    assert!(maps.dump().expect("memory can be read").frontends.contains_key(&l4(FRONTEND)));
    assert_eq!(engine.next_round(), None);
}

/// Another program zeroed the entry, and its service was removed before the repair. The slots of its list are free
/// again.
#[test]
fn an_entry_that_was_lost_and_is_not_wanted_any_more_leaves_nothing() {
    let (mut engine, mut maps) = settled();
    let id = maps.dump().expect("memory can be read").frontends[&l4(FRONTEND)].service;
    let mut state = maps.dump().expect("memory can be read");
    state.services.remove(&id);
    assert_eq!(engine.accept_actual(&Content { state, ..Content::default() }, &[EntryKey::Service(id)]), 1);
    engine.change(Change::RemoveService("a/s".parse().expect("valid in a test"), Source::Files));
    let round = engine.reconcile(&mut maps, Moment(1));
    assert_eq!((round.failed, round.repaired.len()), (0, 1));
    let held = maps.dump().expect("memory can be read");
    assert!(!held.services.contains_key(&id));
    assert_eq!(maps.slots_used().0 as usize, held.slot_count());
}

#[test]
fn foreign_frontends_go_and_leave_no_reference() {
    let (mut engine, mut maps) = settled();
    let (before, sizes) = (maps.dump().expect("memory can be read"), engine.sizes());
    for (n, service) in [(1, ServiceId(1)), (2, ServiceId(20))] {
        let entry = FrontendEntry { service, inside_local: false, outside_local: false };
        maps.apply(&[MapOp::PutFrontend(l4(&format!("198.51.100.9{n}:80")), entry)], Moment(1));
    }
    check(&mut engine, &maps);
    let round = engine.reconcile(&mut maps, Moment(1));
    assert!(round.repaired.iter().all(|drift| drift.fault == Fault::Foreign));
    assert_eq!((maps.dump().expect("memory can be read"), engine.sizes()), (before, sizes));
}

/// Memory cannot hold broken entries. A broken entry is overwritten if it is desired and deleted otherwise.
#[test]
fn broken_entries_are_written_over_or_deleted() {
    let (mut engine, mut maps) = settled();
    let (wanted, foreign) = (l4(FRONTEND), l4("198.51.100.99:80"));
    let mut content = Content { state: maps.dump().expect("memory can be read"), ..Content::default() };
    content.state.frontends.remove(&wanted);
    content.state.services.remove(&ServiceId(1));
    let keys = [
        EntryKey::Frontend(wanted),
        EntryKey::Frontend(foreign),
        EntryKey::Service(ServiceId(1)),
        EntryKey::Service(ServiceId(30)),
    ];
    content.broken = Broken { entries: keys.map(|key| (key, String::new())).into(), with_invalid_key: Vec::new() };
    assert_eq!(engine.accept_actual(&content, &keys), 4);
    let log = &mut Vec::new();
    let round = {
        struct Log<'a>(&'a mut MemoryDatapath, &'a mut Vec<MapOp>);
        impl Datapath for Log<'_> {
            fn limits(&self) -> Limits {
                self.0.limits()
            }
            fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), crate::datapath::MapError>> {
                self.1.extend(ops.iter().cloned());
                self.0.apply(ops, now)
            }
            fn end_round(&mut self, ended: Moment) {
                self.0.end_round(ended);
            }

            fn dump(&self) -> Result<MapState, crate::datapath::MapError> {
                self.0.dump()
            }
        }
        engine.reconcile(&mut Log(&mut maps, log), Moment(1))
    };
    assert_eq!(round.repaired.len(), 4);
    let named: Vec<String> =
        log.iter().map(|op| format!("{op:?}").split(['(', ')']).next().unwrap_or_default().into()).collect();
    assert_eq!(named, ["PutService", "PutFrontend", "DeleteFrontend", "DeleteService"]);
}

/// Found as: while no API server had answered since the start, nothing was repaired, and everything was OK.
#[test]
fn drift_is_repaired_before_any_source_is_synced() {
    let (_, mut maps) = settled();
    let before = maps.dump().expect("memory can be read");
    let mut engine = engine(before.clone());
    let foreign = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    let drift = [MapOp::PutFrontend(l4("198.51.100.99:80"), foreign), MapOp::DeleteFrontend(l4(FRONTEND))];
    maps.apply(&drift, Moment(1));
    assert_eq!(check(&mut engine, &maps), 2);
    assert_eq!(engine.reconcile(&mut maps, Moment(1)).repaired.len(), 2);
    let now = maps.dump().expect("memory can be read");
    assert_eq!((now.frontends, now.services.len()), (before.frontends, before.services.len()));
}

/// Found as: the entries were reported as repaired, and were gone.
#[test]
fn entries_that_stay_for_an_incomplete_source_are_restored() {
    let (_, mut maps) = settled();
    let before = maps.dump().expect("memory can be read");
    let mut engine = engine(before.clone());
    engine.change(Change::Synced { source: Source::Files, incomplete: Some("b.yaml: line 3".into()) });
    engine.reconcile(&mut maps, Moment(1));
    assert!(engine.is_ready() && maps.dump().expect("memory can be read").services == before.services, "kept");
    let frontend = before.frontends[&l4(FRONTEND)];
    let lost = [MapOp::DeleteFrontend(l4(FRONTEND)), MapOp::DeleteService(frontend.service)];
    let foreign = ServiceEntry { affinity_seconds: 9, ..ServiceEntry::clone(&before.services[&frontend.service]) };
    let changed = [MapOp::PutService(frontend.service, foreign.into())];
    for (ops, fault) in [(&lost[..], Fault::Missing), (&changed, Fault::Changed)] {
        maps.apply(ops, Moment(2));
        assert_eq!(check(&mut engine, &maps), ops.len());
        let repaired = engine.reconcile(&mut maps, Moment(2)).repaired;
        assert_eq!(repaired.iter().map(|drift| drift.fault).collect::<Vec<_>>(), vec![fault; ops.len()]);
        let now = maps.dump().expect("memory can be read");
        assert_eq!((now.frontends, now.services), (before.frontends.clone(), before.services.clone()));
        assert_eq!(check(&mut engine, &maps), 0);
    }
    let mut refusing = maps.with_fault(Box::new(|op| matches!(op, MapOp::PutFrontend(..))));
    refusing.apply(&lost[..1], Moment(3));
    check(&mut engine, &refusing);
    assert_eq!(engine.reconcile(&mut refusing, Moment(3)).repaired, []);
    refusing.clear_fault();
    assert_eq!(engine.reconcile(&mut refusing, Moment(4)).repaired.len(), 1);
}

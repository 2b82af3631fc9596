//! The numbers of services and backends, over restarts.

use super::*;
use crate::state::entries::{BackendId, NextIds, ServiceEntry, ServiceId};

fn numbers(datapath: &MemoryDatapath) -> Vec<(ServiceId, BackendId)> {
    let maps = datapath.dump().expect("memory can be read");
    let own = maps.services.iter().filter(|(id, _)| **id != ServiceId::CANARY);
    own.map(|(id, entry)| (*id, entry.cluster[0].backend)).collect()
}

fn remove(engine: &mut Engine, full: &str) {
    engine.change(Change::RemoveService(name(full), Source::Files));
    engine.change(Change::RemoveSlice(slice(full, "a", &[]).name, Source::Files));
}

/// Connections of a deleted service were listed as those of the next one. If that had the same address, datagrams of
/// clients that kept their port went to a backend that it does not have.
#[test]
fn a_service_gets_no_number_that_a_deleted_one_had_before_a_restart() {
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut seen = Vec::new();
    for run in 0..4 {
        let full = format!("shop/run{run}");
        let mut engine = engine_with(&datapath);
        upsert(&mut engine, &full, "198.51.100.1:80", &[&format!("192.0.2.{run}:80")]);
        engine.change(synced());
        engine.reconcile(&mut datapath, Moment(0));
        let [(service, backend)] = numbers(&datapath)[..] else { panic!("one service") };
        assert!(seen.iter().all(|known: &(ServiceId, BackendId)| known.0 != service && known.1 != backend), "{seen:?}");
        seen.push((service, backend));
        remove(&mut engine, &full);
        engine.reconcile(&mut datapath, Moment(1));
        assert_eq!(numbers(&datapath), []);
    }
}

/// As an earlier nodelb leaves it.
fn without_numbers(datapath: &mut MemoryDatapath, next_ids: NextIds) {
    let canary = ServiceEntry { next_ids, ..ServiceEntry::default() };
    let results = datapath.apply(&[MapOp::PutService(ServiceId::CANARY, canary.into())], Moment(5));
    assert!(results.iter().all(Result::is_ok));
}

/// The first run after an upgrade adopts every id and gives none: it records that the next start begins with 1.
#[test]
fn the_first_run_after_an_upgrade_records_the_ids_that_it_has_adopted() {
    let mut datapath = MemoryDatapath::new(LIMITS);
    let run = |datapath: &mut MemoryDatapath, all: &[&str], at: u64| {
        let mut engine = engine_with(datapath);
        for (at, full) in all.iter().enumerate() {
            engine.change(Change::UpsertService(service(full, &format!("198.51.100.{at}:80"))));
            engine.change(Change::UpsertSlice(slice(full, full, &[&format!("192.0.2.{at}:80")])));
        }
        engine.change(synced());
        engine.reconcile(datapath, Moment(at));
        engine
    };
    run(&mut datapath, &["shop/a", "shop/b", "shop/c"], 0);
    without_numbers(&mut datapath, NextIds::default());
    let mut engine = run(&mut datapath, &["shop/a", "shop/b", "shop/c"], 10);
    let deleted = numbers(&datapath)[2].0;
    engine.change(Change::RemoveService(name("shop/c"), Source::Files));
    engine.change(Change::RemoveSlice(slice("shop/c", "shop/c", &[]).name, Source::Files));
    engine.reconcile(&mut datapath, Moment(11));
    assert_eq!(numbers(&datapath).len(), 2);
    run(&mut datapath, &["shop/a", "shop/b", "shop/new"], 12);
    let given: Vec<ServiceId> = numbers(&datapath).into_iter().map(|(service, _)| service).collect();
    assert!(!given.contains(&deleted), "{given:?} has {deleted}, which connections of shop/c still have");
}

/// One word in the maps makes two backends one: affinity and UDP flows of one then belong to the other.
#[test]
fn no_content_of_the_maps_gives_one_number_to_two_backends() {
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = engine_with(&datapath);
    upsert(&mut engine, "shop/web", "198.51.100.1:80", &["192.0.2.1:80"]);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    without_numbers(&mut datapath, NextIds { service: 2, backend: u32::MAX });
    let mut engine = engine_with(&datapath);
    upsert(&mut engine, "shop/web", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(10));
    let maps = datapath.dump().expect("memory can be read");
    let list = &maps.services[&numbers(&datapath)[0].0].cluster;
    assert_ne!(list[0].backend, list[1].backend, "{list:?}");
}

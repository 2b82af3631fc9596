//! The numbers of services and backends, over restarts.

use super::*;
use crate::state::entries::{BackendId, ServiceId};

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

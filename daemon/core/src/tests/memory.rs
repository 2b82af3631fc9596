use std::sync::Arc;

use super::MemoryDatapath;
use crate::datapath::{Datapath, Limits, MapError};
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::state::entries::{BackendId, FrontendEntry, MapOp, ServiceEntry, ServiceId, Slot};
use crate::state::runs::REST_MILLIS;

const NOW: Moment = Moment(0);
const LIMITS: Limits = Limits { frontends: 1, services: 2, slots: 4, affinity: 1, outside: 0, source_ranges: 0 };

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn put(id: u32, cluster: usize, local: usize) -> MapOp {
    let slots = |count: usize| vec![Slot { backend: BackendId(id), addr: l4("192.0.2.1:80") }; count].into();
    let entry =
        ServiceEntry { cluster: slots(cluster), local: slots(local), has_backends: true, ..ServiceEntry::default() };
    MapOp::PutService(ServiceId(id), Arc::new(entry))
}

fn point(address: &str) -> MapOp {
    let entry = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    MapOp::PutFrontend(l4(address), entry)
}

/// The result of one operation; the name of the map if it is full.
fn apply(maps: &mut MemoryDatapath, op: MapOp, now: Moment) -> Result<(), &'static str> {
    maps.apply(&[op], now).remove(0).map_err(|error| match error {
        MapError::Full { map, .. } | MapError::NoShare { map, .. } => map,
        MapError::TooManyNodeAddrs { .. } => "node_addrs",
        MapError::TooManyUplinks { .. } => "uplinks",
        MapError::Resting => "resting",
        MapError::Failed { .. } => "failed",
    })
}

#[test]
fn a_full_map_keeps_what_it_has() {
    let mut maps = MemoryDatapath::new(LIMITS);
    assert_eq!(apply(&mut maps, put(1, 2, 1), NOW), Ok(()));
    assert_eq!(apply(&mut maps, point("198.51.100.1:80"), NOW), Ok(()));
    let before = maps.dump().expect("readable");
    assert_eq!(apply(&mut maps, put(2, 0, 0), NOW), Err("services"), "ids 0 and 1 are all there are");
    assert_eq!(apply(&mut maps, point("198.51.100.2:80"), NOW), Err("frontends"));
    assert_eq!(apply(&mut maps, put(0, 2, 0), NOW), Err("slots"));
    assert_eq!(maps.dump().expect("readable"), before);
    assert_eq!(maps.slots_used(), (3, 0));
    assert_eq!(apply(&mut maps, point("198.51.100.1:80"), NOW), Ok(()), "what is there can be overwritten");
}

/// The first view fits and the second does not. Neither may remain.
#[test]
fn a_list_that_fits_only_in_part_takes_no_slots() {
    let mut maps = MemoryDatapath::new(LIMITS);
    assert_eq!(apply(&mut maps, put(1, 3, 3), NOW), Err("slots"));
    assert_eq!(maps.slots_used(), (0, 0));
    assert_eq!(apply(&mut maps, put(1, 4, 0), NOW), Ok(()));
}

/// As in the kernel, where a program may still read the old list.
#[test]
fn a_replaced_list_rests() {
    let mut maps = MemoryDatapath::new(LIMITS);
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW), Ok(()));
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW), Ok(()));
    assert_eq!(maps.slots_used(), (2, 2));
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW), Err("resting"), "there is room, but not yet");
    assert_eq!(apply(&mut maps, put(1, 3, 0), NOW), Err("slots"), "rest or not, the previous list takes two of four");
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW.plus(REST_MILLIS)), Ok(()));
}

/// A round takes time: a list that was replaced at its end was in use until then.
#[test]
fn a_replaced_list_rests_from_the_end_of_its_round() {
    let mut maps = MemoryDatapath::new(LIMITS);
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW), Ok(()));
    assert_eq!(apply(&mut maps, put(1, 2, 0), NOW), Ok(()));
    maps.end_round(Moment(1_500));
    assert_eq!(apply(&mut maps, put(1, 2, 0), Moment(1_499 + REST_MILLIS)), Err("resting"));
    assert_eq!(apply(&mut maps, put(1, 2, 0), Moment(1_500 + REST_MILLIS)), Ok(()));
}

#[test]
fn node_addresses_that_do_not_fit_say_so() {
    let mut maps = MemoryDatapath::new(LIMITS).with_node_addrs(1);
    let [first, second] = ["192.0.2.1:1", "192.0.2.2:1"].map(|text| MapOp::PutNodeAddr(l4(text).addr));
    assert_eq!(apply(&mut maps, first.clone(), NOW), Ok(()));
    assert_eq!(apply(&mut maps, second, NOW), Err("node_addrs"));
    assert_eq!(apply(&mut maps, first, NOW), Ok(()), "what is there may be put again");
}

#[test]
fn operations_may_be_repeated_and_the_absent_deleted() {
    let mut maps = MemoryDatapath::new(Limits { slots: 100, ..LIMITS });
    let address = l4("198.51.100.1:80");
    let addr = address.addr;
    let ops = [
        put(1, 1, 0),
        point("198.51.100.1:80"),
        MapOp::PutNodeAddr(addr),
        MapOp::DeleteFrontend(address),
        MapOp::DeleteService(ServiceId(1)),
        MapOp::DeleteNodeAddr(addr),
    ];
    for op in &ops {
        assert_eq!(maps.apply(&[op.clone(), op.clone()], NOW), [Ok(()), Ok(())], "{op:?}");
    }
    assert_eq!(maps.dump().expect("readable"), crate::state::entries::MapState::default());
    assert_eq!(maps.slots_used().0, 0);
}

#[test]
fn a_failed_operation_changes_nothing_and_stops_no_other() {
    let mut maps = MemoryDatapath::new(LIMITS).with_fault(Box::new(|op| matches!(op, MapOp::PutService(..))));
    let results = maps.apply(&[put(1, 1, 0), point("198.51.100.1:80")], NOW);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
    assert_eq!(maps.slots_used(), (0, 0));
    maps.clear_fault();
    assert_eq!(apply(&mut maps, put(1, 1, 0), NOW), Ok(()));
}

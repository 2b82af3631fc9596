//! The order of operations. `{1: a} -> {1: b}` is: entry 1 contains list a and should contain list b.

use std::sync::Arc;

use super::{Touched, delete_frontends, delete_services, puts};
use crate::model::addr::L4Addr;
use crate::model::source_range::SourceRange;
use crate::model::uplink::UplinkEntry;
use crate::state::entries::{BackendId, FrontendEntry, MapOp, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// A state of services `(id, backend)` and frontends `(last byte of the address, id, local view)`.
fn state(services: &[(u32, u32)], frontends: &[(u8, u32, bool)]) -> MapState {
    let mut state = MapState::default();
    for &(id, backend) in services {
        let slot = Slot { backend: BackendId(backend), addr: l4(&format!("192.0.2.{backend}:80")) };
        let entry = ServiceEntry {
            cluster: [slot].into(),
            local: [slot].into(),
            has_backends: true,
            ..ServiceEntry::default()
        };
        state.services.insert(ServiceId(id), Arc::new(entry));
    }
    for &(byte, id, inside_local) in frontends {
        let entry = FrontendEntry { service: ServiceId(id), inside_local, outside_local: false };
        state.frontends.insert(frontend(byte), entry);
    }
    state
}

fn frontend(byte: u8) -> L4Addr {
    l4(&format!("198.51.100.{byte}:80"))
}

/// The operations as short text: `S1` puts entry 1, `F7` lets address 7 point at an entry, `-` deletes, `|` ends a
/// batch.
fn text(batches: &[Vec<MapOp>]) -> String {
    let op = |op: &MapOp| match op {
        MapOp::PutService(id, _) => format!("S{id}"),
        MapOp::DeleteService(id) => format!("-S{id}"),
        MapOp::PutFrontend(address, _) => format!("F{}", address.addr.octets()[15]),
        MapOp::DeleteFrontend(address) => format!("-F{}", address.addr.octets()[15]),
        MapOp::PutNodeAddr(addr) => format!("N{}", addr.octets()[15]),
        MapOp::DeleteNodeAddr(addr) => format!("-N{}", addr.octets()[15]),
        MapOp::PutOutside(address, _) => format!("O{}", address.addr.octets()[15]),
        MapOp::DeleteOutside(address) => format!("-O{}", address.addr.octets()[15]),
        MapOp::PutSourceRange(id, range) => format!("R{id}/{}", range.prefix),
        MapOp::DeleteSourceRange(id, range) => format!("-R{id}/{}", range.prefix),
        MapOp::PutUplink(index, _) => format!("U{index}"),
        MapOp::DeleteUplink(index) => format!("-U{index}"),
    };
    let batch = |batch: &Vec<MapOp>| batch.iter().map(op).collect::<Vec<_>>().join(" ");
    batches.iter().map(batch).collect::<Vec<_>>().join(" | ")
}

fn puts_between(realised: &MapState, desired: &MapState) -> String {
    text(&puts(desired, realised, &all(desired, realised)))
}

#[test]
fn lists_come_before_what_points_at_them() {
    let desired = state(&[(1, 1), (2, 2)], &[(7, 1, false), (8, 2, false)]);
    assert_eq!(puts_between(&MapState::default(), &desired), "S1 S2 | F7 F8");
}

#[test]
fn equal_states_need_no_operation() {
    let same = state(&[(1, 1)], &[(7, 1, false)]);
    assert_eq!(puts_between(&same, &same), "");
}

#[test]
fn only_touched_entries_are_looked_at() {
    let desired = state(&[(1, 1), (2, 2)], &[(7, 1, false)]);
    let touched = Touched { services: [ServiceId(2)].into(), ..Touched::default() };
    assert_eq!(text(&puts(&desired, &MapState::default(), &touched)), "S2");
}

/// In the reverse order, address 7 would get the new list of a service that it is leaving.
#[test]
fn an_entry_changes_only_after_the_frontends_that_leave_it() {
    let realised = state(&[(1, 1), (2, 2)], &[(6, 1, false), (7, 1, false)]);
    let desired = state(&[(1, 3), (2, 4)], &[(6, 1, false), (7, 2, false)]);
    assert_eq!(puts_between(&realised, &desired), "S2 | F7 | S1");
}

#[test]
fn a_chain_of_moves_is_written_from_its_end() {
    let realised = state(&[(1, 1), (2, 2), (3, 3)], &[(7, 1, false), (8, 2, false)]);
    let desired = state(&[(1, 4), (2, 5), (3, 6)], &[(7, 2, false), (8, 3, false)]);
    assert_eq!(puts_between(&realised, &desired), "S3 | F8 | S2 | F7 | S1");
}

#[test]
fn a_cycle_of_moves_writes_the_lists_first() {
    let realised = state(&[(1, 1), (2, 2)], &[(7, 1, false), (8, 2, false)]);
    let desired = state(&[(1, 3), (2, 4)], &[(7, 2, false), (8, 1, false)]);
    assert_eq!(puts_between(&realised, &desired), "S1 S2 | F7 F8");
}

/// The new local list may be empty although the old cluster list was not, and vice versa.
#[test]
fn a_change_of_view_is_made_while_the_list_it_leads_to_is_full() {
    let local = state(&[(1, 1)], &[(7, 1, true)]);
    let cluster = state(&[(1, 2)], &[(7, 1, false)]);
    assert_eq!(puts_between(&local, &cluster), "F7 | S1");
    assert_eq!(puts_between(&cluster, &local), "S1 | F7");
}

#[test]
fn what_is_still_pointed_at_is_not_deleted() {
    let (realised, desired) = (state(&[(1, 1), (2, 2)], &[(7, 1, false), (8, 2, false)]), MapState::default());
    let touched = all(&desired, &realised);
    assert_eq!(text(&[delete_frontends(&desired, &realised, &touched)]), "-F7 -F8");
    assert_eq!(text(&[delete_services(&desired, &realised, &touched, |id| id == ServiceId(1))]), "-S2");
}

#[test]
fn node_addresses_come_first_and_go_with_the_frontends() {
    let mut with = MapState::default();
    with.node_addrs.insert(l4("192.0.2.9:1").addr);
    assert_eq!(puts_between(&MapState::default(), &with), "N9");
    let touched = all(&with, &with);
    assert_eq!(text(&[delete_frontends(&MapState::default(), &with, &touched)]), "-N9");
}

/// The state, with these addresses open to outside clients `(last byte, id, local view)`. Each service admits only the
/// clients in its range.
fn with_outside(mut state: MapState, outside: &[(u8, u32, bool)]) -> MapState {
    for &(byte, id, local) in outside {
        let entry = OutsideEntry { service: ServiceId(id), local, has_ranges: true };
        state.outside.insert(frontend(byte), entry);
        state.source_ranges.insert((ServiceId(id), SourceRange::new(frontend(0).addr, 100)));
    }
    state
}

#[test]
fn outside_clients_come_last_and_go_first() {
    let mut full = with_outside(state(&[(1, 1)], &[(7, 1, false)]), &[(7, 1, false)]);
    full.uplinks.insert(2, UplinkEntry { mtu: 1_500, l2_length: 14, ..UplinkEntry::default() });
    assert_eq!(puts_between(&MapState::default(), &full), "U2 | S1 | R1/100 | F7 | O7");
    let (empty, touched) = (MapState::default(), all(&full, &full));
    assert_eq!(text(&[delete_frontends(&empty, &full, &touched)]), "-O7 -F7 -U2");
    assert_eq!(text(&[delete_services(&empty, &full, &touched, |_| false)]), "-R1/100 -S1");
    assert_eq!(text(&[delete_services(&empty, &full, &touched, |_| true)]), "", "an address still leads there");
    assert_eq!(puts_between(&full, &full), "");
}

#[test]
fn an_entry_changes_only_after_the_outside_clients_that_leave_it() {
    let realised = with_outside(state(&[(1, 1), (2, 2)], &[(7, 1, false)]), &[(7, 1, false)]);
    let desired = with_outside(state(&[(1, 3), (2, 4)], &[(7, 2, false)]), &[(7, 2, false)]);
    assert_eq!(puts_between(&realised, &desired), "S2 | R2/100 | F7 | O7 | S1");
    let (before, after) = ([(7, 1, true)], [(7, 1, false)]);
    let realised = with_outside(state(&[(1, 1)], &[(7, 1, false)]), &before);
    let desired = with_outside(state(&[(1, 2)], &[(7, 1, false)]), &after);
    assert_eq!(puts_between(&realised, &desired), "O7 | S1", "it leaves the local view");
    assert_eq!(puts_between(&desired, &realised), "S1 | O7");
}

#[test]
fn ranges_that_are_not_desired_go_after_the_moves() {
    let (mut realised, desired) = (with_outside(state(&[(1, 1)], &[]), &[(7, 1, false)]), state(&[(1, 1)], &[]));
    realised.source_ranges.insert((ServiceId(9), SourceRange::new(frontend(0).addr, 128)));
    let touched = Touched::surplus(&desired, &realised);
    assert_eq!((&touched.services, &touched.frontends), (&vec![ServiceId(1), ServiceId(9)], &vec![frontend(7)]));
    assert_eq!(text(&[delete_services(&desired, &realised, &touched, |id| id.0 == 1)]), "-R1/100 -R9/128");
}

/// Every entry of either state.
fn all(desired: &MapState, realised: &MapState) -> Touched {
    let mut all = Touched {
        services: desired.services.keys().chain(realised.services.keys()).copied().collect(),
        frontends: desired.frontends.keys().chain(realised.frontends.keys()).copied().collect(),
        node_addrs: desired.node_addrs.iter().chain(realised.node_addrs.iter()).copied().collect(),
        uplinks: desired.uplinks.keys().chain(realised.uplinks.keys()).copied().collect(),
    };
    all.settle();
    all
}

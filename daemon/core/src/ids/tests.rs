use super::{BackendIds, REST_MILLIS, ServiceIds};
use crate::addr::L4Addr;
use crate::datapath::Moment;
use crate::state::{BackendId, FrontendEntry, MapState, ServiceEntry, ServiceId, Slot};

const NOW: Moment = Moment(5);
const RESTED: Moment = NOW.plus(REST_MILLIS);

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// A kernel in which each of these addresses points at the id beside it.
fn kernel(frontends: &[(&str, u32)]) -> MapState {
    let mut state = MapState::default();
    for (address, id) in frontends {
        let entry = FrontendEntry { service: ServiceId(*id), inside_local: false, outside_local: false };
        state.frontends.insert(l4(address), entry);
        state.services.insert(ServiceId(*id), ServiceEntry::default().into());
    }
    state
}

#[test]
fn ids_start_after_the_canarys_and_end_at_the_limit() {
    let mut ids = ServiceIds::new(3, &MapState::default());
    let given: Vec<_> = (0..3).map(|_| ids.allocate(&[], NOW)).collect();
    assert_eq!(given, [Some(ServiceId(1)), Some(ServiceId(2)), None]);
    assert_eq!(ids.used(), 2);
}

/// A program that runs in the kernel may still hold the id of a moment ago.
#[test]
fn a_released_id_rests_before_it_is_given_out_again() {
    let mut ids = ServiceIds::new(2, &MapState::default());
    let id = ids.allocate(&[], NOW).expect("free");
    ids.release(id, NOW);
    assert_eq!(ids.allocate(&[], NOW), None);
    assert_eq!(ids.allocate(&[], RESTED), Some(id));
}

#[test]
fn an_id_is_released_once() {
    let mut ids = ServiceIds::new(8, &MapState::default());
    let id = ids.allocate(&[], NOW).expect("free");
    ids.release(id, NOW);
    ids.release(id, NOW);
    assert_eq!(ids.used(), 0);
    let later: Vec<_> = (0..8).filter_map(|_| ids.allocate(&[], RESTED)).collect();
    assert_eq!(later.iter().filter(|other| **other == id).count(), 1);
}

#[test]
fn a_service_finds_its_id_again_by_any_of_its_addresses() {
    let mut ids = ServiceIds::new(8, &kernel(&[("198.51.100.1:80", 5), ("198.51.100.2:80", 5)]));
    let addresses = ["198.51.100.9:80", "198.51.100.2:80", "198.51.100.1:80"].map(l4);
    assert_eq!(ids.allocate(&addresses, NOW), Some(ServiceId(5)));
    assert_eq!(ids.allocate(&addresses, NOW), Some(ServiceId(1)), "an id is found once");
}

/// The other address may be of a service that has not been heard of yet.
#[test]
fn an_id_that_another_address_points_at_is_left_alone() {
    let mut ids = ServiceIds::new(8, &kernel(&[("198.51.100.1:80", 5), ("198.51.100.2:80", 5)]));
    assert_eq!(ids.allocate(&[l4("198.51.100.1:80")], NOW), Some(ServiceId(1)));
}

#[test]
fn what_the_kernel_holds_is_never_given_out_as_new() {
    let mut ids = ServiceIds::new(4, &kernel(&[("198.51.100.1:80", 1), ("198.51.100.2:80", 3)]));
    assert_eq!(ids.allocate(&[], NOW), Some(ServiceId(2)));
    assert_eq!(ids.allocate(&[], NOW), None);
    assert!(ids.has_orphans());
    let orphans = ids.take_orphans();
    assert_eq!(orphans, [ServiceId(1), ServiceId(3)].into());
    assert_eq!(ids.used(), 3, "in use until the kernel's entries are gone");
    ids.release(ServiceId(3), NOW);
    assert_eq!(ids.allocate(&[l4("198.51.100.2:80")], RESTED), Some(ServiceId(3)));
}

#[test]
fn the_canarys_id_is_nobodys() {
    let mut ids = ServiceIds::new(4, &kernel(&[("192.0.0.8:9/UDP", 0)]));
    assert_eq!(ids.allocate(&[l4("192.0.0.8:9/UDP")], NOW), Some(ServiceId(1)));
    assert!(!ids.has_orphans());
}

fn slot(address: &str, backend: u32) -> Slot {
    Slot { backend: BackendId(backend), addr: l4(address) }
}

/// Addresses shared by many services: the number goes with the last user, not with the first.
#[test]
fn a_backend_keeps_its_number_while_anybody_has_it() {
    let mut ids = BackendIds::default();
    let (first, second) = (ids.acquire(l4("192.0.2.1:80")), ids.acquire(l4("192.0.2.1:80")));
    assert_eq!(first, second);
    ids.release(&[slot("192.0.2.1:80", first.0)]);
    assert_eq!(ids.acquire(l4("192.0.2.1:80")), first);
    ids.release(&[slot("192.0.2.1:80", first.0)]);
    ids.release(&[slot("192.0.2.1:80", first.0)]);
    assert_eq!(ids.used(), 0);
    assert_ne!(ids.acquire(l4("192.0.2.1:80")), first, "a number is not given out twice");
}

/// A backend of weight 3 is one user with three slots.
#[test]
fn a_weighted_backend_is_released_once() {
    let mut ids = BackendIds::default();
    let id = ids.acquire(l4("192.0.2.1:80"));
    ids.acquire(l4("192.0.2.1:80"));
    ids.release(&[slot("192.0.2.1:80", id.0); 3]);
    assert_eq!(ids.used(), 1);
}

#[test]
fn numbers_survive_a_restart_and_go_when_nobody_takes_them_up() {
    let mut state = MapState::default();
    let cluster = [slot("192.0.2.1:80", 7), slot("192.0.2.2:80", 9)].into();
    state.services.insert(ServiceId(1), ServiceEntry { cluster, ..ServiceEntry::default() }.into());
    let mut ids = BackendIds::new(&state);
    assert_eq!(ids.acquire(l4("192.0.2.1:80")), BackendId(7));
    assert_eq!(ids.acquire(l4("192.0.2.3:80")), BackendId(10));
    ids.forget_unused();
    assert_eq!(ids.used(), 2);
}

use super::{BackendIds, REST_MILLIS, ServiceIds};
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{BackendId, FrontendEntry, MapState, NextIds, ServiceEntry, ServiceId, Slot, backends_of};
use crate::state::owner::OwnerTag;

const NOW: Moment = Moment(5);
const TAG: OwnerTag = OwnerTag { source: Source::Files, service: 1, port: 1 };
const RESTED: Moment = NOW.plus(REST_MILLIS);

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// Maps where each of these addresses points at the id next to it.
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
    let given: Vec<_> = (0..3).map(|_| ids.allocate(TAG, &[], 0, NOW)).collect();
    assert_eq!(given, [Some(ServiceId(1)), Some(ServiceId(2)), None]);
    assert_eq!(ids.used(), 2);
}

/// A running program may still use the id that was just released.
#[test]
fn a_released_id_rests_before_it_is_given_out_again() {
    let mut ids = ServiceIds::new(2, &MapState::default());
    let id = ids.allocate(TAG, &[], 0, NOW).expect("free");
    ids.release(id, NOW);
    assert_eq!(ids.allocate(TAG, &[], 0, NOW), None);
    assert_eq!(ids.allocate(TAG, &[], 0, RESTED), Some(id));
}

#[test]
fn an_id_is_released_once() {
    let mut ids = ServiceIds::new(8, &MapState::default());
    let id = ids.allocate(TAG, &[], 0, NOW).expect("free");
    ids.release(id, NOW);
    ids.release(id, NOW);
    assert_eq!(ids.used(), 0);
    let later: Vec<_> = (0..8).filter_map(|_| ids.allocate(TAG, &[], 0, RESTED)).collect();
    assert_eq!(later.iter().filter(|other| **other == id).count(), 1);
}

#[test]
fn a_service_finds_its_id_again_by_any_of_its_addresses() {
    let mut ids = ServiceIds::new(8, &kernel(&[("198.51.100.1:80", 5), ("198.51.100.2:80", 5)]));
    let addresses = ["198.51.100.9:80", "198.51.100.2:80", "198.51.100.1:80"].map(l4);
    assert_eq!(ids.allocate(TAG, &addresses, 0, NOW), Some(ServiceId(5)));
    assert_eq!(ids.allocate(TAG, &addresses, 0, NOW), Some(ServiceId(1)), "an id is found once");
}

/// The other address may belong to a service that has not been reported yet.
#[test]
fn an_id_that_another_address_points_at_is_left_alone() {
    let mut ids = ServiceIds::new(8, &kernel(&[("198.51.100.1:80", 5), ("198.51.100.2:80", 5)]));
    assert_eq!(ids.allocate(TAG, &[l4("198.51.100.1:80")], 0, NOW), Some(ServiceId(1)));
}

/// Maps with owner tags leave no doubt about an address that the service has given up, or about one that it has taken
/// over from another service.
#[test]
fn an_id_with_a_tag_goes_to_its_own_service_and_to_no_other() {
    let mut state = kernel(&[("198.51.100.1:80", 5), ("198.51.100.2:80", 5)]);
    let entry = ServiceEntry { tag: Some(TAG), ..ServiceEntry::default() };
    state.services.insert(ServiceId(5), entry.into());
    let mut ids = ServiceIds::new(8, &state);
    let other = OwnerTag { service: 2, ..TAG };
    assert_eq!(ids.allocate(other, &["198.51.100.1:80", "198.51.100.2:80"].map(l4), 0, NOW), Some(ServiceId(1)));
    assert_eq!(ids.orphan(ServiceId(5)).map(|tag| tag.map(|tag| tag.source)), Some(Some(Source::Files)));
    let of_another_source = OwnerTag { source: Source::Kubernetes, ..TAG };
    assert_eq!(ids.allocate(of_another_source, &[l4("198.51.100.1:80")], 0, NOW), Some(ServiceId(5)));
    assert_eq!(ids.orphan(ServiceId(5)), None);
}

/// The address belongs to another service, so that each start gave the waiting one a further entry.
#[test]
fn a_service_that_waits_for_its_address_keeps_its_id() {
    let mut state = kernel(&[("198.51.100.1:80", 5)]);
    let entry = |tag: OwnerTag| ServiceEntry { tag: Some(tag), ..ServiceEntry::default() };
    let other = OwnerTag { service: 2, ..TAG };
    state.services.insert(ServiceId(5), entry(other).into());
    state.services.insert(ServiceId(6), entry(TAG).into());
    let mut ids = ServiceIds::new(8, &state);
    assert_eq!(ids.allocate(TAG, &[l4("198.51.100.1:80")], 0, NOW), Some(ServiceId(6)));
    assert_eq!(ids.allocate(other, &[l4("198.51.100.1:80")], 0, NOW), Some(ServiceId(5)));
    assert!(!ids.has_orphans());
}

#[test]
fn what_the_kernel_holds_is_never_given_out_as_new() {
    let mut ids = ServiceIds::new(4, &kernel(&[("198.51.100.1:80", 1), ("198.51.100.2:80", 3)]));
    assert_eq!(ids.allocate(TAG, &[], 0, NOW), Some(ServiceId(2)));
    assert_eq!(ids.allocate(TAG, &[], 0, NOW), None);
    assert!(ids.has_orphans());
    let orphans = ids.take_orphans(|_| true);
    assert_eq!(orphans, [ServiceId(1), ServiceId(3)].into());
    assert_eq!(ids.used(), 3, "in use until the kernel's entries are gone");
    ids.release(ServiceId(3), NOW);
    assert_eq!(ids.allocate(TAG, &[l4("198.51.100.2:80")], 0, RESTED), Some(ServiceId(3)));
}

/// What the canary's entry says is not trusted: any program that may write the maps can have changed it.
#[test]
fn a_start_continues_behind_the_ids_of_the_previous_run_and_assigns_all() {
    let given = |service: u32| {
        let mut state = kernel(&[("198.51.100.1:80", 4)]);
        let canary = ServiceEntry { next_ids: NextIds { service, backend: 0 }, ..ServiceEntry::default() };
        state.services.insert(ServiceId::CANARY, canary.into());
        let mut ids = ServiceIds::new(6, &state);
        let mut given = || ids.allocate(TAG, &[], 0, NOW).map(|id| id.0);
        [given(), given(), given(), given(), given()]
    };
    assert_eq!(given(3), [Some(3), Some(5), Some(1), Some(2), None]);
    for unknown in [0, 1, 6, u32::MAX] {
        assert_eq!(given(unknown), [Some(1), Some(2), Some(3), Some(5), None], "{unknown}");
    }
}

#[test]
fn no_service_gets_the_id_of_the_canary() {
    let mut ids = ServiceIds::new(4, &kernel(&[("192.0.0.8:9/UDP", 0)]));
    assert_eq!(ids.allocate(TAG, &[l4("192.0.0.8:9/UDP")], 0, NOW), Some(ServiceId(1)));
    assert!(!ids.has_orphans());
}

fn slot(address: &str, backend: u32) -> Slot {
    Slot { backend: BackendId(backend), addr: l4(address) }
}

/// For an address shared by many services, the number is released with the last user, not with the first.
#[test]
fn a_backend_keeps_its_number_while_a_service_has_it() {
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
fn numbers_survive_a_restart_and_unused_ones_are_removed() {
    let mut state = MapState::default();
    let cluster = [slot("192.0.2.1:80", 7), slot("192.0.2.2:80", 9)].into();
    state.services.insert(ServiceId(1), ServiceEntry { cluster, ..ServiceEntry::default() }.into());
    let mut ids = BackendIds::new(&state);
    assert_eq!(ids.acquire(l4("192.0.2.1:80")), BackendId(7));
    assert_eq!(ids.acquire(l4("192.0.2.3:80")), BackendId(10));
    ids.forget_unused();
    assert_eq!(ids.used(), 2);
}

/// An id released at the end of a round was in use until then, however long ago the round began.
#[test]
fn an_id_rests_from_the_end_of_the_round_that_released_it() {
    let mut ids = ServiceIds::new(2, &MapState::default());
    let id = ids.allocate(TAG, &[], 0, Moment(0)).expect("one is free");
    ids.release(id, Moment(0));
    ids.end_round(Moment(5_000));
    assert_eq!(ids.allocate(TAG, &[], 0, Moment(5_999)), None);
    assert_eq!(ids.allocate(TAG, &[], 0, Moment(6_000)), Some(id));
    ids.end_round(Moment(9_000));
    ids.release(id, Moment(9_000));
    assert_eq!(
        ids.allocate(TAG, &[], 0, Moment(10_000)),
        Some(id),
        "an end of a round puts off no other round's releases"
    );
}

/// Every sequence of short lists, also in no order and with weights, against one user for each backend of the last.
#[test]
fn a_replaced_list_has_the_users_and_numbers_as_if_it_were_new() {
    let lists: [&[(&str, u16)]; 7] = [
        &[],
        &[("192.0.2.1:80", 1)],
        &[("192.0.2.1:80", 3), ("192.0.2.2:80", 1)],
        &[("192.0.2.2:80", 1), ("192.0.2.3:80", 2)],
        &[("192.0.2.3:80", 2), ("192.0.2.1:80", 1)],
        &[("192.0.2.1:80", 1), ("192.0.2.2:80", 1), ("192.0.2.3:80", 1)],
        &[("192.0.2.4:80", 1)],
    ];
    for first in lists {
        for second in lists {
            let mut ids = BackendIds::default();
            let mut slots = std::sync::Arc::default();
            for view in [first, second] {
                let view: Vec<(L4Addr, u16)> = view.iter().map(|(addr, count)| (l4(addr), *count)).collect();
                let (after, gone) = ids.replace(&slots, &view);
                ids.release(&gone);
                for slot in after.iter() {
                    let before = slots.iter().find(|before| before.addr == slot.addr);
                    assert!(before.is_none_or(|before| before == slot), "{first:?} to {second:?}");
                }
                let counts: Vec<_> = backends_of(&after)
                    .map(|(addr, count)| (addr, u16::try_from(count).expect("small in a test")))
                    .collect();
                assert_eq!(counts, view);
                slots = after;
            }
            assert_eq!(ids.used(), second.len(), "{first:?} to {second:?}");
            ids.release(&slots);
            assert_eq!(ids.used(), 0, "{first:?} to {second:?}");
        }
    }
}

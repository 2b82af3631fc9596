use std::collections::BTreeMap;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::state::entries::{BackendId, ServiceId, Slot};

use super::{MOST_SCORED, choose};

const SOCKETS: u64 = 20_000;
const SERVICE: ServiceId = ServiceId(7);

/// A list where backend `id` has as many slots as its weight.
fn list(backends: &[(u32, usize)]) -> Vec<Slot> {
    let addr = |id: u32| L4Addr::new(Addr::from_octets(u128::from(id).to_be_bytes()), 53, Protocol::Udp);
    let slot = |id: u32| Slot { backend: BackendId(id), addr: addr(id) };
    backends.iter().flat_map(|&(id, weight)| std::iter::repeat_n(slot(id), weight)).collect()
}

fn backend_of(socket: u64, list: &[Slot]) -> u32 {
    list[choose(socket, SERVICE, list).expect("the list is not empty")].backend.0
}

fn shares(list: &[Slot]) -> BTreeMap<u32, u64> {
    let mut shares = BTreeMap::new();
    (0..SOCKETS).for_each(|socket| *shares.entry(backend_of(socket, list)).or_default() += 1);
    shares
}

#[test]
fn an_empty_list_has_nothing_to_choose() {
    assert_eq!(choose(1, SERVICE, &[]), None);
    assert_eq!(choose(1, SERVICE, &list(&[(4, 1)])), Some(0));
}

/// Sockets opened one after another are distributed over backends with consecutive ids.
#[test]
fn weights_are_shares() {
    for backends in [&[(1, 1), (2, 1), (3, 1)][..], &[(10, 1), (11, 3)], &[(500, 5), (501, 1), (7, 2), (8, 2)]] {
        let list = list(backends);
        let total: usize = backends.iter().map(|(_, weight)| weight).sum();
        let shares = shares(&list);
        for (id, weight) in backends {
            let expected = SOCKETS * *weight as u64 / total as u64;
            let got = shares[id];
            // Five standard deviations of a fair choice are less than 360 of 20,000.
            assert!(got.abs_diff(expected) < 360, "backend {id} of {backends:?}: {got}, not {expected}");
        }
    }
}

#[test]
fn one_socket_spreads_over_services() {
    let list = list(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
    let mut counts = [0u32; 4];
    (0..4_000).for_each(|service| counts[choose(99, ServiceId(service), &list).expect("not empty")] += 1);
    assert!(counts.iter().all(|count| count.abs_diff(1_000) < 140), "{counts:?}");
}

#[test]
fn a_backend_that_goes_moves_its_own_sockets_only() {
    let (all, without) = (list(&[(3, 1), (9, 2), (4, 1), (6, 1)]), list(&[(3, 1), (4, 1), (6, 1)]));
    for socket in 0..SOCKETS {
        let (before, after) = (backend_of(socket, &all), backend_of(socket, &without));
        assert!(before == after || before == 9, "socket {socket} moved from {before} to {after}");
    }
}

#[test]
fn the_order_of_the_list_means_nothing() {
    let one = list(&[(3, 1), (9, 2), (4, 1), (6, 3)]);
    let other = list(&[(6, 3), (4, 1), (3, 1), (9, 2)]);
    assert!((0..SOCKETS).all(|socket| backend_of(socket, &one) == backend_of(socket, &other)));
}

/// A choice scores a part of a list that is longer than in any cluster. Every backend still gets its share, and the
/// removal of a backend moves only its own sockets, except for a few.
#[test]
fn long_lists_are_shared_too() {
    let backends: Vec<(u32, usize)> = (0..3 * MOST_SCORED).map(|id| (u32::try_from(id).expect("small"), 1)).collect();
    let (all, without) = (list(&backends), list(&backends[1..]));
    let mut quarters = [0u32; 4];
    let mut moved = 0;
    for socket in 0..400 {
        let before = backend_of(socket, &all);
        quarters[before as usize * 4 / backends.len()] += 1;
        moved += u32::from(before != 0 && before != backend_of(socket, &without));
    }
    assert!(quarters.iter().all(|count| count.abs_diff(100) < 45), "{quarters:?}");
    assert!(moved <= 4, "{moved} of 400 moved");
}

//! The backend choice of a UDP socket, over arbitrary lists: any length, weights, order and ids.

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::state::entries::{BackendId, ServiceId, Slot};
use nodelb_programs::rendezvous::{MOST_SCORED, choose};
use proptest::prelude::*;

use crate::cases;

/// Backends by id, each with its weight.
type Backends = Vec<(u32, usize)>;

fn slots(backends: &Backends) -> Vec<Slot> {
    let addr = |id: u32| L4Addr::new(Addr::from_octets(u128::from(id).to_be_bytes()), 53, Protocol::Udp);
    let slot = |id: u32| Slot { backend: BackendId(id), addr: addr(id) };
    backends.iter().flat_map(|(id, weight)| std::iter::repeat_n(slot(*id), *weight)).collect()
}

fn chosen(socket: u64, service: u32, backends: &Backends) -> Option<u32> {
    let slots = slots(backends);
    choose(socket, ServiceId(service), &slots).map(|place| slots[place].backend.0)
}

/// Consecutive ids, as those of one service, or arbitrary ones.
fn backends() -> impl Strategy<Value = Backends> {
    let ids = prop_oneof![
        prop::collection::btree_set(1..40_u32, 1..20),
        prop::collection::btree_set(1..u32::MAX, 1..20),
        prop::collection::btree_set(1..2_000_u32, 100..300),
    ];
    let ids = ids.prop_map(|ids| ids.into_iter().collect::<Vec<_>>()).prop_shuffle();
    ids.prop_flat_map(|ids| {
        let weights = prop::collection::vec(1..4_usize, ids.len());
        weights.prop_map(move |weights| ids.iter().copied().zip(weights).collect())
    })
}

proptest! {
    #![proptest_config(cases(256))]

    /// The order has no effect; removing a backend moves only its own sockets; adding one or
    /// raising its weight moves sockets only to that backend.
    #[test]
    fn a_change_moves_only_the_sockets_that_it_must(
        list in backends(),
        service in 0..100_000_u32,
        first in 0..1_u64 << 40,
        at in any::<prop::sample::Index>(),
    ) {
        let place = at.index(list.len());
        let one = list[place].0;
        let mut without = list.clone();
        without.remove(place);
        let mut heavier = list.clone();
        heavier[place].1 += 2;
        let mut turned = list.clone();
        turned.rotate_left(place);
        turned.reverse();
        prop_assert!(slots(&heavier).len() <= MOST_SCORED);
        for socket in first..first + 64 {
            let own = chosen(socket, service, &list);
            prop_assert!(own.is_some());
            prop_assert_eq!(chosen(socket, service, &turned), own);
            let weighed = chosen(socket, service, &heavier);
            prop_assert!(weighed == own || weighed == Some(one));
            if own != Some(one) {
                prop_assert_eq!(chosen(socket, service, &without), own);
            }
        }
    }
}

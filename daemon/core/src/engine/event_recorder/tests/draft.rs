use std::collections::BTreeSet;

use proptest::prelude::*;

use super::differences;
use crate::model::addr::L4Addr;
use crate::state::entries::{BackendId, Slot};

/// The list of these backends, each with its number of slots, in address order.
fn list(backends: &[u8]) -> Vec<Slot> {
    let slots = |(host, count): (usize, &u8)| {
        let addr: L4Addr = format!("192.0.2.{host}:80").parse().expect("valid in a test");
        std::iter::repeat_n(Slot { backend: BackendId(1), addr }, usize::from(*count))
    };
    backends.iter().enumerate().flat_map(slots).collect()
}

proptest! {
    #[test]
    fn the_differences_are_those_of_the_sets(
        before in prop::collection::vec(0_u8..4, 0..12),
        after in prop::collection::vec(0_u8..4, 0..12),
    ) {
        let (before, after) = (list(&before), list(&after));
        let (added, removed) = differences(&before, &after);
        let set = |slots: &[Slot]| slots.iter().map(|slot| slot.addr).collect::<BTreeSet<L4Addr>>();
        let (before, after) = (set(&before), set(&after));
        let found = |addresses: crate::history::Addresses| format!("{addresses:?}");
        prop_assert_eq!(found(added), found(after.difference(&before).copied().collect()));
        prop_assert_eq!(found(removed), found(before.difference(&after).copied().collect()));
    }
}

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{IdMap, ServiceId};

fn id() -> impl Strategy<Value = ServiceId> {
    prop_oneof![0..40u32, 240..280u32, 65_520..65_560u32, (0..40u32).prop_map(|below| u32::MAX - below)]
        .prop_map(ServiceId)
}

proptest! {
    /// It equals an ordered map after each operation; and copies for readers do not change.
    #[test]
    fn a_map_is_an_ordered_map(operations in prop::collection::vec((id(), prop::option::of(0..4u8)), 0..200)) {
        let (mut map, mut model) = (IdMap::new(), BTreeMap::new());
        let mut copies = Vec::new();
        for (id, value) in operations {
            let (before, expected) = match value {
                Some(value) => (map.insert(id, value), model.insert(id, value)),
                None => (map.remove(&id), model.remove(&id)),
            };
            prop_assert_eq!(before, expected);
            prop_assert_eq!(map.get(&id), model.get(&id));
            prop_assert_eq!(map.len(), model.len());
            copies.push((map.clone(), model.clone()));
        }
        for (copy, expected) in &copies {
            prop_assert!(copy.iter().eq(expected.iter().map(|(id, value)| (*id, value))));
            let differs = |id: &ServiceId| expected.get(id) != model.get(id);
            let all: BTreeMap<_, _> = expected.iter().chain(&model).collect();
            let differing: Vec<ServiceId> = all.into_keys().copied().filter(differs).collect();
            prop_assert_eq!(copy.differences(&map), differing);
            prop_assert_eq!(*copy == map, *expected == model);
            prop_assert_eq!(&copy.iter().map(|(id, value)| (id, *value)).collect::<IdMap<u8>>(), copy);
        }
    }
}

#[test]
fn an_empty_map_has_no_entries() {
    let map = IdMap::<u8>::new();
    assert!(map.is_empty() && map.iter().next().is_none() && map.get(&ServiceId(u32::MAX)).is_none());
    assert_eq!(map, IdMap::default());
}

/// A change that concerns one entry copies one node of each level, whatever the size of the map is.
#[test]
fn a_change_shares_all_other_nodes_with_copies() {
    let value = Arc::new(());
    let mut map: IdMap<Arc<()>> = (0..50_000).map(|id| (ServiceId(id), Arc::clone(&value))).collect();
    let copy = map.clone();
    let before = Arc::strong_count(&value);
    map.insert(ServiceId(25_000), Arc::clone(&value));
    assert_eq!(Arc::strong_count(&value), before + super::WIDTH);
    assert_eq!(map.remove(&ServiceId(50_000)), None);
    assert_eq!(Arc::strong_count(&value), before + super::WIDTH, "nothing was copied");
    drop(copy);
}

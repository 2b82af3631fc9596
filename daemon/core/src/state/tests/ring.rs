use std::collections::BTreeMap;

use super::{OFFSETS_PER_SLOT, client_hash, ring, size, slots_with_ring};
use crate::model::addr::L4Addr;
use crate::state::entries::{BackendId, Slot};

/// A list of these backends, each with its number of slots. The last part of the address is the number of the backend.
fn list(backends: impl IntoIterator<Item = (u32, usize)>) -> Vec<Slot> {
    let slots = backends.into_iter().flat_map(|(number, weight)| {
        let addr: L4Addr = format!("10.{}.{}.{}:8080", number >> 16, number >> 8 & 255, number & 255).parse().unwrap();
        std::iter::repeat_n(Slot { backend: BackendId(number + 1), addr }, weight)
    });
    slots.collect()
}

fn equal(backends: u32) -> Vec<Slot> {
    list((0..backends).map(|number| (number, 1)))
}

/// The backend of each entry.
fn owners(list: &[Slot]) -> Vec<L4Addr> {
    ring(list).into_iter().map(|offset| list[usize::from(offset)].addr).collect()
}

fn counts(owners: &[L4Addr]) -> BTreeMap<L4Addr, usize> {
    let mut counts = BTreeMap::new();
    owners.iter().for_each(|owner| *counts.entry(*owner).or_insert(0) += 1);
    counts
}

#[test]
fn the_size_follows_the_number_of_slots() {
    let sizes = [0, 1, 2, 10, 11, 40, 41, 160, 161, 65_535].map(size);
    assert_eq!(sizes, [0, 0, 1_021, 1_021, 4_093, 4_093, 16_381, 16_381, 65_521, 65_521]);
    for slots in [0, 1] {
        assert_eq!((slots_with_ring(slots), ring(&equal(u32::try_from(slots).unwrap()))), (slots, Vec::new()));
    }
    assert_eq!([2, 10, 40, 160, 1_000].map(slots_with_ring), [2 + 86, 10 + 86, 40 + 342, 160 + 1_366, 1_000 + 5_461]);
    assert_eq!(ring(&equal(161)).len().div_ceil(OFFSETS_PER_SLOT), slots_with_ring(161) - 161);
}

/// A ring in the maps is read by programs of another version of nodelb, and every node must compute the same one.
#[cfg(target_endian = "little")]
#[test]
fn the_ring_never_changes() {
    // The expected values were computed by another program.
    let found = ring(&equal(3));
    let text: String = found.iter().take(48).map(u16::to_string).collect();
    let sum = found.iter().zip(1..).fold(0u64, |sum, (offset, place)| sum + u64::from(*offset) * place);
    assert_eq!((text.as_str(), sum), ("202121110202101012202111010221100120201111002220", 521_436));
}

/// Each backend has its share of the entries, up to one turn.
#[test]
fn every_entry_is_taken_and_the_load_is_even() {
    for (backends, most) in [(2, 1.001), (3, 1.003), (10, 1.01), (40, 1.01), (160, 1.01), (650, 1.01), (1_024, 1.02)] {
        let list = equal(backends);
        let counts = counts(&owners(&list));
        let mean = f64::from(size(list.len())) / f64::from(backends);
        let load = counts.values().copied().max().map_or(0.0, |most| most as f64 / mean);
        assert_eq!(counts.len(), backends as usize);
        assert!(load <= most, "{backends} backends: max/mean load {load:.4}");
        let spread = counts.values().max().unwrap() - counts.values().min().unwrap();
        assert!(spread <= 1, "{backends} backends: the counts differ by {spread}");
    }
}

#[test]
fn a_longer_list_than_ring_uses_every_entry() {
    let list = equal(65_535);
    let found = counts(&owners(&list));
    assert_eq!((found.len(), found.values().copied().max()), (65_521, Some(1)));
}

#[test]
fn weights_are_shares_of_the_entries() {
    let list = list([(1, 1), (2, 3), (3, 6)]);
    let counts: Vec<usize> = counts(&owners(&list)).into_values().collect();
    assert_eq!((counts.iter().sum::<usize>(), list.len()), (1_021, 10));
    for (count, weight) in counts.iter().zip([1, 3, 6]) {
        assert!((102 * weight..=103 * weight).contains(count), "{counts:?}");
    }
}

#[test]
fn neither_the_order_nor_the_ids_matter() {
    let sorted = list([(1, 2), (2, 1), (3, 4), (4, 1)]);
    let expected = owners(&sorted);
    let mut mixed: Vec<Slot> = sorted.iter().rev().copied().collect();
    mixed.swap(0, 4);
    mixed.iter_mut().for_each(|slot| slot.backend = BackendId(slot.backend.0 * 1_000 + 7));
    assert_eq!(owners(&mixed), expected);
    for (offset, slot) in ring(&mixed).into_iter().map(|offset| (usize::from(offset), mixed[usize::from(offset)])) {
        assert_eq!(mixed.iter().position(|other| other.addr == slot.addr), Some(offset), "the first slot of a backend");
    }
}

/// The share of the clients of other backends that get another backend because one is missing, in thousandths.
fn moved(backends: u32, gone: u32) -> usize {
    let (before, after) = (owners(&equal(backends)), {
        owners(&list((0..backends).filter(|number| *number != gone).map(|number| (number, 1))))
    });
    let lost = equal(backends)[gone as usize].addr;
    let others = before.iter().zip(&after).filter(|(before, _)| **before != lost);
    let (all, moved) =
        others.fold((0, 0), |(all, moved), (before, after)| (all + 1, moved + usize::from(before != after)));
    moved * 1_000 / all
}

#[test]
fn the_loss_of_a_backend_moves_few_clients_of_the_others() {
    let cases = [(3, 1), (5, 2), (10, 4), (20, 7), (40, 39), (100, 50), (160, 3), (300, 200), (650, 0)];
    let found = cases.map(|(backends, gone)| moved(backends, gone));
    assert!(found.iter().all(|moved| *moved <= 40), "{found:?} thousandths of {cases:?}");
}

fn hash(client: &str, connection: Option<(u16, &str)>) -> u64 {
    client_hash(client.parse().unwrap(), connection.map(|(port, to)| (port, to.parse().unwrap())))
}

/// The numbers are those of another implementation, for machines with the least significant byte first.
#[test]
#[cfg(target_endian = "little")]
fn hashes_are_those_of_the_programs() {
    assert_eq!(hash("198.51.100.7", Some((40_000, "203.0.113.32:80/TCP"))), 0x172b_fc45_c6b1_e7d9);
    assert_eq!(hash("2001:db8:c::7", Some((40_000, "[2001:db8:f::1]:53/UDP"))), 0x596f_6675_7ff1_8411);
    assert_eq!(hash("198.51.100.7", None), 0xc244_718e_bdee_2e67);
}

#[test]
fn each_client_has_its_own_hash() {
    assert_ne!(hash("198.51.100.7", None), hash("198.51.100.8", None));
}

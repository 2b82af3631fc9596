use nodelb_core::model::addr::Protocol;
use nodelb_core::state::entries::BackendId;
use nodelb_core::state::ring;

use super::*;

/// The number is that of another implementation, for machines with the least significant byte first.
#[test]
#[cfg(target_endian = "little")]
fn the_number_of_a_client_is_that_of_the_programs() {
    assert_eq!(client_number("198.51.100.7".parse().unwrap()), 0x851b_5a0e_d428_1df0);
}

#[test]
fn the_offset_of_a_hash_is_in_the_view() {
    let slot = |id: u32| Slot {
        backend: BackendId(id),
        addr: L4Addr::new(Addr::LOOPBACK_V4, u16::try_from(id).unwrap(), Protocol::Tcp),
    };
    for count in [1, 2, 3, 11] {
        let view: Vec<Slot> = (1..=count).map(slot).collect();
        for hash in [0, 1 << 40, u64::MAX / 2, u64::MAX] {
            assert!(ring::select(&view, hash) < view.len());
            assert!(at_random(&view, (hash >> 32) as u32) < view.len());
        }
    }
}

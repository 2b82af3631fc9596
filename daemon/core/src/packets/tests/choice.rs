use super::*;
use crate::model::addr::Protocol;

fn endpoint(addr: &str, port: u16) -> Endpoint {
    Endpoint::new(addr.parse().unwrap(), port)
}

/// The numbers are those of another implementation, for machines with the least significant byte first.
#[test]
#[cfg(target_endian = "little")]
fn hashes_are_those_of_the_programs() {
    let to = |text: &str| Some(text.parse().unwrap());
    assert_eq!(hash(endpoint("198.51.100.7", 40_000), to("203.0.113.32:80/TCP")), 0x172b_fc45_c6b1_e7d9);
    assert_eq!(hash(endpoint("2001:db8:c::7", 40_000), to("[2001:db8:f::1]:53/UDP")), 0x596f_6675_7ff1_8411);
    assert_eq!(hash(endpoint("198.51.100.7", 40_000), None), 0xc244_718e_bdee_2e67);
    assert_eq!(client_number("198.51.100.7".parse().unwrap()), 0x851b_5a0e_d428_1df0);
}

#[test]
fn with_affinity_the_port_has_no_effect() {
    assert_eq!(hash(endpoint("198.51.100.7", 1), None), hash(endpoint("198.51.100.7", 2), None));
    assert_ne!(hash(endpoint("198.51.100.7", 1), None), hash(endpoint("198.51.100.8", 1), None));
}

#[test]
fn the_offset_of_a_hash_is_in_the_view() {
    let slot = |id: u32| Slot {
        backend: crate::state::entries::BackendId(id),
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

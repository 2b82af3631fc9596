use super::*;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

#[test]
fn entries_round_trip_and_are_sealed_to_their_address() {
    let (one, other) = (l4("192.0.2.7:80/TCP"), l4("[2001:db8::7]:80/TCP"));
    for bits in 0..4 {
        let entry = OutsideEntry { service: ServiceId(70_000), local: bits & 1 != 0, has_ranges: bits & 2 != 0 };
        let mut bytes = outside(&one, &entry);
        assert_eq!((parse_outside(&one, &bytes), parse_outside(&other, &bytes)), (Some(entry), None));
        bytes[0] ^= 1;
        assert_eq!(parse_outside(&one, &bytes), None, "another service");
    }
}

#[test]
fn a_range_is_the_key_of_a_trie_after_the_service_id() {
    let of = |text: &str, prefix| SourceRange::new(text.parse().unwrap(), prefix);
    let bytes = range(ServiceId(0x0102_0304), of("10.1.0.0", 96 + 16));
    let expected = [[32 + 96 + 16, 0, 0, 0], [1, 2, 3, 4], [0; 4], [0; 4], [0, 0, 0xff, 0xff], [10, 1, 0, 0]].concat();
    if cfg!(target_endian = "little") {
        assert_eq!(bytes.to_vec(), expected);
    }
    for (text, prefix) in [("0.0.0.0", 96), ("192.0.2.7", 128), ("::", 0), ("2001:db8::", 33), ("2001:db8::1", 128)] {
        let range_of = of(text, prefix);
        assert_eq!(parse_range(&range(ServiceId(9), range_of)), Some((ServiceId(9), range_of)), "{text}");
    }
    for prefix_len in [0_u32, 31, 161, u32::MAX] {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&prefix_len.to_ne_bytes());
        assert_eq!(parse_range(&bytes), None, "{prefix_len}");
    }
}

#[test]
fn uplinks_round_trip() {
    let addr = |text: &str| Some(l4(text).addr);
    for (v4, v6) in [(None, None), (addr("192.0.2.1:1"), None), (addr("192.0.2.1:1"), addr("[2001:db8::1]:1"))] {
        let entry = UplinkEntry {
            v4,
            v6,
            mtu: 9_000,
            l2_length: 14,
            is_v4_source: v4.is_none(),
            is_v6_source: v6.is_some(),
            is_strict: v4 != v6,
        };
        let mut bytes = uplink(&entry);
        assert_eq!(parse_uplink(&bytes), Some(entry));
        bytes[47] = 1;
        assert_eq!(parse_uplink(&bytes), None, "the padding is not empty");
    }
}

#[test]
fn offsets_fill_the_place_of_a_slot() {
    let offsets: Vec<u16> = (1..=12).collect();
    let words = ring_words(&offsets);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let found: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_ne_bytes(*pair)).collect();
    assert_eq!(found, offsets);
    assert_eq!(ring_words(&[]), [0; SLOT_WORDS]);
}

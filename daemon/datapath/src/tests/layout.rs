use super::*;

fn addresses() -> Vec<L4Addr> {
    ["192.0.2.7:80/TCP", "255.255.255.255:65535/UDP", "[2001:db8::7]:443/TCP", "0.0.0.0:30080/UDP", "[::]:1/SCTP"]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect()
}

#[test]
fn frontend_keys_are_network_order_bytes() {
    let bytes = frontend_key(&"192.0.2.7:80/TCP".parse().unwrap());
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7, 0, 80, 6, 0]);
}

#[test]
fn frontend_keys_round_trip() {
    for addr in addresses() {
        assert_eq!(parse_frontend_key(&frontend_key(&addr)), Some(addr));
    }
    assert_eq!(parse_frontend_key(&[0xff; 20]), None, "no such protocol");
}

#[test]
fn frontends_round_trip() {
    for bits in 0..4 {
        let entry =
            FrontendEntry { service: ServiceId(70_000), inside_local: bits & 1 != 0, outside_local: bits & 2 != 0 };
        for addr in addresses() {
            assert_eq!(parse_frontend(&addr, &frontend(&addr, &entry)), Some(entry));
        }
    }
}

#[test]
fn an_entry_is_sealed_to_its_address() {
    let entry = FrontendEntry { service: ServiceId(7), inside_local: false, outside_local: false };
    let one = addresses()[0];
    for other in &addresses()[1..] {
        assert_eq!(parse_frontend(other, &frontend(&one, &entry)), None, "{other}");
    }
    let mut bytes = frontend(&one, &entry);
    bytes[0] ^= 1;
    assert_eq!(parse_frontend(&one, &bytes), None, "another service");
}

#[test]
fn slots_round_trip() {
    for addr in addresses() {
        let slot = Slot { backend: BackendId(0x0102_0304), addr };
        assert_eq!(parse_slot(slot_words(&slot)), Some(slot));
    }
    assert_eq!(parse_slot([0; SLOT_WORDS]), None, "a slot never written");
}

#[test]
fn views_round_trip_and_the_empty_word_is_the_empty_view() {
    for (first, len, generation) in [(0, 0, 0), (1, 2, 3), (u32::MAX, 65_535, u16::MAX)] {
        let view = View { run: Run { first, len }, generation };
        assert_eq!(parse_view(view_word(view)), view);
    }
    assert_eq!(view_word(View { run: Run { first: 0, len: 0 }, generation: 0 }), 0);
}

#[test]
fn policies_round_trip_and_the_empty_word_is_not_in_use() {
    let ways = [Forward::Translate, Forward::Direct, Forward::Tunnel];
    for (bits, forward) in (0..128).flat_map(|bits| ways.map(|forward| (bits, forward))) {
        let policy = Policy {
            in_use: bits & 1 != 0,
            has_backends: bits & 2 != 0,
            affinity_seconds: 86_400,
            may_be_bound: bits & 4 != 0,
            has_rings: bits & 8 != 0,
            has_ranges: bits & 16 != 0,
            is_last_resort: bits & 32 != 0,
            is_local_last_resort: bits & 64 != 0,
            forward,
            source: None,
        };
        assert_eq!(parse_policy(policy_word(policy)), policy);
    }
    assert_eq!(parse_policy(0), Policy::default());
}

#[test]
fn node_addresses_round_trip() {
    for addr in addresses() {
        assert_eq!(parse_node_addr(&node_addr(addr.addr)), addr.addr);
    }
}

#[test]
fn the_next_ids_round_trip_and_zero_is_unknown() {
    for next in [NextIds::default(), NextIds { service: 0x0102_0304, backend: u32::MAX }] {
        assert_eq!(parse_next_ids(next_ids_word(next)), next);
    }
    assert_eq!(next_ids_word(NextIds::default()), 0);
}

/// An earlier nodelb wrote 0 in the new fields, which is no information.
#[test]
fn owners_round_trip_and_zero_is_no_owner() {
    for source in Source::ALL {
        let tag = OwnerTag { source, service: 0x0102_0304, port: u32::MAX };
        let policy = Policy { in_use: true, source: Some(source), ..Policy::default() };
        assert_eq!(parse_policy(policy_word(policy)), policy);
        assert_eq!(parse_owner(Some(source), owner_word(Some(tag))), Some(tag));
    }
    assert_eq!((owner_word(None), policy_word(Policy::default())), (0, 0));
    assert_eq!(parse_owner(parse_policy(0).source, 0), None);
    assert_eq!(parse_owner(None, 7), None, "left by a nodelb that does not know the word");
}

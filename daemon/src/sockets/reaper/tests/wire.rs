use proptest::prelude::*;

use super::*;

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn targets() -> Vec<(Socket, L4Addr)> {
    let socket = |family, source| Socket { netns: 4_026_531_840, cookie: u64::MAX - 1, family, ifindex: 3, source };
    vec![
        (socket(Family::Ipv4, l4("192.0.2.1:40000/UDP")), l4("198.51.100.1:53/UDP")),
        (socket(Family::Ipv6, l4("[2001:db8::1]:40001/TCP")), l4("[2001:db8::2]:53/TCP")),
        (socket(Family::Ipv6, l4("192.0.2.1:40002/UDP")), l4("198.51.100.1:53/UDP")),
    ]
}

fn carried(order: &Order) -> Order {
    let frame = order.encode();
    let (header, body) = frame.split_first_chunk().unwrap();
    assert_eq!(Order::length(*header).unwrap(), body.len());
    Order::decode(*header, body).unwrap()
}

#[test]
fn orders_arrive_as_they_were_sent() {
    for order in [
        Order::Sockets(targets()),
        Order::ConnectedTo(vec![l4("198.51.100.1:53/UDP"), l4("[2001:db8::2]:53/UDP")]),
        Order::ConnectedTo(Vec::new()),
        Order::Within("/sys/fs/cgroup/kubepods.slice".into()),
        Order::Spare(vec![1, u32::MAX]),
        Order::Spare((0..u32::from(u16::MAX)).collect()),
        Order::Rules(LegacyTables { v4: false, v6: true }),
        Order::Masqueraded(10_000..=29_999),
        Order::Policies,
        Order::Filter { ifindex: u32::MAX, change: FilterChange::AddQdisc },
    ]
    .into_iter()
    .chain(FILTER_CHANGES.map(|change| Order::Filter { ifindex: 3, change }))
    {
        assert_eq!(carried(&order), order);
    }
}

#[test]
fn connections_of_others_arrive_as_they_were_sent() {
    let ends = |backend, source| (l4(backend), l4(source));
    let connections: ForeignConnections = [
        ends("203.0.113.66:8002/TCP", "203.0.113.2:10007/TCP"),
        ends("[2001:db8:b1::2]:53/UDP", "[2001:db8:1::2]:10008/UDP"),
    ]
    .into();
    let bytes = encode_ends(&connections);
    assert_eq!(decode_ends(&bytes), connections);
    assert_eq!(decode_ends(&bytes[..bytes.len() - 1]).len(), 1);
}

#[test]
fn rules_of_others_arrive_as_they_were_sent() {
    let chain = |name: &str, family| DroppingChain { name: name.into(), family };
    let dropping =
        vec![chain("the chain a", None), chain("the chain b", Some(Family::Ipv4)), chain("", Some(Family::Ipv6))];
    let rules = ForeignRules { has_table: true, has_chains: false, dropping };
    let bytes = encode_rules(&rules);
    assert_eq!(decode_rules(&bytes).unwrap(), rules);
    assert!(decode_rules(&[]).is_err(), "a reaper that has written nothing has found nothing out");
    assert_eq!(
        decode_rules(&[HAS_CHAINS, 9, b'x', 0, 4, 0xff, 0]).unwrap(),
        ForeignRules { has_chains: true, ..ForeignRules::default() }
    );
    assert_eq!(
        encode_rules(&ForeignRules { dropping: vec![chain("a\0b", None)], ..rules }),
        [HAS_TABLE, BOTH, b'a', b'b', 0]
    );
}

#[test]
fn an_order_is_bounded() {
    let many = targets().into_iter().cycle().take(BATCH + 1).collect();
    let Order::Sockets(carried) = carried(&Order::Sockets(many)) else { panic!("another order") };
    assert_eq!(carried.len(), BATCH);
    let [low, high] = u16::try_from(BATCH + 1).unwrap().to_ne_bytes();
    for header in [
        [SOCKETS, 0, low, high],
        [0, 0, 1, 0],
        [RULES, 0, 0, 0],
        [RULES, 0, 2, 0],
        [FILTER, 0, 2, 0],
        [WITHIN, 0, 255, 255],
        [255, 255, 255, 255],
    ] {
        assert!(Order::length(header).is_err(), "{header:?}");
    }
}

#[test]
fn an_unknown_change_of_a_filter_is_refused() {
    let frame = Order::Filter { ifindex: 3, change: FilterChange::AddQdisc }.encode();
    let (header, body) = frame.split_first_chunk::<HEADER>().unwrap();
    let mut body = body.to_vec();
    body[4] = u8::try_from(FILTER_CHANGES.len()).unwrap();
    assert!(Order::decode(*header, &body).is_err());
    assert!(Order::decode(*header, &body[..7]).is_err());
}

#[test]
fn answers_arrive_as_they_were_sent() {
    let outcomes = [Outcome { destroyed: 7, errno: 0 }, Outcome { destroyed: 0, errno: libc::ESRCH }];
    assert_eq!(decode_outcomes(&encode_outcomes(&outcomes)), outcomes);
    for hello in [Hello { everywhere: true }, Hello { everywhere: false }] {
        assert_eq!(Hello::decode(hello.encode()).unwrap(), hello);
    }
}

#[test]
fn another_version_is_refused() {
    let mut bytes = Hello { everywhere: true }.encode();
    bytes[0] ^= 1;
    let refused = Hello::decode(bytes).unwrap_err();
    assert!(refused.to_string().contains("restart nodelb"), "{refused}");
}

#[test]
fn a_cgroup_is_an_absolute_path() {
    for path in ["", "kubepods.slice"] {
        let frame = Order::Within(path.into()).encode();
        let (header, body) = frame.split_first_chunk().unwrap();
        assert!(Order::decode(*header, body).is_err(), "{path:?}");
    }
}

proptest! {
    #[test]
    fn nothing_that_comes_in_does_harm(header: [u8; HEADER], bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        if let Ok(length) = Order::length(header) {
            prop_assert!(length <= usize::from(u16::MAX) * INODE);
        }
        // Both results are valid; the test checks that the function returns.
        drop(Order::decode(header, &bytes));
        decode_outcomes(&bytes);
    }
}

#[test]
fn policies_are_decoded_as_they_were_encoded() {
    let selector = Selector {
        source: SourceRange::new("203.0.113.0".parse().unwrap(), 120),
        source_port: PortMask { port: 80, mask: 0xfff0 },
        target_port: PortMask { port: 443, mask: 0xffff },
        protocol: 17,
        ..Selector::everything(Family::Ipv4)
    };
    let policy = Policy { direction: PolicyDirection::Forward, priority: 77, selector, is_protected: true };
    let v6 = Policy { selector: Selector::everything(Family::Ipv6), is_protected: false, ..policy };
    let mut bytes = encode_policies(&[policy, v6]);
    assert_eq!(decode_policies(&bytes), [policy, v6]);
    bytes[0] = 3;
    assert_eq!(decode_policies(&bytes), [v6], "no such direction");
    bytes[POLICY + 4] = 129;
    assert_eq!(decode_policies(&bytes), [], "no such prefix");
}

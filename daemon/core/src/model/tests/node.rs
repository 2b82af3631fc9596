use super::*;

/// Two interfaces, loopback, and link-local addresses.
const OWN: [&str; 8] =
    ["127.0.0.1", "::1", "169.254.20.10", "fe80::1", "203.0.113.1", "203.0.113.9", "2001:db8::1", "2001:db8::9"];

fn set(addresses: &[&str]) -> BTreeSet<Addr> {
    addresses.iter().map(|text| text.parse().expect("an address")).collect()
}

fn node(policy: &[&str]) -> NodeFacts {
    NodeFacts {
        addresses: set(&OWN),
        primary: set(&["203.0.113.1", "2001:db8::1"]),
        nodeport_addresses: policy.iter().map(|text| text.parse().expect("an entry")).collect(),
        ..NodeFacts::default()
    }
}

fn object(addresses: &[&str]) -> NodeObject {
    NodeObject { addresses: set(addresses), ..NodeObject::default() }
}

#[test]
fn each_entry_means_what_it_says() {
    for (policy, expected) in [
        (&[][..], &[][..]),
        (&["primary"], &["203.0.113.1", "2001:db8::1"]),
        (&["loopback"], &["127.0.0.1", "::1"]),
        (&["0.0.0.0/0"], &["203.0.113.1", "203.0.113.9"]),
        (&["::/0"], &["2001:db8::1", "2001:db8::9"]),
        (&["203.0.113.8/29", "2001:db8::9"], &["203.0.113.9", "2001:db8::9"]),
        (&["127.0.0.0/8"], &["127.0.0.1"]),
        (&["127.0.0.2/32"], &[]),
        (&["126.0.0.0/7"], &[]),
        (&["::1/128"], &["::1"]),
        (&["169.254.0.0/16"], &["169.254.20.10"]),
        (&["168.0.0.0/5"], &[]),
        (&["fe80::/10"], &["fe80::1"]),
        (&["198.51.100.0/24"], &[]),
        (&["primary", "loopback", "203.0.113.9"], &["127.0.0.1", "::1", "203.0.113.1", "203.0.113.9", "2001:db8::1"]),
    ] {
        assert_eq!(answering(&node(policy), None), set(expected), "{policy:?}");
    }
}

#[test]
fn the_addresses_in_the_node_object_are_primary_if_the_node_has_them() {
    for (reported, expected) in [
        (&["203.0.113.9", "2001:db8::9"][..], &["203.0.113.9", "2001:db8::9"][..]),
        (&["203.0.113.9"], &["203.0.113.9", "2001:db8::1"]),
        (&["198.51.100.1", "2001:db8::9"], &["203.0.113.1", "2001:db8::9"]),
        (&[], &["203.0.113.1", "2001:db8::1"]),
    ] {
        assert_eq!(answering(&node(&["primary"]), Some(&object(reported))), set(expected), "{reported:?}");
    }
    let everywhere = node(&["0.0.0.0/0"]);
    assert_eq!(answering(&everywhere, Some(&object(&["203.0.113.9"]))), answering(&everywhere, None));
}

#[test]
fn a_primary_address_that_the_node_has_lost_is_not_primary() {
    let mut node = node(&["primary"]);
    node.addresses.remove(&"203.0.113.1".parse().expect("an address"));
    assert_eq!(answering(&node, None), set(&["2001:db8::1"]));
}

#[test]
fn entries_are_printed_as_they_are_written() {
    for text in ["primary", "loopback", "203.0.113.0/24", "2001:db8::/32"] {
        assert_eq!(text.parse::<NodePortAddress>().expect("an entry").to_string(), text);
    }
    let refused = |text: &str| text.parse::<NodePortAddress>().expect_err("no entry").to_string();
    assert!(refused("Primary").contains("`Primary` is not an address or CIDR"), "{}", refused("Primary"));
    assert!(refused("203.0.113.1/24").contains("write 203.0.113.0/24"));
}

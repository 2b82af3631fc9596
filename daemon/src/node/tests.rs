use super::*;

#[test]
fn interfaces_are_listed_without_loopback_and_link_local() {
    let addresses = interface_addresses().unwrap();
    assert!(addresses.iter().all(|addr| is_reachable(*addr)), "{addresses:?}");
}

#[test]
fn only_addresses_that_others_can_send_to_count() {
    for addr in ["127.0.0.1", "127.8.0.1", "::1", "169.254.20.10", "fe80::1", "0.0.0.0", "::", "224.0.0.1"] {
        assert!(!is_reachable(addr.parse().unwrap()), "{addr}");
    }
    for addr in ["192.0.2.1", "2001:db8::1", "10.0.0.1"] {
        assert!(is_reachable(addr.parse().unwrap()), "{addr}");
    }
}

#[test]
fn the_configuration_comes_before_the_machine() {
    let node = Node { name: "node-1".into(), zone: "zone-a".into(), addresses: vec!["192.0.2.1".parse().unwrap()] };
    let facts = facts(&node).unwrap();
    assert_eq!((&*facts.name, &*facts.zone), ("node-1", "zone-a"));
    assert_eq!(facts.addresses, BTreeSet::from(["192.0.2.1".parse().unwrap()]));
}

#[test]
fn what_the_configuration_leaves_open_is_found() {
    let facts = facts(&Node::default()).unwrap();
    assert!(!facts.name.is_empty());
    assert_eq!(*facts.name, facts.name.to_lowercase());
    assert_eq!(facts.addresses, interface_addresses().unwrap());
}

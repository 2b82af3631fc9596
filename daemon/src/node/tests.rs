use super::*;

#[test]
fn the_configuration_comes_before_the_machine() {
    let nodeport_addresses = vec![NodePortAddress::Loopback];
    let node = Node { name: "node-1".into(), zone: "zone-a".into(), nodeport_addresses: nodeport_addresses.clone() };
    let identity = Identity::of(&node).unwrap();
    assert_eq!((&*identity.name, &*identity.zone), ("node-1", "zone-a"));
    let own = ["192.0.2.1".parse().unwrap()].into();
    let facts = identity.facts(&Addresses { own, ..Addresses::default() });
    assert_eq!((&*facts.name, facts.addresses.len(), facts.nodeport_addresses), ("node-1", 1, nodeport_addresses));
}

#[test]
fn a_name_that_the_configuration_leaves_open_is_found() {
    let identity = Identity::of(&Node::default()).unwrap();
    assert!(!identity.name.is_empty());
    assert_eq!(*identity.name, identity.name.to_lowercase());
    assert_eq!(identity.nodeport_addresses, [NodePortAddress::Primary]);
}

use super::*;

fn addr(text: &str) -> Addr {
    text.parse().unwrap()
}

fn set(addresses: &[&str]) -> BTreeSet<Addr> {
    addresses.iter().map(|text| addr(text)).collect()
}

/// An address on the interface with this index.
fn on(interface: u32, text: &str) -> Address {
    let addr = addr(text);
    let is_global = !addr.is_loopback() && !addr.is_link_local();
    Address { interface, addr, is_global, is_in_doubt: false, is_passing: false, is_secondary: false }
}

/// A host with lo, eth0, eth1 and the interface that kube-proxy leaves behind.
fn machine(addresses: Vec<Address>, sources: &[&str]) -> Machine {
    let interface = |(name, is_loopback): (&str, bool)| Interface {
        name: name.into(),
        is_up: true,
        is_loopback,
        ..Interface::default()
    };
    let names = [("lo", true), ("eth0", false), ("eth1", false), (LEFTOVERS[0], false)];
    let interfaces = (1..).zip(names.map(interface)).collect();
    let sources = sources.iter().map(|text| addr(text)).collect();
    Machine { interfaces, addresses, sources, ways_out: BTreeSet::new() }
}

fn computed(machine: &Machine) -> Addresses {
    Addresses::new(machine, &[], &[])
}

#[test]
fn what_counts_as_the_nodes_own() {
    let mut host = machine(
        vec![
            on(1, "127.0.0.1"),
            on(1, "::1"),
            on(1, "10.0.0.9"),
            on(2, "203.0.113.1"),
            on(2, "fe80::1"),
            on(3, "203.0.113.1"),
            on(3, "169.254.20.10"),
            on(4, "10.96.0.1"),
            on(7, "203.0.113.7"),
            Address { is_in_doubt: true, ..on(2, "2001:db8::2") },
            Address { is_passing: true, ..on(2, "2001:db8::3") },
        ],
        &[],
    );
    let all = ["127.0.0.1", "::1", "10.0.0.9", "203.0.113.1", "169.254.20.10", "203.0.113.7", "2001:db8::3"];
    assert_eq!(computed(&host).own, set(&all));
    if let Some(eth1) = host.interfaces.get_mut(&3) {
        eth1.is_up = false;
    }
    let up = ["127.0.0.1", "::1", "10.0.0.9", "203.0.113.1", "203.0.113.7", "2001:db8::3"];
    assert_eq!(computed(&host).own, set(&up));
}

#[test]
fn the_primary_address_is_the_source_of_the_default_route() {
    let addresses = || vec![on(1, "10.0.0.9"), on(2, "203.0.113.1"), on(2, "203.0.113.2"), on(3, "203.0.113.3")];
    for (sources, expected) in [
        (&["203.0.113.3"][..], "203.0.113.3"),
        (&["203.0.113.2", "2001:db8::1"], "203.0.113.2"),
        (&["10.0.0.9"], "10.0.0.9"),
        (&[], "203.0.113.1"),
        (&["198.51.100.1"], "203.0.113.1"),
    ] {
        assert_eq!(computed(&machine(addresses(), sources)).primary, set(&[expected]), "{sources:?}");
    }
}

#[test]
fn without_a_default_route_it_is_the_first_that_is_good_for_others() {
    let only_local = machine(vec![on(1, "127.0.0.1"), on(2, "169.254.1.1"), on(2, "fe80::1")], &[]);
    assert_eq!(computed(&only_local).primary, set(&[]));
    let on_loopback = machine(vec![on(1, "127.0.0.1"), on(1, "10.0.0.9")], &[]);
    assert_eq!(computed(&on_loopback).primary, set(&["10.0.0.9"]));
    let dual = machine(vec![on(3, "203.0.113.3"), on(3, "2001:db8::3"), on(2, "2001:db8::2")], &[]);
    assert_eq!(computed(&dual).primary, set(&["203.0.113.3", "2001:db8::2"]));
    let link_scope = Address { is_global: false, ..on(2, "203.0.113.9") };
    assert_eq!(computed(&machine(vec![link_scope, on(3, "203.0.113.3")], &[])).primary, set(&["203.0.113.3"]));
}

#[test]
fn a_temporary_address_is_primary_only_where_there_is_no_other() {
    let passing = |text| Address { is_passing: true, ..on(2, text) };
    let both = machine(vec![passing("2001:db8::7"), on(2, "2001:db8::1")], &["2001:db8::7"]);
    assert_eq!(computed(&both).primary, set(&["2001:db8::1"]));
    let alone = machine(vec![passing("2001:db8::7"), on(3, "2001:db8::3")], &["2001:db8::7"]);
    assert_eq!(computed(&alone).primary, set(&["2001:db8::7"]));
}

/// The kernel chooses the newest address of IPv6 towards others.
#[test]
fn another_address_does_not_move_the_primary_one() {
    let (first, second) = ("2001:db8:1::2", "2001:db8:2::2");
    let after = |machine: &Machine, former: &[&str]| {
        let former: Vec<Addr> = former.iter().map(|text| addr(text)).collect();
        Addresses::new(machine, &former, &[])
    };
    let both = machine(vec![on(2, second), on(2, first)], &[second]);
    assert_eq!(after(&both, &[first]).primary, set(&[first]));
    assert_eq!(after(&both, &[]).primary, set(&[second]));
    assert_eq!(after(&both, &["2001:db8:7::2"]).primary, set(&[second]), "the node no longer has it");
    let deprecated = Address { is_passing: true, ..on(2, first) };
    assert_eq!(after(&machine(vec![on(2, second), deprecated], &[second]), &[first]).primary, set(&[second]));
    let v4 = machine(vec![on(2, "203.0.113.1"), on(3, "198.51.100.1")], &["198.51.100.1"]);
    assert_eq!(after(&v4, &["203.0.113.1"]).primary, set(&["203.0.113.1"]));
}

#[test]
fn the_primary_address_is_so_again_when_it_is_back() {
    let (first, other, pod) = ("2001:db8:1::2", "2001:db8:2::2", "2001:db8:a::1");
    let mut now = Addresses::default();
    let mut see = |addresses: &[&str], source: &[&str]| {
        let addresses = addresses.iter().zip([2, 3, 7]).map(|(text, interface)| on(interface, text)).collect();
        now = Addresses::new(&machine(addresses, source), &now.settled, &[]);
        now.primary.clone()
    };
    assert_eq!(see(&[first, pod], &[first]), set(&[first]));
    assert_eq!(see(&[pod], &[]), set(&[pod]), "its link is down");
    assert_eq!(see(&[pod, first], &[first]), set(&[first]));
    assert_eq!(see(&[pod, other], &[other]), set(&[other]), "by another link");
    assert_eq!(see(&[pod, other, first], &[other]), set(&[first]));
    assert_eq!(see(&[other, "2001:db8:3::2"], &["2001:db8:3::2"]), set(&[other]), "it does not come back");
}

#[test]
fn the_address_of_a_service_is_never_primary() {
    let host = machine(vec![on(2, "2001:db8:1::100"), on(2, "2001:db8:1::2")], &["2001:db8:1::100"]);
    let addresses = Addresses::new(&host, &[], &["2001:db8:1::100/128".parse().unwrap()]);
    assert_eq!((addresses.primary, addresses.own.len()), (set(&["2001:db8:1::2"]), 2));
}

#[test]
fn changes_are_logged() {
    let some =
        Addresses { own: set(&["203.0.113.1", "203.0.113.2"]), primary: set(&["203.0.113.1"]), ..Addresses::default() };
    assert_eq!(some.difference(&some), None);
    assert_eq!(some.to_string(), "203.0.113.1, 203.0.113.2; primary: 203.0.113.1");
    let other = Addresses { own: set(&["203.0.113.1", "203.0.113.3"]), ..some.clone() };
    assert_eq!(other.difference(&some).unwrap(), "203.0.113.3 came; 203.0.113.2 gone");
    let none = Addresses { own: set(&["203.0.113.1", "203.0.113.2"]), ..Addresses::default() };
    assert_eq!(none.difference(&some).unwrap(), "primary now: none");
    let many: Vec<String> = (1..=10).map(|last| format!("198.51.100.{last}")).collect();
    let many = Addresses { own: many.iter().map(|text| addr(text)).collect(), ..Addresses::default() };
    assert!(many.difference(&Addresses::default()).unwrap().ends_with("198.51.100.8 and 2 more came"));
}

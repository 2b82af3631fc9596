use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

fn bytes(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
}

#[test]
fn only_what_can_change_the_nodes_addresses_is_of_interest() {
    assert!(is_of_interest(&bytes(libc::RTM_NEWADDR, &[])));
    assert!(is_of_interest(&bytes(libc::RTM_DELLINK, &[])));
    assert!(!is_of_interest(&bytes(libc::RTM_NEWNEIGH, &[])));
    assert!(is_of_interest(&bytes(libc::RTM_NEWROUTE, &[2, 0])), "a default route");
    assert!(!is_of_interest(&bytes(libc::RTM_NEWROUTE, &[2, 32])), "a pod's");
    assert!(!is_of_interest(&bytes(libc::RTM_DELROUTE, &[])));
    assert!(!is_of_interest(&[1, 2, 3]));
}

#[test]
fn an_address_is_the_local_side_and_counts_once_it_is_certain() {
    let mut message = AddressMessage::default();
    assert_eq!(address(&message), None);
    message.attributes.push(AddressAttribute::Address(Ipv4Addr::new(192, 0, 2, 2).into()));
    message.header.flags = rtnetlink::packet_route::address::AddressHeaderFlags::Secondary;
    let one = address(&message).unwrap();
    assert_eq!((one.addr.to_string(), one.is_global, one.is_passing), ("192.0.2.2".into(), true, false));
    message.attributes.push(AddressAttribute::Local(Ipv4Addr::new(192, 0, 2, 1).into()));
    assert_eq!(address(&message).unwrap().addr.to_string(), "192.0.2.1");

    let with = |flags| {
        let mut message = AddressMessage::default();
        message.attributes.push(AddressAttribute::Address(Ipv6Addr::LOCALHOST.into()));
        message.attributes.push(AddressAttribute::Flags(flags));
        let address = address(&message).unwrap();
        (address.is_in_doubt, address.is_passing)
    };
    assert_eq!(with(AddressFlags::Permanent), (false, false));
    assert_eq!(with(AddressFlags::Tentative), (true, false));
    assert_eq!(with(AddressFlags::Tentative | AddressFlags::Optimistic), (false, false));
    assert_eq!(with(AddressFlags::Permanent | AddressFlags::Dadfailed), (true, false));
    assert_eq!(with(AddressFlags::Secondary), (false, true));
    assert_eq!(with(AddressFlags::Deprecated), (false, true));
}

/// The test machine has a loopback interface, and the other addresses that getifaddrs(3) returns.
#[test]
fn the_machine_is_read_as_others_read_it() {
    let machine = read().unwrap();
    let names: Vec<&str> = machine.interfaces.values().map(|interface| interface.name.as_str()).collect();
    assert!(names.contains(&"lo"), "{names:?}");
    let read: std::collections::BTreeSet<Addr> = machine.addresses.iter().map(|address| address.addr).collect();
    let listed = nix::ifaddrs::getifaddrs().unwrap().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| std::net::IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| std::net::IpAddr::from(v6.ip())))
    });
    assert_eq!(read, listed.map(Addr::from).collect());
    assert!(machine.sources.iter().all(|source| read.contains(source)), "{:?}", machine.sources);
}

#[tokio::test]
async fn a_socket_for_events_takes_no_privilege() {
    let mut events = Events::open().unwrap();
    let quiet = tokio::time::timeout(Duration::from_millis(1), events.next()).await;
    assert!(quiet.is_err() || quiet.unwrap().is_ok());
}

/// `/proc/net/route` lists the IPv4 routes of the main table: the interface, the destination, and six columns later the
/// mask, both in hexadecimal.
#[test]
fn routes_are_read_as_proc_shows_them() {
    let machine = read().unwrap();
    let routes = read_routes(machine.interfaces.keys().copied()).unwrap();
    assert_eq!(routes.len(), machine.interfaces.len());
    let named = |name: &str| machine.interfaces.iter().find(|(_, it)| it.name == name).map(|(index, _)| *index);
    let table = std::fs::read_to_string("/proc/net/route").unwrap();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let found = routes[&named(columns[0]).unwrap()];
        assert!(found.has_any, "{line}");
        assert!(found.has_default || columns[7] != "00000000", "{line}");
    }
    assert_eq!(read_routes([u32::MAX >> 1]).unwrap().values().copied().collect::<Vec<_>>(), [Routes::default()]);
}

//! Addresses of services on an interface of the node: which ones the services get, derived
//! independently, from the sources alone.

use std::collections::BTreeSet;

use ipnet::IpNet;
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::FrontendKind;
use nodelb_core::trace::{Verdict, trace};
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases;
use crate::memory_maps;
use crate::model::{Host, ROOMY};
use crate::world::{PACKETS, SOURCES, changes, described, destinations, facts, guard};

const NETWORKS: [&str; 4] = ["198.51.100.2/32", "198.51.100.0/29", "2001:db8::/64", "203.0.113.0/30"];

/// The addresses of the node after these changes.
fn own(facts: &[Change]) -> BTreeSet<Addr> {
    let node = facts.iter().find_map(|change| match change {
        Change::Node(NodeFacts { addresses, .. }) => Some(addresses.clone()),
        _ => None,
    });
    node.unwrap_or_default()
}

/// The service addresses that any service claims, other than NodePorts.
fn claimed(facts: &[Change]) -> BTreeSet<L4Addr> {
    let ports = described(facts).into_values().flat_map(|service| &service.ports);
    let frontends = ports.flat_map(|port| port.frontends.iter().map(|frontend| (frontend, port.protocol)));
    let addresses = frontends.filter(|(frontend, _)| frontend.kind != FrontendKind::NodePort);
    addresses.map(|(frontend, protocol)| frontend.l4(protocol)).collect()
}

proptest! {
    #![proptest_config(cases(512))]

    /// A service has an address of the node exactly if a network of the list contains it, with its
    /// own port only. The maps for clients outside never have more.
    #[test]
    fn services_get_only_listed_addresses_of_the_node(
        changes in changes(32),
        networks in prop::collection::vec(select(&NETWORKS[..]), 0..3),
    ) {
        let own_addresses: Vec<IpNet> = networks.iter().map(|text| text.parse().expect("valid")).collect();
        let is_listed = |addr: Addr| own_addresses.iter().any(|net| net.contains(&addr.ip()));
        let rules = Guard { own_addresses: own_addresses.clone(), ..guard() };
        let mut host = Host::new(memory_maps::create(ROOMY, None), SOURCES, rules);
        host.packets = PACKETS;
        host.restart();
        host.send(changes.iter().cloned());
        host.send_synced();
        host.settle();
        let (held, facts) = (host.held(), facts(&changes));
        let (own, claimed) = (own(&facts), claimed(&facts));
        for at in held.frontends.keys().chain(held.outside.keys()).filter(|at| own.contains(&at.addr)) {
            prop_assert!(is_listed(at.addr) && claimed.contains(at), "{}: {:?}", at, networks);
        }
        for to in destinations().into_iter().filter(|to| own.contains(&to.addr)) {
            let other = L4Addr { port: 22, ..to };
            prop_assert_eq!(trace(&held, &guard().nodeport_range, other), Verdict::PassedThrough, "{}", other);
        }
    }

    /// An address that comes to a node and goes changes no map if a network of the list contains it.
    #[test]
    fn a_listed_address_may_come_and_go(changes in changes(32), address in select(&["198.51.100.2", "2001:db8::1"][..])) {
        let mut host = Host::new(memory_maps::create(ROOMY, None), SOURCES, Guard {
            own_addresses: vec![address.parse::<std::net::IpAddr>().expect("valid").into()],
            ..guard()
        });
        host.packets = PACKETS;
        host.restart();
        let is_node = |change: &Change| matches!(change, Change::Node(_));
        host.send(changes.iter().filter(|change| !is_node(change)).cloned());
        let fixed: Addr = "203.0.113.1".parse().expect("valid");
        let node = |addresses: &[Addr]| Change::Node(NodeFacts {
            name: "n1".into(),
            addresses: addresses.iter().copied().collect(),
            ..NodeFacts::default()
        });
        host.send([node(&[fixed])]);
        host.send_synced();
        host.settle();
        let before = host.text();
        host.send([node(&[fixed, address.parse().expect("valid")])]);
        host.settle();
        prop_assert_eq!(host.text(), before.clone());
        host.send([node(&[fixed])]);
        host.settle();
        prop_assert_eq!(host.text(), before);
    }
}

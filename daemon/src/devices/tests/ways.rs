use nodelb_core::model::addr::Family;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{BackendId, OutsideEntry, ServiceEntry};

use super::*;

const UPLINK: u32 = 2;
const BRIDGE: u32 = 3;

fn slot(id: u32, addr: &str) -> Slot {
    Slot { backend: BackendId(id), addr: addr.parse().unwrap() }
}

/// A service for clients outside the node with a backend elsewhere, a process of the node, and a pod of each family.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let slots = [(1, "203.0.113.9:80/TCP"), (2, "127.0.0.1:80/TCP"), (3, "10.1.0.2:80/TCP"), (4, "[fd00::2]:80/TCP")];
    let entry = |slots: &[Slot]| Arc::new(ServiceEntry { cluster: slots.into(), ..ServiceEntry::default() });
    let services = &mut snapshot.realised.services;
    services.insert(ServiceId(1), entry(&slots.map(|(id, addr)| slot(id, addr))));
    services.insert(ServiceId(2), entry(&[slot(3, "10.1.0.2:80/TCP")]));
    let outside = OutsideEntry { service: ServiceId(1), local: false, has_ranges: false };
    snapshot.realised.outside.insert("198.51.100.9:80/TCP".parse().unwrap(), outside);
    snapshot.realised.uplinks.insert(UPLINK, UplinkEntry::default());
    snapshot
}

fn way(addr: Addr, has_gateway: bool) -> Way {
    let device = if addr.to_string().starts_with("203.0.113.") { UPLINK } else { BRIDGE };
    Way { device, has_gateway }
}

fn chain(family: Option<Family>) -> DroppingChain {
    DroppingChain { name: "the chain FORWARD of the table filter".into(), family }
}

/// What is on the ways if a chain drops this family, and the bridge has no programs.
fn look(family: Option<Family>, has_gateway: bool) -> Ways {
    let without_programs = BTreeMap::from([(BRIDGE, Arc::from("bridge"))]);
    let all = |addresses: Vec<Addr>| Ok(addresses.into_iter().map(|addr| (addr, way(addr, has_gateway))).collect());
    ways(&snapshot(), (vec![chain(family)], &without_programs), all).unwrap()
}

#[test]
fn what_an_uplink_reaches_or_the_node_is_itself_is_not_behind_the_firewall() {
    let found = |family| look(family, false).firewall.behind;
    let backends = |ids: &[u32]| BTreeMap::from([(ServiceId(1), ids.iter().copied().map(BackendId).collect())]);
    assert_eq!(found(Some(Family::Ipv4)), backends(&[3]), "not those of services for processes of the node alone");
    assert_eq!(found(None), backends(&[3, 4]));
    let chains = vec![chain(Some(Family::Ipv4))];
    let refused = ways(&snapshot(), (chains, &BTreeMap::new()), |_| Err(io::ErrorKind::TimedOut.into()));
    assert!(refused.is_err());
}

/// Found as: backends behind a second way out, a veth pair, answered no client, and nothing said why.
#[test]
fn a_device_that_leads_to_a_router_and_has_no_programs_is_named() {
    assert_eq!(look(None, false).gateways, BTreeMap::new(), "pods and containers are on the device itself");
    assert_eq!(look(None, true).gateways, BTreeMap::from([("bridge".into(), BTreeSet::from([ServiceId(1)]))]));
}

#[test]
fn a_chain_of_one_family_drops_nothing_of_the_other() {
    let drops = |family| [Family::Ipv4, Family::Ipv6].map(|of| chain(family).drops(of));
    assert_eq!(drops(Some(Family::Ipv6)), [false, true]);
    assert_eq!(drops(None), [true, true]);
}

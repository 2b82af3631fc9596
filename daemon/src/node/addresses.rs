//! Computes the node's own addresses, and those that it uses towards other hosts, from interfaces, addresses and
//! routes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;
use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::text::listed;

/// Interfaces that kube-proxy's IPVS mode and kube-router leave behind: they have the ClusterIP of every service, which
/// is not an address of the node.
const LEFTOVERS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

const SHOWN: usize = 8;

/// How many former primary addresses are remembered.
const REMEMBERED: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) interfaces: BTreeMap<u32, Interface>,
    /// Addresses in the kernel's order.
    pub(crate) addresses: Vec<Address>,
    /// The source addresses of the routes to distant addresses.
    pub(crate) sources: Vec<Addr>,
    /// The interfaces of these routes.
    pub(crate) ways_out: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    pub(crate) is_loopback: bool,
    /// `IFLA_INFO_KIND`, such as `bridge`; empty for hardware.
    pub(crate) kind: String,
    /// The type of its link layer, `ARPHRD_*` of `linux/if_arp.h`.
    pub(crate) link_type: u16,
    /// Index of the bridge, bond or VRF that it is a port of; 0 for none.
    pub(crate) master: u32,
    /// Index of the interface below (of a VLAN) or at the other end (of a veth); 0 for none.
    pub(crate) lower: u32,
    /// Whether that interface is in another network namespace.
    pub(crate) is_lower_elsewhere: bool,
    /// In bytes.
    pub(crate) mtu: u32,
    /// Whether IPv4 packets are accepted only by the interface that leads back to their source: `rp_filter` is 1.
    pub(crate) is_strict: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: u32,
    pub(crate) addr: Addr,
    pub(crate) is_global: bool,
    /// Whether another host has the address or may have it: the kernel answers for it only after duplicate address
    /// detection (RFC 4862).
    pub(crate) is_in_doubt: bool,
    /// Deprecated or temporary (RFC 8981): valid for existing connections, but not to be relied on.
    pub(crate) is_passing: bool,
    /// An IPv4 address in the subnet of an earlier address of the interface.
    pub(crate) is_secondary: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// All addresses, including loopback. Link-local addresses only of IPv4: those of IPv6 mean nothing without an
    /// interface.
    pub(crate) own: BTreeSet<Addr>,
    /// The primary addresses, at most one per family.
    pub(crate) primary: BTreeSet<Addr>,
    /// Those that have been the source of a route to distant addresses, the earliest first. What is primary without such a
    /// route, as while a link is down, is so only for the time being.
    pub(crate) settled: Vec<Addr>,
}

impl Addresses {
    /// Computes the addresses. An address on an interface that is down does not count: the kernel has no route to it
    /// and does not answer. An unknown interface counts as an ordinary one. `former` are the settled primary addresses so far,
    /// and `services` the addresses that belong to services, which may move to another node.
    pub(crate) fn new(machine: &Machine, former: &[Addr], services: &[IpNet]) -> Self {
        let counted: Vec<&Address> = machine.addresses.iter().filter(|address| counts(address, machine)).collect();
        let own = counted.iter().map(|address| address.addr).collect();
        let is_of_service = |address: &&Address| services.iter().any(|net| net.contains(&address.addr.ip()));
        let nodes: Vec<&Address> = counted.into_iter().filter(|address| !is_of_service(address)).collect();
        let (mut primary, mut settled) = (BTreeSet::new(), former.to_vec());
        for family in [Family::Ipv4, Family::Ipv6] {
            let (found, is_settled) = self::primary(&nodes, machine, family, former);
            primary.extend(found);
            settled.extend(found.filter(|addr| is_settled && !former.contains(addr)));
        }
        let excess = settled.len().saturating_sub(REMEMBERED);
        settled.drain(..excess);
        Self { own, primary, settled }
    }

    /// The differences from the previous addresses, for the journal; `None` if there are none.
    pub(super) fn difference(&self, before: &Self) -> Option<String> {
        let mut difference = Vec::new();
        for (these, others, what) in [(self, before, "came"), (before, self, "gone")] {
            if !these.own.is_subset(&others.own) {
                difference.push(format!("{} {what}", shown(these.own.difference(&others.own))));
            }
        }
        if self.primary != before.primary {
            difference.push(format!("primary now: {}", shown(&self.primary)));
        }
        (!difference.is_empty()).then(|| difference.join("; "))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; primary: {}", shown(&self.own), shown(&self.primary))
    }
}

fn shown<'a>(addresses: impl IntoIterator<Item = &'a Addr>) -> String {
    Some(listed(addresses, SHOWN)).filter(|list| !list.is_empty()).unwrap_or_else(|| "none".into())
}

fn counts(address: &Address, machine: &Machine) -> bool {
    let addr = address.addr;
    let is_of_use =
        machine.interfaces.get(&address.interface).is_none_or(|it| it.is_up && !LEFTOVERS.contains(&&*it.name));
    let is_bound_to_link = addr.is_link_local() && addr.family() == Family::Ipv6;
    is_of_use && !address.is_in_doubt && !is_bound_to_link && !addr.is_unspecified() && !addr.is_multicast()
}

/// The address that the node uses towards other hosts: the source of its route to a distant address, otherwise the
/// first global address in the order of its interfaces, loopback last. A deprecated or temporary one counts only if its
/// interface has no other. Among several addresses, the kernel's choice for IPv6 is the newest: the earliest that was
/// primary therefore stays, or is so again. Also returns whether it is settled.
fn primary(counted: &[&Address], machine: &Machine, family: Family, former: &[Addr]) -> (Option<Addr>, bool) {
    let is_loopback = |address: &Address| machine.interfaces.get(&address.interface).is_some_and(|it| it.is_loopback);
    let is_candidate = |address: &Address| {
        let addr = address.addr;
        addr.family() == family && address.is_global && !addr.is_loopback() && !addr.is_link_local()
    };
    let mut candidates: Vec<&Address> = counted.iter().copied().filter(|address| is_candidate(address)).collect();
    candidates.sort_by_key(|address| (is_loopback(address), address.interface, address.is_passing));
    let source = candidates.iter().find(|address| machine.sources.contains(&address.addr));
    let lasting = source.filter(|source| source.is_passing).and_then(|source| {
        candidates.iter().find(|address| address.interface == source.interface && !address.is_passing)
    });
    let with = |former: &Addr| candidates.iter().find(|address| address.addr == *former && !address.is_passing);
    let settled = former.iter().find_map(with).or(lasting).or(source);
    (settled.or(candidates.first()).map(|address| address.addr), settled.is_some())
}

#[cfg(test)]
#[path = "tests/addresses.rs"]
mod tests;

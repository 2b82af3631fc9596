//! Which devices lead to other machines, and why the others do not: a pure function over what the kernel lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_datapath::XdpFit;

use crate::config::{Config, DeviceName, Packets};
use crate::node::addresses::{Address, Interface, Machine};
use crate::node::netlink::Routes;

/// Types of link layers, `ARPHRD_*` of `linux/if_arp.h`.
mod link_type {
    pub(super) const ETHER: u16 = 1;
    /// Types without a link-layer header: PPP, IP-in-IP, SIT, GRE, raw IP, and none.
    pub(super) const WITHOUT_HEADER: [u16; 8] = [512, 519, 768, 769, 776, 778, 823, 0xFFFE];
}

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER: u8 = 14;

/// Kinds of devices that do not lead to other machines, but to virtual machines, other namespaces or nowhere.
const LEAD_NOWHERE: [&str; 8] = ["macvtap", "ipvtap", "dummy", "ifb", "nlmon", "can", "vcan", "vxcan"];

/// Kinds of tunnels to other machines. A packet may arrive as soon as such a device is up, before it has an address.
const TUNNELS: [&str; 10] =
    ["vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap"];

/// Tunnels that the kernel itself adds to each network namespace, and that are usually not used.
const FALLBACKS: [&str; 7] = ["tunl0", "sit0", "gre0", "gretap0", "ip6tnl0", "ip6gre0", "erspan0"];

/// The maximum number of former uplinks that are remembered.
const REMEMBERED: usize = 256;

/// The length of chains of devices on top of each other that is followed; more than the kernel's limit of nesting.
const DEPTH: usize = 10;

/// A device of the node, and what nodelb uses it for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub ifindex: u32,
    pub name: Arc<str>,
    /// The kernel's name of its type, such as `vlan`; `physical` for hardware.
    pub kind: String,
    pub xdp: XdpFit,
    /// What the maps have of it as an uplink.
    pub entry: UplinkEntry,
    /// The addresses of the node for packets that leave by it: those that a default route selects, which may be temporary, and
    /// those of `entry` that it has now. Not those of services.
    pub sources: BTreeSet<Addr>,
    pub role: Role,
    /// Why it would be none if it had not been an uplink before.
    pub kept: Option<Reason>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads to other machines.
    Uplink,
    /// It leads to a pod with its own kernel.
    Pod,
    /// A bridge that leads to such pods, with a port that `packets.pod-devices` does not contain.
    PodBridge(String),
    Unused(Reason),
}

/// Why no program is attached to a device.
#[derive(Clone, Debug, PartialEq, Eq, strum::Display)]
pub enum Reason {
    #[strum(to_string = "it is down")]
    Down,
    #[strum(to_string = "the loopback device")]
    Loopback,
    #[strum(to_string = "a port of {0}")]
    Port(String),
    #[strum(to_string = "its other end is in another network namespace")]
    OtherNamespace,
    #[strum(to_string = "a {0} device does not lead to other machines")]
    Kind(String),
    #[strum(to_string = "a bridge without a port that leads to other machines")]
    Bridge,
    #[strum(to_string = "on top of {0}, which does not lead to other machines")]
    Lower(String),
    #[strum(to_string = "a VRF: programs are attached to the devices in it")]
    Vrf,
    #[strum(to_string = "it has neither an address nor a route")]
    NoAddress,
    #[strum(to_string = "excluded by packets.except")]
    Excluded,
    /// The node has its default route or its primary address there.
    #[strum(
        to_string = "excluded by packets.except: answers that leave by it are not translated, so connections time out"
    )]
    ExcludedThoughNeeded,
    #[strum(to_string = "not in packets.devices")]
    NotListed,
    #[strum(to_string = "the programs do not support its link layer (ARPHRD type {0})")]
    LinkLayer(u16),
}

impl Reason {
    /// Whether other machines may be behind the device although it has no programs.
    pub(super) fn may_lead_out(&self) -> bool {
        self.is_about_kind() || matches!(self, Self::NotListed)
    }

    /// Whether it is only likely that the device does not lead to other machines: a route over it shows that it does.
    fn is_about_kind(&self) -> bool {
        matches!(self, Self::OtherNamespace | Self::Kind(_) | Self::Bridge | Self::Lower(_))
    }
}

/// The interfaces with routes that [`devices`] needs: those that may lead to other machines.
pub(crate) fn candidates(machine: &Machine) -> impl Iterator<Item = u32> {
    let has_address = |index: u32| machine.addresses.iter().any(|it| it.interface == index && it.is_global);
    let may_lead_out = move |(index, interface): &(&u32, &Interface)| match obstacle(interface, machine) {
        None => interface.is_up,
        Some(reason) => reason.is_about_kind() && has_address(**index),
    };
    machine.interfaces.iter().filter(may_lead_out).map(|(index, _)| *index)
}

pub(crate) fn devices(machine: &Machine, routes: &BTreeMap<u32, Routes>, config: &Config) -> Vec<Device> {
    let facts = Facts { machine, routes, config };
    machine.interfaces.iter().map(|(index, interface)| facts.device(*index, interface)).collect()
}

pub(crate) type Former = BTreeMap<Arc<str>, Device>;

/// Lets devices that were uplinks before remain uplinks while they are down or without an address or route, also if they
/// were made again: the programs cost nothing there, and when the device is back, no packet of a connection passes it
/// untranslated. Remembers the uplinks of now.
pub(crate) fn keep(devices: &mut [Device], former: &mut Former, machine: &Machine) {
    for device in &mut *devices {
        let is_down = machine.interfaces.get(&device.ifindex).is_some_and(|interface| !interface.is_up);
        let is_passing = matches!(device.role, Role::Unused(Reason::Down | Reason::NoAddress | Reason::OtherNamespace))
            || is_down && device.role == Role::Uplink;
        let known = former.get(&device.name).filter(|known| is_passing && known.kind == device.kind);
        let Some(known) = known else { continue };
        if let Role::Unused(reason) = std::mem::replace(&mut device.role, Role::Uplink) {
            device.kept = Some(reason);
        } else if is_down {
            device.kept = Some(Reason::Down);
        }
        if known.ifindex == device.ifindex {
            device.entry.v4 = device.entry.v4.or(known.entry.v4);
            device.entry.v6 = device.entry.v6.or(known.entry.v6);
        }
    }
    if former.len() > REMEMBERED {
        former.clear();
    }
    let uplinks = devices.iter().filter(|device| device.role == Role::Uplink);
    former.extend(uplinks.map(|device| (Arc::clone(&device.name), device.clone())));
}

/// Whether devices lead to other machines, but none of them is up and has an address now: addresses of other devices, such
/// as those towards pods, reach no other machine. Nor does a tunnel without the device that its packets leave by. With a
/// route to distant addresses, the node may have its address on the loopback device (BGP unnumbered).
pub(crate) fn is_cut_off(devices: &[Device], machine: &Machine) -> bool {
    let is_connected = |device: &&Device| {
        let interface = machine.interfaces.get(&device.ifindex);
        let mut addresses = machine.addresses.iter().filter(|it| it.interface == device.ifindex);
        interface.is_some_and(|it| it.is_up && !is_tunnel(it)) && addresses.any(|it| it.is_global && !it.is_in_doubt)
    };
    let mut uplinks = devices.iter().filter(|device| device.role == Role::Uplink).peekable();
    uplinks.peek().is_some() && machine.sources.is_empty() && !uplinks.any(|device| is_connected(&device))
}

struct Facts<'a> {
    machine: &'a Machine,
    routes: &'a BTreeMap<u32, Routes>,
    config: &'a Config,
}

impl Facts<'_> {
    fn device(&self, ifindex: u32, interface: &Interface) -> Device {
        let header = header(interface.link_type);
        let role = match header {
            None if !interface.is_loopback => Role::Unused(Reason::LinkLayer(interface.link_type)),
            _ => self.role(ifindex, interface),
        };
        Device {
            ifindex,
            name: interface.name.as_str().into(),
            kind: Some(&interface.kind).filter(|kind| !kind.is_empty()).map_or("physical", String::as_str).into(),
            xdp: self.xdp_fit(ifindex, interface),
            entry: UplinkEntry {
                v4: self.source(ifindex, Family::Ipv4),
                v6: self.source(ifindex, Family::Ipv6),
                mtu: interface.mtu,
                l2_length: header.unwrap_or(0),
                is_v4_source: self.has_service_address(Family::Ipv4),
                is_v6_source: self.has_service_address(Family::Ipv6),
                is_strict: interface.is_strict,
            },
            sources: self.sources(ifindex),
            role,
            kept: None,
        }
    }

    fn xdp_fit(&self, ifindex: u32, interface: &Interface) -> XdpFit {
        let has_vlans = || self.machine.interfaces.values().any(|it| it.kind == "vlan" && it.lower == ifindex);
        match interface.kind.as_str() {
            _ if has_vlans() => XdpFit::Vlans,
            "bond" => XdpFit::Ports,
            _ => XdpFit::Fits,
        }
    }

    fn role(&self, index: u32, interface: &Interface) -> Role {
        let role = self.role_if_up(index, interface);
        let is_down = !interface.is_up && !interface.is_loopback;
        match role {
            // A device that will be an uplink gets its programs before its first packet.
            Role::Pod | Role::PodBridge(_) | Role::Unused(_) if is_down => Role::Unused(Reason::Down),
            role => role,
        }
    }

    /// What the device is used for if it is up, or as soon as it is.
    fn role_if_up(&self, index: u32, interface: &Interface) -> Role {
        let (Packets { devices, except, pod_devices, .. }, name) = (&self.config.packets, interface.name.as_str());
        let is_in = |names: &[DeviceName]| names.iter().any(|it| it.matches(name));
        if interface.is_loopback {
            return Role::Unused(Reason::Loopback);
        }
        if is_in(pod_devices) {
            let mut ports = ports(interface, self.machine);
            let unlisted = ports.find(|port| {
                !pod_devices.iter().any(|it| it.matches(&port.name)) && dead_end(port, self.machine, DEPTH).is_some()
            });
            return unlisted.map_or(Role::Pod, |port| Role::PodBridge(port.name.clone()));
        }
        let automatic = match obstacle(interface, self.machine) {
            None if !interface.is_up && is_tunnel(interface) => None,
            None if !self.is_in_use(index) => Some(Reason::NoAddress),
            // For example in a container that is a node, as with kind: the pair leads to the machine and on to others.
            Some(Reason::Kind(_)) if self.has_default_route(index) => None,
            Some(Reason::OtherNamespace | Reason::Bridge | Reason::Lower(_))
                if self.leads_out(index, interface, DEPTH) =>
            {
                (!self.is_in_use(index)).then_some(Reason::NoAddress)
            }
            obstacle => obstacle,
        };
        let is_needed = automatic.is_none() && self.is_needed(index);
        if is_in(except) {
            return Role::Unused(if is_needed { Reason::ExcludedThoughNeeded } else { Reason::Excluded });
        }
        match automatic {
            None if devices.iter().any(DeviceName::is_auto) || is_needed || is_in(devices) => Role::Uplink,
            None => Role::Unused(Reason::NotListed),
            Some(reason @ Reason::Port(_)) => Role::Unused(reason),
            Some(_) if is_in(devices) => Role::Uplink,
            Some(reason) => Role::Unused(reason),
        }
    }

    fn is_in_use(&self, index: u32) -> bool {
        let has_address = self.machine.addresses.iter().any(|address| address.interface == index);
        has_address || self.routes.get(&index).is_some_and(|routes| routes.has_any)
    }

    /// Whether packets to other machines leave by the device, or by one that it is on top of. An address is no evidence: if
    /// the device with the default route has none, the kernel sends with one of any device.
    fn leads_out(&self, index: u32, interface: &Interface, depth: usize) -> bool {
        let is_stacked = matches!(interface.kind.as_str(), "vlan" | "macvlan" | "ipvlan" | "macsec");
        let lower =
            self.machine.interfaces.get(&interface.lower).filter(|_| is_stacked && !interface.is_lower_elsewhere);
        self.has_default_route(index)
            || depth > 0 && lower.is_some_and(|lower| self.leads_out(interface.lower, lower, depth - 1))
    }

    /// Whether the device has a default route, or the address that packets of a default route leave by.
    fn has_default(&self, index: u32) -> bool {
        let mut addresses = self.addresses(index);
        self.has_default_route(index) || addresses.any(|address| self.machine.sources.contains(&address.addr))
    }

    fn has_default_route(&self, index: u32) -> bool {
        self.routes.get(&index).is_some_and(|routes| routes.has_default) || self.machine.ways_out.contains(&index)
    }

    /// Whether packets of connections leave by the device whatever the configuration says: answers by a default route,
    /// and packets to backends on other nodes by a tunnel, which has an address of the node.
    fn is_needed(&self, index: u32) -> bool {
        self.has_default(index) || self.addresses(index).any(|address| address.is_global)
    }

    fn addresses(&self, index: u32) -> impl Iterator<Item = &Address> {
        self.machine.addresses.iter().filter(move |address| address.interface == index)
    }

    /// The first address of the device that other machines can answer to for as long as a connection lasts. The address
    /// of a service may move to another node.
    fn source(&self, index: u32, family: Family) -> Option<Addr> {
        let mut addresses = self.addresses(index);
        let is_reachable = |addr: Addr| !addr.is_loopback() && !addr.is_link_local() && !addr.is_multicast();
        let found = addresses.find(|address| {
            let is_lasting = !address.is_in_doubt && !address.is_passing && !address.is_secondary;
            let is_lasting = is_lasting && !self.is_of_service(address.addr);
            address.addr.family() == family && address.is_global && is_lasting && is_reachable(address.addr)
        });
        found.map(|address| address.addr)
    }

    fn sources(&self, index: u32) -> BTreeSet<Addr> {
        let own = self.addresses(index).map(|address| address.addr);
        let routed = own.filter(|addr| self.machine.sources.contains(addr) && !self.is_of_service(*addr));
        routed.chain([Family::Ipv4, Family::Ipv6].into_iter().filter_map(|family| self.source(index, family))).collect()
    }

    fn is_of_service(&self, addr: Addr) -> bool {
        self.config.datapath.own_addresses.iter().any(|net| net.contains(&addr.ip()))
    }

    fn has_service_address(&self, family: Family) -> bool {
        let mut addresses = self.machine.addresses.iter().map(|address| address.addr);
        addresses.any(|addr| addr.family() == family && self.is_of_service(addr))
    }
}

/// Length of the link-layer header in bytes; `None` for a type that the programs cannot read.
fn header(link_type: u16) -> Option<u8> {
    match link_type {
        link_type::ETHER => Some(ETHERNET_HEADER),
        other => link_type::WITHOUT_HEADER.contains(&other).then_some(0),
    }
}

/// Whether the device is a tunnel that a user has added.
fn is_tunnel(interface: &Interface) -> bool {
    TUNNELS.contains(&interface.kind.as_str()) && !FALLBACKS.contains(&interface.name.as_str())
}

/// Why the device is not selected automatically.
fn obstacle(interface: &Interface, machine: &Machine) -> Option<Reason> {
    if interface.is_loopback {
        return Some(Reason::Loopback);
    }
    port(interface, machine).or_else(|| dead_end(interface, machine, DEPTH))
}

/// The device that receives the packets of this one. In a VRF each device receives its own.
fn port(interface: &Interface, machine: &Machine) -> Option<Reason> {
    let master = machine.interfaces.get(&interface.master)?;
    (master.kind != "vrf").then(|| Reason::Port(master.name.clone()))
}

/// Why no other machine can be reached by the device.
fn dead_end(interface: &Interface, machine: &Machine, depth: usize) -> Option<Reason> {
    let depth = depth.checked_sub(1)?;
    match interface.kind.as_str() {
        "veth" | "netkit" => interface.is_lower_elsewhere.then_some(Reason::OtherNamespace),
        "tun" if interface.link_type == link_type::ETHER => Some(Reason::Kind("tap".into())),
        "vrf" => Some(Reason::Vrf),
        "bridge" => {
            let leads_out =
                ports(interface, machine).any(|port| !port.is_loopback && dead_end(port, machine, depth).is_none());
            (!leads_out).then_some(Reason::Bridge)
        }
        kind if LEAD_NOWHERE.contains(&kind) => Some(Reason::Kind(kind.into())),
        "vlan" | "macvlan" | "ipvlan" | "macsec" if !interface.is_lower_elsewhere => {
            let lower = machine.interfaces.get(&interface.lower)?;
            dead_end(lower, machine, depth).map(|_| Reason::Lower(lower.name.clone()))
        }
        _ => None,
    }
}

/// The ports of a bridge.
fn ports<'a>(bridge: &'a Interface, machine: &'a Machine) -> impl Iterator<Item = &'a Interface> {
    let is_master = |it: &Interface| same(it, bridge);
    machine.interfaces.values().filter(move |it| machine.interfaces.get(&it.master).is_some_and(is_master))
}

/// Whether both are the same interface: names are unique.
fn same(one: &Interface, other: &Interface) -> bool {
    one.name == other.name
}

#[cfg(test)]
#[path = "tests/uplinks.rs"]
mod tests;

//! The bytes of the maps: what the daemon writes, and the tables that the programs write.

use std::collections::HashMap;

use crate::connections::{Affinity, Connection, Flags, FragmentPorts};
use crate::key::{Endpoint, FragmentKey, PacketKey, Side, Tuple};
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::ipsec::{PolicyRule, Selector};
use nodelb_core::model::service::Source;
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{BackendId, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::ring;

/// Bytes of `struct packet_settings`.
pub const SETTINGS: usize = 40;

/// Where its number of policies is.
pub const POLICIES: usize = 32;

/// The bytes of a key and a value of the map.
pub fn sizes(map: &str) -> (usize, usize) {
    match map {
        "connections" | "half_open" => (40, 80),
        "fragments" => (40, 8),
        "affinity" => (16, 16),
        "packet_settings" => (4, SETTINGS),
        "fragment_ids" => (4, 8),
        "snat_cursors" | "udp_entries" => (4, 4),
        "outside" | "frontends" => (20, 8),
        "source_ranges" => (24, 4),
        "uplinks" => (4, 48),
        "node_addrs" | "outside_addrs" => (16, 4),
        "services" => (4, 32),
        "slots" => (4, SLOT),
        "frontend_epoch" => (4, 8),
        "packet_counts" => (4, 432),
        "outside_counters" => (4, 16),
        "packet_drops" => (8, 24),
        _ => panic!("the sizes of {map} are not known here"),
    }
}

/// `struct ipsec_policy`.
pub fn policy(rule: &PolicyRule) -> Vec<u8> {
    let Selector { family, source, target, source_port, target_port, protocol } = rule.selector;
    let mask = |range: SourceRange| u128::MAX.checked_shl(128 - u32::from(range.prefix)).unwrap_or(0).to_be_bytes();
    let ports = |ports: [u16; 2]| ports.map(u16::to_be_bytes).concat();
    let is_v4 = family == Family::Ipv4;
    let any = if protocol == 0 { 0 } else { u8::MAX };
    let wanted = [source.addr.octets(), target.addr.octets()].concat();
    let bits = [mask(source), mask(target)].concat();
    let numbers = [u32::from(rule.list), u32::from(rule.is_protected)].map(u32::to_ne_bytes);
    let wanted = [wanted, ports([source_port.port, target_port.port]), vec![protocol, is_v4.into(), 0, 0]].concat();
    let bits = [bits, ports([source_port.mask, target_port.mask]), vec![any, 1, 0, 0]].concat();
    [wanted, bits, numbers.concat()].concat()
}

fn port_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn addr_at(bytes: &[u8], at: usize) -> Addr {
    Addr::from_octets(bytes[at..at + 16].try_into().unwrap())
}

fn tuple(bytes: &[u8]) -> Tuple {
    Tuple {
        source: Endpoint::new(addr_at(bytes, 0), port_at(bytes, 32)),
        target: Endpoint::new(addr_at(bytes, 16), port_at(bytes, 34)),
    }
}

fn protocol(number: u8) -> Protocol {
    Protocol::from_repr(number).expect("a protocol")
}

fn side(number: u8) -> Side {
    [Side::Arriving, Side::Leaving, Side::FromPod][usize::from(number)]
}

pub fn packet_key(bytes: &[u8]) -> PacketKey {
    PacketKey { tuple: tuple(bytes), protocol: protocol(bytes[36]), side: side(bytes[37]) }
}

/// Where `last_used` is in an entry.
const LAST_USED: usize = 52;

/// Where `acknowledgment` is in an entry.
const ACKNOWLEDGMENT: usize = 68;

pub fn connection(bytes: &[u8]) -> Connection {
    let flags = u32_at(bytes, 60);
    let flag = |bit: u32| flags & bit != 0;
    Connection {
        to: tuple(bytes),
        service: ServiceId(u32_at(bytes, 36)),
        backend: BackendId(u32_at(bytes, 40)),
        offset: u32_at(bytes, 44),
        ifindex: u32_at(bytes, 48),
        last_used: u32_at(bytes, LAST_USED),
        created: u32_at(bytes, 56),
        flags: Flags {
            is_redirected: flag(1),
            is_reverse: flag(2),
            has_replied: flag(4),
            has_fin: flag(8),
            has_reset: flag(16),
            is_local_view: flag(32),
            is_assured: flag(64),
            is_waiting: flag(128),
            is_of_node: flag(256),
            is_forwarded: flag(512),
            is_tunnelled: flag(1_024),
            is_of_pod: flag(2_048),
        },
        acknowledgment: u32_at(bytes, ACKNOWLEDGMENT),
        bytes: u64_at(bytes, 72),
    }
}

pub fn fragment_key(bytes: &[u8]) -> FragmentKey {
    let source = addr_at(bytes, 0);
    let id = &bytes[32..36];
    let is_v4 = source.ip().is_ipv4();
    let id = if is_v4 { u32::from(port_at(id, 0)) } else { u32::from_be_bytes(id.try_into().unwrap()) };
    FragmentKey { source, target: addr_at(bytes, 16), id, protocol: protocol(bytes[36]), side: side(bytes[37]) }
}

pub fn fragment(bytes: &[u8]) -> FragmentPorts {
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    FragmentPorts { source: port_at(bytes, 0), target: port_at(bytes, 2), seen: half(4), id: half(6) }
}

pub fn affinity_key(key: &[u8]) -> (u64, ServiceId) {
    (u64_at(key, 0), ServiceId(u32_at(key, 8)))
}

pub fn affinity(value: &[u8]) -> Affinity {
    Affinity { last_used_ns: u64_at(value, 0), backend: BackendId(u32_at(value, 8)), offset: u32_at(value, 12) }
}

/// The ends of a socket or of a tracked connection: `struct ends` of `host/kernel.c`.
pub fn ends(from: Option<L4Addr>, to: L4Addr) -> Vec<u8> {
    let mut ends = from.map_or([0; 16], |from| from.addr.octets()).to_vec();
    ends.extend(to.addr.octets());
    ends.extend(from.map_or(0, |from| from.port).to_be_bytes());
    ends.extend(to.port.to_be_bytes());
    ends.extend([to.protocol.number(), 0, 0, 0]);
    ends
}

pub fn frontend_key(address: &L4Addr) -> Vec<u8> {
    let mut key = address.addr.octets().to_vec();
    key.extend(address.port.to_be_bytes());
    key.extend([address.protocol.number(), 0]);
    key
}

/// A value of `frontends` or `outside`, without its seal.
pub fn frontend(service: ServiceId, flags: u32) -> Vec<u8> {
    [service.0.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

pub fn range_key(service: ServiceId, addr: Addr, prefix: u8) -> Vec<u8> {
    let prefix_len = 32 + u32::from(prefix);
    [&prefix_len.to_ne_bytes()[..], &service.0.to_be_bytes(), &addr.octets()].concat()
}

pub fn uplink(uplink: &UplinkEntry) -> Vec<u8> {
    let octets = |addr: Option<Addr>| addr.map_or([0; 16], Addr::octets);
    let mut value = [octets(uplink.v4), octets(uplink.v6)].concat();
    value.extend(uplink.mtu.to_ne_bytes());
    value.extend([uplink.l2_length, 0, 0, 0]);
    let flags = [uplink.is_v4_source, uplink.is_v6_source, uplink.is_strict].map(u32::from);
    value.extend((flags[0] | flags[1] << 1 | flags[2] << 2).to_ne_bytes());
    value.resize(48, 0);
    value
}

/// Bytes of `struct slot`.
pub const SLOT: usize = 24;

/// The slots of rings that were computed before, by their lists.
pub type Rings = HashMap<Vec<Slot>, Vec<u8>>;

/// The slots of a list with its ring.
fn slots(list: &[Slot], has_ring: bool, rings: &mut Rings) -> Vec<u8> {
    let mut slots = Vec::new();
    for slot in list {
        slots.extend(frontend_key(&slot.addr));
        slots.extend(slot.backend.0.to_ne_bytes());
    }
    if has_ring {
        slots.extend_from_slice(rings.entry(list.to_vec()).or_insert_with(|| ring_slots(list)));
    }
    slots
}

fn ring_slots(list: &[Slot]) -> Vec<u8> {
    let mut slots = Vec::new();
    for offsets in ring::ring(list).chunks(ring::OFFSETS_PER_SLOT) {
        let end = slots.len() + SLOT;
        slots.extend(offsets.iter().flat_map(|offset| offset.to_ne_bytes()));
        slots.resize(end, 0);
    }
    slots
}

/// The value of `services`, and the slots, which are stored from `first`.
pub fn service(entry: &ServiceEntry, first: usize, rings: &mut Rings) -> (Vec<u8>, Vec<u8>) {
    let mut all = Vec::new();
    let mut value = Vec::new();
    for list in [&entry.cluster, &entry.local] {
        let start = u32::try_from(first + all.len() / SLOT).unwrap();
        value.extend(start.to_ne_bytes());
        value.extend(u16::try_from(list.len()).unwrap().to_ne_bytes());
        value.extend([0, 0]);
        all.extend(slots(list, entry.has_rings, rings));
    }
    let flags = 2 | u32::from(entry.has_backends) | if entry.has_rings { 32 } else { 0 };
    let from_files = entry.tag.is_some_and(|tag| tag.source == Source::Files);
    let flags = flags
        | if from_files { 4 } else { 0 }
        | match entry.forward {
            Forward::Translate => 0,
            Forward::Direct => 128,
            Forward::Tunnel => 256,
        };
    value.extend(flags.to_ne_bytes());
    value.extend(entry.affinity_seconds.to_ne_bytes());
    value.extend([0; 8]);
    (value, all)
}

//! The bytes of the maps: what the daemon writes for a world, and the tables that the programs write.

use std::collections::HashMap;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{BackendId, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::ring;
use nodelb_model::connections::{Affinity, Connection, Flags, FragmentPorts};
use nodelb_model::key::{Endpoint, FragmentKey, PacketKey, Side, Tuple};

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

pub(crate) fn packet_key(bytes: &[u8]) -> PacketKey {
    PacketKey { tuple: tuple(bytes), protocol: protocol(bytes[36]), side: side(bytes[37]) }
}

/// Where `last_used` is in an entry.
const LAST_USED: usize = 52;

/// Where `created` is in an entry.
const CREATED: usize = 56;

/// Where `acknowledgment` is in an entry.
const ACKNOWLEDGMENT: usize = 68;

/// Makes an entry older by this number of seconds, with the seal of bpf/connections.h.
pub(crate) fn make_older(key: &[u8], value: &mut [u8], seconds: u32) {
    for at in [LAST_USED, CREATED] {
        let time = u32_at(value, at).wrapping_sub(seconds);
        value[at..at + 4].copy_from_slice(&time.to_ne_bytes());
    }
    let odd = [
        0x9e37_79b9_7f4a_7c15_u64,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
        0xd6e8_feb8_6659_fd93,
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
        0x8ebc_6af0_9c88_c6e3,
        0x5899_65cc_7537_4cc3,
        0x1d8e_4e27_c47d_124f,
        0xeb44_acca_b455_d165,
    ];
    let last = [u64::from(u32_at(value, 40)) << 32 | u64::from(u32_at(value, 48)), u64::from(u32_at(value, CREATED))];
    let words = key.chunks(8).chain(value[..40].chunks(8)).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let sum = words.chain(last).zip(odd).fold(0_u64, |sum, (word, odd)| sum.wrapping_add(word.wrapping_mul(odd)));
    let seal = u32::try_from((sum ^ (sum >> 32)) & u64::from(u32::MAX)).unwrap();
    value[64..68].copy_from_slice(&seal.to_ne_bytes());
}

pub(crate) fn connection(bytes: &[u8]) -> Connection {
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

pub(crate) fn fragment_key(bytes: &[u8]) -> FragmentKey {
    let source = addr_at(bytes, 0);
    let id = &bytes[32..36];
    let is_v4 = source.ip().is_ipv4();
    let id = if is_v4 { u32::from(port_at(id, 0)) } else { u32::from_be_bytes(id.try_into().unwrap()) };
    FragmentKey { source, target: addr_at(bytes, 16), id, protocol: protocol(bytes[36]), side: side(bytes[37]) }
}

pub(crate) fn fragment(bytes: &[u8]) -> FragmentPorts {
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    FragmentPorts { source: port_at(bytes, 0), target: port_at(bytes, 2), seen: half(4), id: half(6) }
}

pub(crate) fn affinity_key(key: &[u8]) -> (u64, ServiceId) {
    (u64_at(key, 0), ServiceId(u32_at(key, 8)))
}

pub(crate) fn affinity(value: &[u8]) -> Affinity {
    Affinity { last_used_ns: u64_at(value, 0), backend: BackendId(u32_at(value, 8)), offset: u32_at(value, 12) }
}

pub(crate) fn frontend_key(address: &L4Addr) -> Vec<u8> {
    let mut key = address.addr.octets().to_vec();
    key.extend(address.port.to_be_bytes());
    key.extend([address.protocol.number(), 0]);
    key
}

/// A value of `frontends` or `outside`, with the seal of bpf/service.h.
pub(crate) fn frontend(key: &[u8], service: ServiceId, flags: u32) -> Vec<u8> {
    let odd = [0x85eb_ca6b_u32, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0x2c1b_3c6d];
    let words = key.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let start = service.0.wrapping_mul(0x9e37_79b1).wrapping_add(flags);
    let sum = words.zip(odd).fold(start, |sum, (word, odd)| sum.wrapping_add(word.wrapping_mul(odd)));
    let flags = ((sum ^ (sum >> 15)) & !3) | flags;
    [service.0.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

pub(crate) fn range_key(service: ServiceId, addr: Addr, prefix: u8) -> Vec<u8> {
    let prefix_len = 32 + u32::from(prefix);
    [&prefix_len.to_ne_bytes()[..], &service.0.to_be_bytes(), &addr.octets()].concat()
}

pub(crate) fn uplink(uplink: &UplinkEntry) -> Vec<u8> {
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
pub(crate) const SLOT: usize = 24;

/// The slots of rings that were computed before, by their lists.
pub(crate) type Rings = HashMap<Vec<Slot>, Vec<u8>>;

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
pub(crate) fn service(entry: &ServiceEntry, first: usize, rings: &mut Rings) -> (Vec<u8>, Vec<u8>) {
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
    let flags = flags
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

//! The entries of the maps that the programs for sockets use: services, their backends, addresses and clients.

use std::mem::offset_of;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::state::entries::{BackendId, FrontendEntry, NextIds, ServiceId, Slot};
use nodelb_core::state::owner::OwnerTag;
use nodelb_core::state::runs::Run;

use crate::skeleton::types;

// A layout must be changed in two places deliberately, and is then a new layout version.
const _: () = assert!(size_of::<types::frontend_key>() == 20);
const _: () = assert!(size_of::<types::frontend>() == 8);
const _: () = assert!(size_of::<types::service>() == 32);
const _: () = assert!(size_of::<types::slot>() == 24);
const _: () = assert!(size_of::<types::node_addr>() == 16);
const _: () = assert!(size_of::<types::affinity_key>() == 16);
const _: () = assert!(size_of::<types::affinity>() == 16);
const _: () = assert!(size_of::<types::tcp_socket>() == 44);
const _: () = assert!(size_of::<types::udp_socket>() == 528);
const _: () = assert!(size_of::<types::overflow_key>() == 32);
const _: () = assert!(size_of::<types::overflow>() == 32);
const _: () = assert!(size_of::<types::counter>() == 16);

/// Index of the word with flags and affinity, which are always stored together.
const POLICY_WORD: usize = offset_of!(types::service, flags) / 8;

/// The words of a `services` entry, of 8 bytes each: their number, and the indexes of those that have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceWords {
    pub(crate) count: usize,
    pub(crate) cluster: usize,
    pub(crate) local: usize,
    pub(crate) policy: usize,
    /// The hashes of the owner's name.
    pub(crate) owner: usize,
}

impl ServiceWords {
    pub(crate) const CURRENT: Self = Self {
        count: size_of::<types::service>() / 8,
        cluster: offset_of!(types::service, cluster) / 8,
        local: offset_of!(types::service, local) / 8,
        policy: POLICY_WORD,
        owner: offset_of!(types::service, owner) / 8,
    };

    /// Those of `bpf/next_layout.h`, which only debug builds have.
    pub(crate) const NEXT: Self = Self { count: 6, cluster: 4, local: 2, policy: 3, owner: 1 };

    pub(crate) fn is_next(self) -> bool {
        cfg!(debug_assertions) && self == Self::NEXT
    }

    /// Those of this version.
    pub(crate) fn of_layout(version: u32) -> Self {
        if cfg!(debug_assertions) && version == crate::LAYOUT + 1 { Self::NEXT } else { Self::CURRENT }
    }

    /// Those of a map that has entries of this size in bytes.
    pub(crate) fn of_size(size: u32) -> Self {
        let is_next = cfg!(debug_assertions) && size as usize == 8 * Self::NEXT.count;
        if is_next { Self::NEXT } else { Self::CURRENT }
    }
}

/// Size of a `slots` entry in 8-byte words.
pub(crate) const SLOT_WORDS: usize = size_of::<types::slot>() / 8;

/// Size of a `counters` entry in 8-byte words.
pub(crate) const COUNTER_WORDS: usize = size_of::<types::counter>() / 8;
pub(crate) const TRANSLATED_WORD: usize = offset_of!(types::counter, translated) / 8;
pub(crate) const REFUSED_WORD: usize = offset_of!(types::counter, refused) / 8;

pub(crate) type FrontendKeyBytes = [u8; size_of::<types::frontend_key>()];
pub(crate) type FrontendBytes = [u8; size_of::<types::frontend>()];
pub(crate) type NodeAddrBytes = [u8; size_of::<types::node_addr>()];
pub(crate) type AffinityKeyBytes = [u8; size_of::<types::affinity_key>()];
pub(crate) type AffinityBytes = [u8; size_of::<types::affinity>()];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Position of the list, which has at most `u16::MAX` slots.
    pub(crate) run: Run,
    /// Number of the publication; wraps.
    pub(crate) generation: u16,
}

pub(crate) fn view_word(view: View) -> u64 {
    let count = u16::try_from(view.run.len).expect("invariant: PutService refuses longer lists");
    u64::from_ne_bytes(bytes_of!(types::view {
        first: view.run.first.to_ne_bytes(),
        count: count.to_ne_bytes(),
        generation: view.generation.to_ne_bytes(),
    }))
}

pub(crate) fn parse_view(word: u64) -> View {
    let bytes = word.to_ne_bytes();
    let first = u32::from_ne_bytes(field_of!(bytes, types::view, first));
    let count = u16::from_ne_bytes(field_of!(bytes, types::view, count));
    let generation = u16::from_ne_bytes(field_of!(bytes, types::view, generation));
    View { run: Run { first, len: count.into() }, generation }
}

/// The content of the third word of a `services` entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) in_use: bool,
    pub(crate) has_backends: bool,
    pub(crate) affinity_seconds: u32,
    pub(crate) may_be_bound: bool,
    pub(crate) has_rings: bool,
    pub(crate) has_ranges: bool,
    pub(crate) is_last_resort: bool,
    pub(crate) is_local_last_resort: bool,
    pub(crate) forward: Forward,
    /// The source that describes the owner.
    pub(crate) source: Option<Source>,
}

pub(crate) fn policy_word(policy: Policy) -> u64 {
    let flags = flag(policy.in_use, types::service_flags::SERVICE_IN_USE.0)
        | flag(policy.has_backends, types::service_flags::SERVICE_HAS_BACKENDS.0)
        | flag(policy.may_be_bound, types::service_flags::SERVICE_MAY_BE_BOUND.0)
        | flag(policy.has_rings, types::service_flags::SERVICE_HAS_RINGS.0)
        | flag(policy.has_ranges, types::service_flags::SERVICE_HAS_RANGES.0)
        | flag(policy.is_last_resort, types::service_flags::SERVICE_LAST_RESORT.0)
        | flag(policy.is_local_last_resort, types::service_flags::SERVICE_LOCAL_LAST_RESORT.0)
        | flag(policy.forward == Forward::Direct, types::service_flags::SERVICE_DIRECT.0)
        | flag(policy.forward == Forward::Tunnel, types::service_flags::SERVICE_TUNNEL.0)
        | flag(policy.source == Some(Source::Files), types::service_flags::SERVICE_FROM_FILES.0)
        | flag(policy.source == Some(Source::Kubernetes), types::service_flags::SERVICE_FROM_KUBERNETES.0);
    let service = bytes_of!(types::service {
        flags: flags.to_ne_bytes(),
        affinity_seconds: policy.affinity_seconds.to_ne_bytes(),
    });
    u64::from_ne_bytes(*service[POLICY_WORD * 8..].first_chunk().expect("invariant: a word lies inside its struct"))
}

pub(crate) fn parse_policy(word: u64) -> Policy {
    let mut service = [0u8; size_of::<types::service>()];
    service[POLICY_WORD * 8..][..8].copy_from_slice(&word.to_ne_bytes());
    let flags = u32::from_ne_bytes(field_of!(service, types::service, flags));
    let has = |bit: types::service_flags| flags & bit.0 != 0;
    let from_files = has(types::service_flags::SERVICE_FROM_FILES);
    let from_kubernetes = has(types::service_flags::SERVICE_FROM_KUBERNETES);
    Policy {
        source: match (from_files, from_kubernetes) {
            (true, false) => Some(Source::Files),
            (false, true) => Some(Source::Kubernetes),
            _ => None,
        },
        in_use: has(types::service_flags::SERVICE_IN_USE),
        has_backends: has(types::service_flags::SERVICE_HAS_BACKENDS),
        affinity_seconds: u32::from_ne_bytes(field_of!(service, types::service, affinity_seconds)),
        may_be_bound: has(types::service_flags::SERVICE_MAY_BE_BOUND),
        has_rings: has(types::service_flags::SERVICE_HAS_RINGS),
        has_ranges: has(types::service_flags::SERVICE_HAS_RANGES),
        is_last_resort: has(types::service_flags::SERVICE_LAST_RESORT),
        is_local_last_resort: has(types::service_flags::SERVICE_LOCAL_LAST_RESORT),
        forward: match (has(types::service_flags::SERVICE_DIRECT), has(types::service_flags::SERVICE_TUNNEL)) {
            (true, _) => Forward::Direct,
            (false, true) => Forward::Tunnel,
            (false, false) => Forward::Translate,
        },
    }
}

/// The owner word with these halves.
fn joined(upper: u32, lower: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}

/// The halves of the owner word.
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}

pub(crate) fn owner_word(tag: Option<OwnerTag>) -> u64 {
    tag.map_or(0, |tag| joined(tag.service, tag.port))
}

/// The word of the canary's entry, which has no owner.
pub(crate) fn next_ids_word(next: NextIds) -> u64 {
    joined(next.service, next.backend)
}

pub(crate) fn parse_next_ids(word: u64) -> NextIds {
    let (service, backend) = halves(word);
    NextIds { service, backend }
}

/// Decodes the owner, if the entry names its source: only then was the word written with the entry.
pub(crate) fn parse_owner(source: Option<Source>, word: u64) -> Option<OwnerTag> {
    let (service, port) = halves(word);
    source.map(|source| OwnerTag { source, service, port })
}

pub(crate) fn slot_words(slot: &Slot) -> [u64; SLOT_WORDS] {
    let bytes = bytes_of!(types::slot {
        addr: slot.addr.addr.octets(),
        port_be: slot.addr.port.to_be_bytes(),
        protocol: [slot.addr.protocol.number()],
        backend_id: slot.backend.0.to_ne_bytes(),
    });
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}

/// Decodes a slot; `None` if nodelb has not written the words.
pub(crate) fn parse_slot(words: [u64; SLOT_WORDS]) -> Option<Slot> {
    let mut bytes = [0u8; size_of::<types::slot>()];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    let [protocol] = field_of!(bytes, types::slot, protocol);
    let addr = L4Addr::new(
        Addr::from_octets(field_of!(bytes, types::slot, addr)),
        u16::from_be_bytes(field_of!(bytes, types::slot, port_be)),
        Protocol::from_repr(protocol)?,
    );
    Some(Slot { backend: BackendId(u32::from_ne_bytes(field_of!(bytes, types::slot, backend_id))), addr })
}

pub(crate) fn frontend_key(addr: &L4Addr) -> FrontendKeyBytes {
    bytes_of!(types::frontend_key {
        addr: addr.addr.octets(),
        port_be: addr.port.to_be_bytes(),
        protocol: [addr.protocol.number()],
    })
}

/// Decodes a frontend key; `None` if nodelb has not written the bytes.
pub(crate) fn parse_frontend_key(bytes: &FrontendKeyBytes) -> Option<L4Addr> {
    let [protocol] = field_of!(bytes, types::frontend_key, protocol);
    let [0] = field_of!(bytes, types::frontend_key, pad) else { return None };
    Some(L4Addr::new(
        Addr::from_octets(field_of!(bytes, types::frontend_key, addr)),
        u16::from_be_bytes(field_of!(bytes, types::frontend_key, port_be)),
        Protocol::from_repr(protocol)?,
    ))
}

pub(crate) fn frontend(addr: &L4Addr, entry: &FrontendEntry) -> FrontendBytes {
    let flags = flag(entry.inside_local, types::frontend_flags::FRONTEND_INSIDE_LOCAL.0)
        | flag(entry.outside_local, types::frontend_flags::FRONTEND_OUTSIDE_LOCAL.0);
    let sealed = flags | seal(&frontend_key(addr), entry.service, flags);
    bytes_of!(types::frontend { service_id: entry.service.0.to_ne_bytes(), flags: sealed.to_ne_bytes() })
}

/// As `seal()` in `bpf/service.h`.
pub(super) fn seal(key: &FrontendKeyBytes, service: ServiceId, flags: u32) -> u32 {
    const ODD: [u32; 5] = [0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0x2c1b_3c6d];
    let (words, _) = key.as_chunks::<4>();
    let sum = words.iter().zip(ODD).fold(service.0.wrapping_mul(0x9e37_79b1), |sum, (word, odd)| {
        sum.wrapping_add(u32::from_ne_bytes(*word).wrapping_mul(odd))
    });
    let sum = sum.wrapping_add(flags);
    (sum ^ sum >> 15) & !types::frontend_flags::FRONTEND_FLAGS.0
}

/// Decodes a frontend; `None` if nodelb has not written the bytes for this address.
pub(crate) fn parse_frontend(addr: &L4Addr, bytes: &FrontendBytes) -> Option<FrontendEntry> {
    let flags = u32::from_ne_bytes(field_of!(bytes, types::frontend, flags));
    let entry = FrontendEntry {
        service: ServiceId(u32::from_ne_bytes(field_of!(bytes, types::frontend, service_id))),
        inside_local: flags & types::frontend_flags::FRONTEND_INSIDE_LOCAL.0 != 0,
        outside_local: flags & types::frontend_flags::FRONTEND_OUTSIDE_LOCAL.0 != 0,
    };
    (frontend(addr, &entry) == *bytes).then_some(entry)
}

pub(crate) fn node_addr(addr: Addr) -> NodeAddrBytes {
    bytes_of!(types::node_addr { addr: addr.octets() })
}

pub(crate) fn parse_node_addr(bytes: &NodeAddrBytes) -> Addr {
    Addr::from_octets(field_of!(bytes, types::node_addr, addr))
}

/// The last backend of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Cookie of the client's network namespace.
    pub(crate) netns: u64,
    pub(crate) service: ServiceId,
    pub(crate) backend: BackendId,
    /// Position of the backend in the view: a hint that saves a search.
    pub(crate) offset: u32,
    /// Time of the last use in nanoseconds, on the kernel's monotonic clock.
    pub(crate) last_used_ns: u64,
}

pub(crate) fn client(client: &Client) -> (AffinityKeyBytes, AffinityBytes) {
    let key = bytes_of!(types::affinity_key {
        client: client.netns.to_ne_bytes(),
        service_id: client.service.0.to_ne_bytes(),
    });
    let value = bytes_of!(types::affinity {
        last_used_ns: client.last_used_ns.to_ne_bytes(),
        backend_id: client.backend.0.to_ne_bytes(),
        offset: client.offset.to_ne_bytes(),
    });
    (key, value)
}

pub(crate) fn parse_client(key: &AffinityKeyBytes, value: &AffinityBytes) -> Client {
    Client {
        netns: u64::from_ne_bytes(field_of!(key, types::affinity_key, client)),
        service: ServiceId(u32::from_ne_bytes(field_of!(key, types::affinity_key, service_id))),
        backend: BackendId(u32::from_ne_bytes(field_of!(value, types::affinity, backend_id))),
        offset: u32::from_ne_bytes(field_of!(value, types::affinity, offset)),
        last_used_ns: u64::from_ne_bytes(field_of!(value, types::affinity, last_used_ns)),
    }
}

/// A key of `affinity` that belongs to no client and no service, to test whether the map can be written.
pub(crate) fn unused_affinity_key() -> AffinityKeyBytes {
    bytes_of!(types::affinity_key { service_id: u32::MAX.to_ne_bytes() })
}

/// The state of a TCP socket that belongs to nodelb.
pub(crate) fn own_tcp_socket() -> [u8; size_of::<types::tcp_socket>()] {
    bytes_of!(types::tcp_socket { flags: types::socket_flags::SOCKET_OWN.0.to_ne_bytes() })
}

/// The state of a UDP socket that belongs to nodelb.
pub(crate) fn own_udp_socket() -> [u8; size_of::<types::udp_socket>()] {
    bytes_of!(types::udp_socket { flags: types::socket_flags::SOCKET_OWN.0.to_ne_bytes() })
}

/// The state of an ordinary UDP socket that has not connected yet.
pub(crate) fn new_udp_socket() -> [u8; size_of::<types::udp_socket>()] {
    [0; _]
}

/// Whether a program has left the UDP socket alone because it belongs to nodelb, or has refused it.
pub(crate) fn was_observed(socket: &[u8; size_of::<types::udp_socket>()]) -> bool {
    let flags = field_of!(socket, types::udp_socket, flags);
    u32::from_ne_bytes(flags) & types::socket_flags::SOCKET_SEEN.0 != 0
}

pub(super) const fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

#[cfg(test)]
#[path = "../tests/layout.rs"]
mod tests;

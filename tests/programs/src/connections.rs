//! What the packet programs remember: the content of their maps.

use std::collections::BTreeMap;

use nodelb_core::state::entries::{BackendId, ServiceId};

use crate::headers::tcp_flags::{ACK, FIN, RST, SYN};
use crate::key::{FragmentKey, PacketKey, Side, Tuple};

/// An entry of `half_open` or `connections`: `struct connection` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The addresses and ports that are written into the packet.
    pub to: Tuple,
    pub service: ServiceId,
    pub backend: BackendId,
    /// Position of the backend in the view when it was last looked for.
    pub offset: u32,
    /// The device that the connection began at, for display.
    pub ifindex: u32,
    /// Seconds of the monotonic clock when an entry last translated a packet.
    pub last_used: u32,
    /// That clock, when the connection began.
    pub created: u32,
    pub flags: Flags,
    /// TCP: what is known of the numbers of the entry's side. UDP: the epoch that the entry is valid for.
    pub acknowledgment: u32,
    /// Bytes of the packets that the entry translated, from the IP header.
    pub bytes: u64,
}

/// `enum connection_flags` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub is_redirected: bool,
    pub is_reverse: bool,
    pub has_replied: bool,
    pub has_fin: bool,
    pub has_reset: bool,
    pub is_local_view: bool,
    pub is_assured: bool,
    pub is_waiting: bool,
    pub is_of_node: bool,
    pub is_forwarded: bool,
    pub is_tunnelled: bool,
    pub is_of_pod: bool,
}

impl Connection {
    /// The key of the other direction's entry.
    pub fn reverse_key(&self, key: &PacketKey) -> PacketKey {
        let Flags { is_redirected, is_reverse, is_of_node, is_of_pod, .. } = self.flags;
        let side = match !is_redirected && is_reverse == is_of_node {
            _ if is_of_pod => Side::FromPod,
            true => Side::Leaving,
            false => Side::Arriving,
        };
        PacketKey { tuple: self.to.turned(), protocol: key.protocol, side }
    }

    /// Whether the other entry is for the opposite direction of the connection that has this entry under this key.
    fn belongs_with(&self, key: &PacketKey, other: &Self) -> bool {
        let leads_back = other.to == key.tuple.turned() && other.flags.is_of_pod == (key.side == Side::FromPod);
        leads_back && other.flags.is_reverse != self.flags.is_reverse
    }
}

/// The client's last backend: `struct affinity` of `bpf/shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Nanoseconds of the monotonic clock.
    pub last_used_ns: u64,
    pub backend: BackendId,
    /// Its last known position in the view.
    pub offset: u32,
}

/// The ports of a datagram that was split: `struct fragment` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentPorts {
    /// Source port in host byte order.
    pub source: u16,
    /// Destination port in host byte order.
    pub target: u16,
    /// Seconds of the monotonic clock when the first fragment was seen, the lower 16 bits.
    pub seen: u16,
    /// The id that all fragments get if they are redirected.
    pub id: u16,
}

/// The sizes of the tables, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Entries of `connections`, two for each connection.
    pub connections: usize,
    /// Entries of `half_open`.
    pub half_open: usize,
    /// Entries of `fragments`.
    pub fragments: usize,
}

/// The content of the maps that the programs write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The connections that both ends take part in.
    pub connections: BTreeMap<PacketKey, Connection>,
    pub half_open: BTreeMap<PacketKey, Connection>,
    /// The datagrams that were split.
    pub fragments: BTreeMap<FragmentKey, FragmentPorts>,
    /// The backends of clients of services with session affinity, by the client's number.
    pub affinity: BTreeMap<(u64, ServiceId), Affinity>,
}

/// Whether the flags are those of a TCP packet that opens a connection.
pub const fn is_plain_syn(flags: u8) -> bool {
    flags & (SYN | RST | ACK | FIN) == SYN
}

impl Tables {
    /// The entry in either table.
    pub fn find(&self, key: &PacketKey) -> Option<&Connection> {
        self.connections.get(key).or_else(|| self.half_open.get(key))
    }

    /// The key of the entry for a packet that arrives with this one: what a backend answers at the device of a pod has the
    /// same key as at other devices.
    #[must_use]
    pub fn key_of_arrival(&self, key: PacketKey) -> PacketKey {
        let answer = PacketKey { side: Side::Arriving, ..key };
        let is_answer = || self.find(&key).is_none() && self.find(&answer).is_some_and(|entry| entry.flags.is_reverse);
        if key.side == Side::FromPod && is_answer() { answer } else { key }
    }

    /// The entry of the other direction; `None` if it does not exist or belongs to another connection.
    pub fn reverse_of(&self, key: &PacketKey, entry: &Connection) -> Option<(PacketKey, &Connection)> {
        let reverse_key = entry.reverse_key(key);
        let reverse = self.find(&reverse_key)?;
        entry.belongs_with(key, reverse).then_some((reverse_key, reverse))
    }
}

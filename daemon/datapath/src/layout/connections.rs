//! The entries of `connections` and `half_open`.

use std::mem::offset_of;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::state::entries::ServiceId;

use crate::skeleton::packet::types::{self, connection_flags as bits};

pub(crate) type PacketKeyBytes = [u8; size_of::<types::packet_key>()];
pub(crate) type ConnectionBytes = [u8; size_of::<types::connection>()];

const _: () = assert!(size_of::<PacketKeyBytes>() == 40);
const _: () = assert!(size_of::<ConnectionBytes>() == 80);

/// `PACKET_ARRIVING` and `PACKET_LEAVING` of `enum packet_side`: the sides of the backends' packets.
const ARRIVING: u8 = 0;
const LEAVING: u8 = 1;

/// One of the two entries of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEntry {
    /// Source and destination of the packets that it translates.
    pub(crate) from: (L4Addr, L4Addr),
    /// Source and destination that are written.
    pub(crate) to: (L4Addr, L4Addr),
    pub(crate) service: ServiceId,
    /// Index of the device where the client's packets arrive.
    pub(crate) ifindex: u32,
    /// Seconds of the coarse monotonic clock.
    pub(crate) last_used: u32,
    /// Seconds of the coarse monotonic clock.
    pub(crate) created: u32,
    pub(crate) is_redirected: bool,
    /// How the client's packets reach the backend. Unless they are translated, there is no other entry.
    pub(crate) forward: Forward,
    /// Whether the client is this node: see `CONNECTION_OF_NODE`.
    pub(crate) is_of_node: bool,
    /// Whether it is for packets from the backend.
    pub(crate) is_reverse: bool,
    /// Whether the backend has answered, in the entry for its packets.
    pub(crate) is_replied: bool,
    /// Whether a packet that it translated had the FIN or RST flag.
    pub(crate) is_closing: bool,
    pub(crate) bytes: u64,
}

/// The key for packets between these addresses that leave or arrive at a device.
pub(crate) fn packet_key((source, target): (L4Addr, L4Addr), is_leaving: bool) -> PacketKeyBytes {
    bytes_of!(types::packet_key {
        source: source.addr.octets(),
        target: target.addr.octets(),
        source_port_be: source.port.to_be_bytes(),
        target_port_be: target.port.to_be_bytes(),
        protocol: [source.protocol.number()],
        side: [if is_leaving { LEAVING } else { ARRIVING }],
    })
}

/// The value of `check_ways` for a check of a backend of this service.
pub(crate) fn check_way(service: L4Addr, forward: Forward) -> [u8; size_of::<types::check_way>()] {
    bytes_of!(types::check_way {
        addr: service.addr.octets(),
        port_be: service.port.to_be_bytes(),
        is_tunnel: u16::from(forward == Forward::Tunnel).to_ne_bytes(),
    })
}

pub(crate) fn is_leaving(key: &PacketKeyBytes) -> bool {
    field_of!(key, types::packet_key, side) == [LEAVING]
}

/// Decodes an entry; `None` if it has an unknown protocol.
pub(crate) fn parse_connection(key: &PacketKeyBytes, value: &ConnectionBytes) -> Option<ConnectionEntry> {
    let [protocol] = field_of!(key, types::packet_key, protocol);
    let protocol = Protocol::from_repr(protocol)?;
    let address = |octets, port| L4Addr::new(Addr::from_octets(octets), u16::from_be_bytes(port), protocol);
    let flags = u32::from_ne_bytes(field_of!(value, types::connection, flags));
    let has = |bit: bits| flags & bit.0 != 0;
    Some(ConnectionEntry {
        from: (
            address(field_of!(key, types::packet_key, source), field_of!(key, types::packet_key, source_port_be)),
            address(field_of!(key, types::packet_key, target), field_of!(key, types::packet_key, target_port_be)),
        ),
        to: (
            address(field_of!(value, types::connection, source), field_of!(value, types::connection, source_port_be)),
            address(field_of!(value, types::connection, target), field_of!(value, types::connection, target_port_be)),
        ),
        service: ServiceId(u32::from_ne_bytes(field_of!(value, types::connection, service_id))),
        ifindex: u32::from_ne_bytes(field_of!(value, types::connection, ifindex)),
        last_used: u32::from_ne_bytes(field_of!(value, types::connection, last_used)),
        created: u32::from_ne_bytes(field_of!(value, types::connection, created)),
        is_redirected: has(bits::CONNECTION_REDIRECTED),
        forward: match (has(bits::CONNECTION_FORWARDED), has(bits::CONNECTION_TUNNELLED)) {
            (false, _) => Forward::Translate,
            (true, false) => Forward::Direct,
            (true, true) => Forward::Tunnel,
        },
        is_of_node: has(bits::CONNECTION_OF_NODE),
        is_reverse: has(bits::CONNECTION_REVERSE),
        is_replied: has(bits::CONNECTION_REPLIED),
        is_closing: has(bits::CONNECTION_FIN) || has(bits::CONNECTION_RESET),
        bytes: u64::from_ne_bytes(field_of!(value, types::connection, bytes)),
    })
}

/// Whether the entry is one of a connection with direct return.
pub(crate) fn is_forwarded(value: &ConnectionBytes) -> bool {
    u32::from_ne_bytes(field_of!(value, types::connection, flags)) & bits::CONNECTION_FORWARDED.0 != 0
}

/// The entry of an established connection for which `connections` has no room: it is kept in `half_open`.
pub(crate) fn assured(mut entry: Vec<u8>) -> Vec<u8> {
    let at = offset_of!(types::connection, flags);
    let flags = u32::from_ne_bytes(field_of!(entry, types::connection, flags)) | bits::CONNECTION_ASSURED.0;
    entry[at..at + size_of::<u32>()].copy_from_slice(&flags.to_ne_bytes());
    entry
}

/// Whether the entry is of an established connection for which there was no room.
pub(crate) fn is_assured(entry: &[u8]) -> bool {
    u32::from_ne_bytes(field_of!(entry, types::connection, flags)) & bits::CONNECTION_ASSURED.0 != 0
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;

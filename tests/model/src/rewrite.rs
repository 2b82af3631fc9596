//! The writing of addresses, ports and the time to live into a packet, with their checksums.

use nodelb_core::model::addr::{Family, Protocol};

use crate::bytes::{be16, put16, wire};
use crate::checksum;
use crate::headers::{Content, Headers};
use crate::key::Tuple;

/// The position of an IPv4 header's checksum in the header.
const V4_CHECKSUM: usize = 10;

/// Replaces the addresses and ports. In a later fragment there are only addresses.
pub fn write(bytes: &mut [u8], headers: &Headers, to: &Tuple) {
    let old = addresses(bytes, headers);
    write_addresses(bytes, headers, to);
    let new = addresses(bytes, headers);
    let Content::Transport(protocol, _) = headers.content else { return };
    let at = headers.transport;
    let mut ports = [0; 4];
    ports[..2].copy_from_slice(&to.source.port.to_be_bytes());
    ports[2..].copy_from_slice(&to.target.port.to_be_bytes());
    let old = [old, bytes[at..at + 4].to_vec()].concat();
    let new = [new, ports.to_vec()].concat();
    bytes[at..at + 4].copy_from_slice(&ports);
    update_transport(&mut bytes[at..headers.end], protocol, &old, &new);
}

/// Replaces the addresses in the IP header only.
pub fn write_addresses(bytes: &mut [u8], headers: &Headers, to: &Tuple) {
    let old = addresses(bytes, headers);
    let new = [wire(to.source.addr, headers.family), wire(to.target.addr, headers.family)].concat();
    let at = headers.ip + offset_of_addresses(headers.family);
    bytes[at..at + new.len()].copy_from_slice(&new);
    update_v4(bytes, headers, &old, &new);
}

/// Writes the time to live or the hop limit.
pub fn write_ttl(bytes: &mut [u8], headers: &Headers, ttl: u8) {
    let at = headers.ip + if headers.family == Family::Ipv4 { 8 } else { 7 };
    // The word of an IPv4 header that contains the time to live; IPv6 has no checksum.
    let word = at & !1;
    let old = [bytes[word], bytes[word + 1]];
    bytes[at] = ttl;
    let new = [bytes[word], bytes[word + 1]];
    update_v4(bytes, headers, &old, &new);
}

/// Replaces the id of the datagram that the packet is a fragment of; IPv4 has its lower 16 bits.
pub fn write_id(bytes: &mut [u8], headers: &Headers, id: u32) {
    let Some(fragment) = headers.fragment else { return };
    let length = if headers.family == Family::Ipv4 { 2 } else { 4 };
    let place = fragment.at..fragment.at + length;
    let old = bytes[place.clone()].to_vec();
    bytes[place.clone()].copy_from_slice(&id.to_be_bytes()[4 - length..]);
    let new = bytes[place].to_vec();
    update_v4(bytes, headers, &old, &new);
}

const fn offset_of_addresses(family: Family) -> usize {
    match family {
        Family::Ipv4 => 12,
        Family::Ipv6 => 8,
    }
}

/// The two addresses as they are in the packet.
pub(crate) fn addresses(bytes: &[u8], headers: &Headers) -> Vec<u8> {
    let at = headers.ip + offset_of_addresses(headers.family);
    let length = if headers.family == Family::Ipv4 { 8 } else { 32 };
    bytes[at..at + length].to_vec()
}

fn update_v4(bytes: &mut [u8], headers: &Headers, old: &[u8], new: &[u8]) {
    if headers.family == Family::Ipv4 {
        let at = headers.ip + V4_CHECKSUM;
        let checksum = checksum::updated(be16(bytes, at), old, new);
        put16(bytes, at, checksum);
    }
}

/// Updates the checksum of a TCP or UDP header after these bytes of the header or of the pseudo header have changed. A
/// UDP datagram without a checksum remains without one. The header may be cut short before its checksum.
pub(crate) fn update_transport(transport: &mut [u8], protocol: Protocol, old: &[u8], new: &[u8]) {
    let at = if protocol == Protocol::Udp { 6 } else { 16 };
    if transport.len() < at + 2 {
        return;
    }
    let before = be16(transport, at);
    if protocol == Protocol::Udp && before == 0 {
        return;
    }
    let checksum = match checksum::updated(before, old, new) {
        0 if protocol == Protocol::Udp => u16::MAX,
        checksum => checksum,
    };
    put16(transport, at, checksum);
}

//! The writing of addresses and ports into a packet, with their checksums, as another host sends it.

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
fn write_addresses(bytes: &mut [u8], headers: &Headers, to: &Tuple) {
    let old = addresses(bytes, headers);
    let new = [wire(to.source.addr, headers.family), wire(to.target.addr, headers.family)].concat();
    let at = headers.ip + offset_of_addresses(headers.family);
    bytes[at..at + new.len()].copy_from_slice(&new);
    update_v4(bytes, headers, &old, &new);
}

const fn offset_of_addresses(family: Family) -> usize {
    match family {
        Family::Ipv4 => 12,
        Family::Ipv6 => 8,
    }
}

/// The two addresses as they are in the packet.
fn addresses(bytes: &[u8], headers: &Headers) -> Vec<u8> {
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
fn update_transport(transport: &mut [u8], protocol: Protocol, old: &[u8], new: &[u8]) {
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

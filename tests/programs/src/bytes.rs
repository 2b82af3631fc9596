//! Numbers and addresses in the bytes of a packet.

use nodelb_core::model::addr::{Addr, Family};

/// The two bytes at the position as a number in network order. They must exist.
pub(crate) const fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at the position as a number in network order. They must exist.
pub(crate) const fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the number at the position in network order.
pub(crate) fn put16(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// The IPv4 address at the position. Its bytes must exist.
pub(crate) fn v4_at(bytes: &[u8], at: usize) -> Addr {
    let mut octets = Addr::UNSPECIFIED_V4.octets();
    octets[12..].copy_from_slice(&bytes[at..at + 4]);
    Addr::from_octets(octets)
}

/// The IPv6 address at the position. Its bytes must exist.
pub(crate) fn v6_at(bytes: &[u8], at: usize) -> Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Addr::from_octets(octets)
}

/// The bytes of the address in a header of this family, in network order.
pub(crate) fn wire(addr: Addr, family: Family) -> Vec<u8> {
    let octets = addr.octets();
    match family {
        Family::Ipv4 => octets[12..].to_vec(),
        Family::Ipv6 => octets.to_vec(),
    }
}

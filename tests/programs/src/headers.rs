//! The headers of a packet: where they are, and what identifies the packet.

use std::net::IpAddr;

use nodelb_core::model::addr::{Addr, Family, Protocol};

use crate::bytes::{be16, be32, v4_at, v6_at};
use crate::extensions::{self, Fragment, Walked};
use crate::key::{Endpoint, Tuple};

/// Length of an Ethernet header in bytes.
pub const ETHERNET: usize = 14;
/// Length of an IPv4 header without options in bytes.
pub const IPV4: usize = 20;
/// Length of an IPv6 header in bytes.
pub const IPV6: usize = 40;
/// Length of a TCP header without options in bytes.
pub const TCP: usize = 20;
/// Length of a UDP header in bytes.
pub const UDP: usize = 8;
/// Length of the header of an ICMP error in bytes.
pub const ICMP: usize = 8;

pub const ICMP_NUMBER: u8 = 1;
/// IANA number of ICMPv6.
pub const ICMPV6_NUMBER: u8 = 58;

/// The number of the protocol for packets of this family in a tunnel (RFC 2003, RFC 2473).
pub const fn tunnel_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 4,
        Family::Ipv6 => 41,
    }
}

/// Flags of a TCP header (RFC 9293).
pub mod tcp_flags {
    /// The sender has no more data.
    pub const FIN: u8 = 1;
    /// Synchronises the sequence numbers.
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
}

/// The result of [`parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A packet that may belong to a service.
    Packet(Headers),
    /// Nothing that is ever translated.
    Foreign,
    /// A header is cut short, or contradicts the length of the packet.
    Short,
}

/// The headers of a packet. Positions are in bytes from the start of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub ip: usize,
    /// Version of the IP header.
    pub family: Family,
    /// Position of the header after the IP header and its extensions.
    pub transport: usize,
    /// Position of the first byte after the IP packet.
    pub end: usize,
    /// The address that sends the packet.
    pub source: Addr,
    /// The address that receives the packet.
    pub target: Addr,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Whether routers may split the packet: IPv4 without DF.
    pub may_be_split: bool,
    /// Present if the packet is one of several fragments of a datagram.
    pub fragment: Option<Fragment>,
    /// What follows the IP header.
    pub content: Content,
}

/// What follows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A TCP or UDP header.
    Transport(Protocol, Ports),
    /// A part of a datagram without its header.
    LaterFragment(Protocol),
    /// An ICMP error about another packet.
    IcmpError,
    /// A whole packet of this family: a tunnel.
    Tunnel(Family),
}

/// The parts of a TCP or UDP header that identify a packet and its position in the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Source port in host byte order.
    pub source: u16,
    /// Destination port in host byte order.
    pub target: u16,
    /// The flags of a TCP header; 0 with UDP.
    pub tcp_flags: u8,
    /// Sequence number of a TCP packet; 0 with UDP.
    pub sequence: u32,
    /// Acknowledgement number of a TCP packet; 0 with UDP.
    pub acknowledgment: u32,
    /// Whether a TCP packet contains data or FIN.
    pub has_data: bool,
}

impl Headers {
    /// The ends of the packet if it has these ports.
    pub const fn tuple(&self, source: u16, target: u16) -> Tuple {
        Tuple { source: Endpoint::new(self.source, source), target: Endpoint::new(self.target, target) }
    }

    /// Length of the IP packet in bytes, from its header.
    pub const fn length(&self) -> usize {
        self.end - self.ip
    }
}

/// Reads the headers of a frame with a link-layer header of `l2_length` bytes, 14 or 0. The length that the IP header
/// states may be 0 only if `is_gso`: the packet is then as long as the frame (BIG TCP, Linux 5.19).
pub fn parse(bytes: &[u8], l2_length: usize, is_gso: bool) -> Parsed {
    let version = bytes.get(l2_length).map(|first| first >> 4);
    let ether_type = if l2_length == ETHERNET { bytes.get(12..14).map(|kind| be16(kind, 0)) } else { None };
    match (ether_type, version) {
        (Some(0x0800), None) | (Some(0x86dd), None) => Parsed::Short,
        (Some(0x0800), Some(4)) => parse_v4(bytes, l2_length, is_gso),
        (Some(0x86dd), Some(6)) => parse_v6(bytes, l2_length, is_gso),
        (None, Some(4)) if l2_length == 0 => parse_v4(bytes, l2_length, is_gso),
        (None, Some(6)) if l2_length == 0 => parse_v6(bytes, l2_length, is_gso),
        _ => Parsed::Foreign,
    }
}

/// Packets between these addresses are never a client's. The rest of 240.0.0.0/4 is unicast for Linux.
fn is_left_alone(source: Addr, target: Addr) -> bool {
    let is_group = |addr: Addr| match addr.ip() {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    [source, target].into_iter().any(|addr| is_group(addr) || addr.is_loopback() || addr.is_unspecified())
}

fn parse_v4(bytes: &[u8], ip: usize, is_gso: bool) -> Parsed {
    if bytes.len() < ip + IPV4 {
        return Parsed::Short;
    }
    let (source, target) = (v4_at(bytes, ip + 12), v4_at(bytes, ip + 16));
    if is_left_alone(source, target) {
        return Parsed::Foreign;
    }
    let header = usize::from(bytes[ip] & 0xf) * 4;
    let total = match usize::from(be16(bytes, ip + 2)) {
        0 if is_gso => bytes.len() - ip,
        total => total,
    };
    if header < IPV4 || total < header || bytes.len() < ip + total {
        return Parsed::Short;
    }
    let (offset, has_more) = (be16(bytes, ip + 6) & 0x1fff, be16(bytes, ip + 6) & 0x2000 != 0);
    let fragment = (offset != 0 || has_more).then(|| Fragment {
        id: u32::from(be16(bytes, ip + 4)),
        is_first: offset == 0,
        at: ip + 4,
    });
    let headers = Headers {
        ip,
        family: Family::Ipv4,
        transport: ip + header,
        end: ip + total,
        source,
        target,
        ttl: bytes[ip + 8],
        may_be_split: be16(bytes, ip + 6) & 0x4000 == 0,
        fragment,
        content: Content::IcmpError,
    };
    with_content(bytes, headers, bytes[ip + 9])
}

fn parse_v6(bytes: &[u8], ip: usize, is_gso: bool) -> Parsed {
    if bytes.len() < ip + IPV6 {
        return Parsed::Short;
    }
    let (source, target) = (v6_at(bytes, ip + 8), v6_at(bytes, ip + 24));
    if is_left_alone(source, target) {
        return Parsed::Foreign;
    }
    // On the wire, these are not IPv4 addresses; in the maps they are.
    if [source, target].iter().any(|addr| addr.family() == Family::Ipv4) {
        return Parsed::Foreign;
    }
    let end = match usize::from(be16(bytes, ip + 4)) {
        0 if is_gso => bytes.len(),
        0 => return Parsed::Short,
        payload => ip + IPV6 + payload,
    };
    if bytes.len() < end {
        return Parsed::Short;
    }
    let (transport, protocol, fragment) = match extensions::walk(&bytes[..end], ip + IPV6, bytes[ip + 6]) {
        Walked::To { at, protocol, fragment } => (at, protocol, fragment),
        Walked::Foreign => return Parsed::Foreign,
        Walked::Short => return Parsed::Short,
    };
    let ttl = bytes[ip + 7];
    let (family, content) = (Family::Ipv6, Content::IcmpError);
    let may_be_split = false;
    let headers = Headers { ip, family, transport, end, source, target, ttl, may_be_split, fragment, content };
    with_content(bytes, headers, protocol)
}

/// Reads the header after the IP header.
fn with_content(bytes: &[u8], headers: Headers, protocol: u8) -> Parsed {
    let rest = &bytes[headers.transport..headers.end];
    let is_whole = headers.fragment.is_none();
    let is_icmp = match headers.family {
        Family::Ipv4 => protocol == ICMP_NUMBER,
        Family::Ipv6 => protocol == ICMPV6_NUMBER,
    };
    // IPv6 also contains IPv4.
    let inner = [Family::Ipv4, headers.family].into_iter().find(|family| protocol == tunnel_number(*family));
    let protocol = match Protocol::from_repr(protocol) {
        Some(protocol @ (Protocol::Tcp | Protocol::Udp)) => protocol,
        _ if is_icmp && is_whole => return icmp(rest, headers),
        _ => {
            let Some(inner) = inner.filter(|_| is_whole) else { return Parsed::Foreign };
            return Parsed::Packet(Headers { content: Content::Tunnel(inner), ..headers });
        }
    };
    let content = if headers.fragment.is_some_and(|fragment| !fragment.is_first) {
        Some(Content::LaterFragment(protocol))
    } else {
        ports(rest, protocol, is_whole).map(|ports| Content::Transport(protocol, ports))
    };
    content.map_or(Parsed::Short, |content| Parsed::Packet(Headers { content, ..headers }))
}

fn icmp(rest: &[u8], headers: Headers) -> Parsed {
    let is_error = |kind: &u8| match headers.family {
        Family::Ipv4 => matches!(kind, 3 | 11 | 12),
        Family::Ipv6 => matches!(kind, 1..=4),
    };
    match rest.first() {
        Some(kind) if !is_error(kind) => Parsed::Foreign,
        Some(_) if rest.len() >= ICMP => Parsed::Packet(headers),
        _ => Parsed::Short,
    }
}

/// The ports and flags of a TCP or UDP header. The lengths that the header states must fit; a UDP header states that of
/// all fragments.
fn ports(rest: &[u8], protocol: Protocol, is_whole: bool) -> Option<Ports> {
    let is_tcp = protocol == Protocol::Tcp;
    let fixed = if is_tcp { TCP } else { UDP };
    if rest.len() < fixed {
        return None;
    }
    let stated = if is_tcp { usize::from(rest[12] >> 4) * 4 } else { usize::from(be16(rest, 4)) };
    if stated < fixed || ((is_whole || is_tcp) && stated > rest.len()) {
        return None;
    }
    let ports = Ports { source: be16(rest, 0), target: be16(rest, 2), ..Ports::default() };
    if !is_tcp {
        return Some(ports);
    }
    let has_data = stated < rest.len() || rest[13] & tcp_flags::FIN != 0;
    Some(Ports { tcp_flags: rest[13], sequence: be32(rest, 4), acknowledgment: be32(rest, 8), has_data, ..ports })
}

//! Packets of the parties as they are on the wire: written, cut into fragments, and read.

use nodelb_core::model::addr::{Addr, Family};
use nodelb_programs::checksum;
use nodelb_programs::headers::{Headers, Ports, UDP};
use nodelb_programs::key::Endpoint;

use crate::frame::correct_sum;
use crate::world::SENDER_MAC;

pub(crate) const TCP_NUMBER: u8 = 6;
pub(crate) const UDP_NUMBER: u8 = 17;

/// What a party sends.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Tcp(Segment),
    Udp {
        data: Vec<u8>,
        has_sum: bool,
    },
    /// An ICMP error about a packet from the target to an end.
    Error {
        kind: (u8, u8),
        mtu: u16,
        quoted: Vec<u8>,
    },
}

/// A TCP segment without its ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) data: Vec<u8>,
}

/// A packet between two ends.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
    pub(crate) content: Content,
}

/// The position of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) id: u32,
    pub(crate) offset: u16,
    pub(crate) has_more: bool,
}

/// The bytes of an address in a packet.
fn octets(addr: Addr) -> Vec<u8> {
    let octets = addr.octets();
    if addr.family() == Family::Ipv4 { octets[12..].to_vec() } else { octets.to_vec() }
}

impl Parcel {
    /// The packet that answers to the same ends.
    pub(crate) fn between(source: Endpoint, target: Endpoint, segment: Segment) -> Self {
        Self { source, target, content: Content::Tcp(segment) }
    }

    pub(crate) fn udp(source: Endpoint, target: Endpoint, data: Vec<u8>) -> Self {
        Self { source, target, content: Content::Udp { data, has_sum: true } }
    }

    fn number(&self) -> u8 {
        match &self.content {
            Content::Tcp(_) => TCP_NUMBER,
            Content::Udp { .. } => UDP_NUMBER,
            Content::Error { .. } if self.target.addr.family() == Family::Ipv4 => 1,
            Content::Error { .. } => 58,
        }
    }

    /// What follows the IP header.
    pub(crate) fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let at = match &self.content {
            Content::Tcp(segment) => {
                bytes.extend(self.source.port.to_be_bytes());
                bytes.extend(self.target.port.to_be_bytes());
                bytes.extend(segment.seq.to_be_bytes());
                bytes.extend(segment.ack.to_be_bytes());
                bytes.extend([5 << 4, segment.flags, 0x10, 0, 0, 0, 0, 0]);
                bytes.extend(&segment.data);
                16
            }
            Content::Udp { data, has_sum } => {
                bytes.extend(self.source.port.to_be_bytes());
                bytes.extend(self.target.port.to_be_bytes());
                bytes.extend(u16::try_from(UDP + data.len()).unwrap().to_be_bytes());
                bytes.extend([0; 2]);
                bytes.extend(data);
                if !has_sum {
                    return bytes;
                }
                6
            }
            Content::Error { kind, mtu, quoted } => {
                bytes.extend([kind.0, kind.1, 0, 0, 0, 0]);
                bytes.extend(mtu.to_be_bytes());
                bytes.extend(quoted);
                2
            }
        };
        let addresses = [octets(self.source.addr), octets(self.target.addr)].concat();
        let sum = correct_sum(&addresses, self.number(), &bytes);
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The IP packet.
    pub(crate) fn packet(&self) -> Vec<u8> {
        self.ip(&self.transport(), None)
    }

    /// The part of the datagram at this position, with these bytes after the IP header.
    pub(crate) fn ip(&self, content: &[u8], place: Option<Place>) -> Vec<u8> {
        let addresses = [octets(self.source.addr), octets(self.target.addr)].concat();
        let Place { id, offset, has_more } = place.unwrap_or(Place { id: 0, offset: 0, has_more: false });
        let length = |more: usize| u16::try_from(more + content.len()).unwrap().to_be_bytes();
        if addresses.len() == 8 {
            let mut header = vec![4 << 4 | 5, 0];
            header.extend(length(20));
            header.extend(u16::try_from(id).unwrap().to_be_bytes());
            let fragment = (offset / 8) | (u16::from(has_more) << 13) | (u16::from(place.is_none()) << 14);
            header.extend(fragment.to_be_bytes());
            header.extend([64, self.number(), 0, 0]);
            header.extend(addresses);
            let sum = checksum::of(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            return [&header[..], content].concat();
        }
        let mut header = vec![6 << 4, 0, 0, 0];
        header.extend(length(if place.is_some() { 8 } else { 0 }));
        header.extend([if place.is_some() { 44 } else { self.number() }, 64]);
        header.extend(addresses);
        if place.is_some() {
            header.extend([self.number(), 0]);
            header.extend((offset | u16::from(has_more)).to_be_bytes());
            header.extend(id.to_be_bytes());
        }
        [&header[..], content].concat()
    }

    /// The datagram in two fragments, the first of `first` bytes after the IP header.
    pub(crate) fn halves(&self, id: u32, first: u16) -> [Vec<u8>; 2] {
        let content = self.transport();
        let (head, tail) = content.split_at(usize::from(first));
        let place = |offset, has_more| Some(Place { id, offset, has_more });
        [self.ip(head, place(0, true)), self.ip(tail, place(first, false))]
    }
}

/// The frame with an IP packet, to a device with this Ethernet address.
pub(crate) fn frame(mac: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&mac[..], &SENDER_MAC, &kind, packet].concat()
}

/// The addresses of a frame, which may be malformed otherwise.
pub(crate) fn addresses(frame: &[u8]) -> Option<(Addr, Addr)> {
    let v4 = |at: usize| Some(Addr::from(std::net::IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?)));
    let v6 = |at: usize| Some(Addr::from_octets(*frame.get(at..)?.first_chunk::<16>()?));
    match frame.get(12..14)? {
        [8, 0] => Some((v4(26)?, v4(30)?)),
        _ => Some((v6(22)?, v6(38)?)),
    }
}

/// The position of a fragment.
pub(crate) fn place(bytes: &[u8], headers: &Headers) -> Option<Place> {
    let id = headers.fragment?.id;
    let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Some(match headers.family {
        Family::Ipv4 => {
            let field = be16(headers.ip + 6);
            Place { id, offset: (field & 0x1fff) * 8, has_more: field & 0x2000 != 0 }
        }
        // The parties send no other extension header.
        Family::Ipv6 => {
            let field = be16(headers.ip + 42);
            Place { id, offset: field & 0xfff8, has_more: field & 1 != 0 }
        }
    })
}

/// Whether the checksum of the transport header is right.
pub(crate) fn has_right_sum(ends: (Addr, Addr), protocol: u8, transport: &[u8]) -> bool {
    let at = if protocol == UDP_NUMBER { 6 } else { 16 };
    let Some(sum) = transport.get(at..at + 2) else { return false };
    let sum = u16::from_be_bytes([sum[0], sum[1]]);
    if sum == 0 && protocol == UDP_NUMBER {
        return true;
    }
    let mut zeroed = transport.to_vec();
    zeroed[at..at + 2].fill(0);
    correct_sum(&[octets(ends.0), octets(ends.1)].concat(), protocol, &zeroed) == sum
}

/// A segment that was read.
pub(crate) fn segment(ports: &Ports, transport: &[u8]) -> Segment {
    let header = usize::from(transport[12] >> 4) * 4;
    let Ports { tcp_flags: flags, sequence: seq, acknowledgment: ack, .. } = *ports;
    Segment { flags, seq, ack, data: transport[header..].to_vec() }
}

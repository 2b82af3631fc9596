//! What strangers send in floods. The packets are made in advance, and the router sends them as fast as it can.

use std::io::IoSlice;
use std::mem::take;
use std::net::{IpAddr, SocketAddr};

use nodelb_core::model::addr::{Addr, Family};
use nodelb_programs::headers::tcp_flags::{ACK, SYN};
use nodelb_programs::key::Endpoint;
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};
use socket2::{Domain, Socket, Type};

use crate::wire::{Content, Parcel, Segment};

/// What a flood consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// TCP SYNs.
    Syns,
    /// TCP SYNs, each followed by an acknowledgement with a wrong number.
    HalfHandshakes,
    /// Two datagrams of each stranger, which the backends answer.
    Answered,
    /// Datagrams that the backends do not answer.
    Silent,
    /// First fragments of datagrams without the rest.
    FirstFragments,
    /// Later fragments of datagrams without the first one.
    LaterFragments,
    /// ICMP errors about open TCP connections.
    Errors,
}

/// An open TCP connection of a client to a service, as everybody may know it.
pub(crate) type Open = (SocketAddr, SocketAddr);

/// The first byte of what strangers send as data.
pub(crate) const MARK: u8 = b'!';

/// Networks of the strangers. The router has no route to them.
pub(crate) const NETWORKS: [&str; 2] = ["198.18.0.0/15", "2001:db8:bad::/48"];

/// Packets that one call sends.
const BATCH: usize = 64;

/// Packets that strangers send before another stranger's: the backend answers meanwhile.
const BETWEEN: usize = 2 * BATCH;

/// Type and code of the errors, and their MTU, for each family.
const ERRORS: [[((u8, u8), u16); 4]; 2] =
    [[((3, 4), 552), ((3, 1), 0), ((3, 3), 0), ((11, 0), 0)], [((2, 0), 1_280), ((1, 3), 0), ((1, 4), 0), ((3, 0), 0)]];

fn end(socket: SocketAddr) -> Endpoint {
    Endpoint::new(Addr::from(socket.ip()), socket.port())
}

/// The stranger with this number: a source address and port that no other has.
fn stranger(number: u32, family: Family) -> Endpoint {
    let [_, a, b, c] = (number.wrapping_mul(0x9e37_79b1) & 0x1_ffff).to_be_bytes();
    let addr = match family {
        Family::Ipv4 => IpAddr::from([198, 18 | a, b, c]),
        Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, 0xbad, 0, 0, 0, u16::from(a), u16::from_be_bytes([b, c])]),
    };
    Endpoint::new(Addr::from(addr), 20_000 + u16::try_from(number >> 17).unwrap())
}

/// A number that no party to a connection expects.
fn wrong(number: u32) -> u32 {
    number.wrapping_mul(0x85eb_ca6b) | 1
}

impl Kind {
    /// The packets of the flood to these addresses of services, in turn.
    pub(crate) fn packets(self, count: u32, targets: [SocketAddr; 2], open: &[Open]) -> Vec<Vec<u8>> {
        let family = end(targets[0]).addr.family();
        let between = |number: u32| (stranger(number, family), end(targets[usize::try_from(number % 2).unwrap()]));
        let tcp = |number: u32, flags, ack| {
            let (from, to) = between(number);
            Parcel::between(from, to, Segment { flags, seq: wrong(number), ack, ..Segment::default() }).packet()
        };
        let datagram = |number, length| {
            let (from, to) = between(number);
            Parcel::udp(from, to, vec![MARK; length])
        };
        let twice = |first: &dyn Fn(u32) -> Vec<u8>, second: &dyn Fn(u32) -> Vec<u8>| {
            let numbers: Vec<u32> = (0..count / 2).collect();
            let pairs = numbers.chunks(BETWEEN);
            let each = pairs.flat_map(|part| part.iter().map(|n| first(*n)).chain(part.iter().map(|n| second(*n))));
            each.collect()
        };
        match self {
            Self::Syns => (0..count).map(|number| tcp(number, SYN, 0)).collect(),
            Self::HalfHandshakes => twice(&|number| tcp(number, SYN, 0), &|number| tcp(number, ACK, wrong(number))),
            Self::Answered => twice(&|number| datagram(number, 8).packet(), &|number| datagram(number, 9).packet()),
            Self::Silent => (0..count).map(|number| datagram(number, 8).packet()).collect(),
            Self::FirstFragments => {
                (0..count).map(|number| take(&mut datagram(number, 64).halves(1 + number % 0xffff, 32)[0])).collect()
            }
            Self::LaterFragments => {
                let later = |number| take(&mut datagram(number, 64).halves(1 + number % 0xffff, 32)[1]);
                (0..count).map(|number| passed_once(later(number), family)).collect()
            }
            Self::Errors => (0..count).map(|number| error(number, family, open)).collect(),
        }
    }
}

/// The packet with a time to live that ends at the router, if the node routes the packet back.
fn passed_once(mut packet: Vec<u8>, family: Family) -> Vec<u8> {
    packet[if family == Family::Ipv4 { 8 } else { 7 }] = 2;
    packet
}

/// An error of a machine behind the router about what a backend has sent on one of the connections.
fn error(number: u32, family: Family, open: &[Open]) -> Vec<u8> {
    let (client, service) = open[usize::try_from(number).unwrap() % open.len()];
    let (kind, mtu) = ERRORS[usize::from(family == Family::Ipv6)][usize::try_from(wrong(number) >> 8).unwrap() % 4];
    let sent = Segment { flags: ACK, seq: wrong(number), ack: 1, data: vec![MARK; 8] };
    let quoted = Parcel::between(end(service), end(client), sent).packet();
    let content = Content::Error { kind, mtu, quoted };
    Parcel { source: stranger(number, family), target: end(service), content }.packet()
}

/// Sends the packets from the network namespace of the calling thread to the node. `pause` gets the number of packets that
/// were sent before each call.
pub(crate) fn send(packets: &[Vec<u8>], node: IpAddr, mut pause: impl FnMut(usize)) {
    let domain = if node.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    // With this protocol, the packets have their headers.
    let socket = Socket::new(domain, Type::RAW, Some(255.into())).unwrap();
    socket.connect(&SocketAddr::new(node, 0).into()).unwrap();
    let mut sent = 0;
    while sent < packets.len() {
        pause(sent);
        let end = packets.len().min(sent + BATCH);
        let slices: Vec<[IoSlice<'_>; 1]> = packets[sent..end].iter().map(|packet| [IoSlice::new(packet)]).collect();
        let mut controls: Vec<_> = slices.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let messages = slices.iter().zip(&mut controls).map(|(slice, control)| MMsgHdr::new(slice, control));
        match sendmmsg(&socket, &mut messages.collect::<Vec<_>>(), SendFlags::empty()) {
            Ok(count) => sent += count,
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            Err(error) => panic!("packet {sent}: {error}"),
        }
    }
}

//! What strangers send: they know all addresses and ports, and may write any of them into their packets, but they do not
//! see the packets of others.

use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_programs::key::Endpoint;
use proptest::prelude::*;

use crate::direct::wrap;
use crate::honest::{COUNT, IDS, User, endpoint};
use crate::tag::STRANGERS;
use crate::wire::{Content, Parcel, Place, Segment};

/// Source ports of the node towards remote backends.
pub(crate) const SNAT_PORTS: std::ops::RangeInclusive<u16> = 10_000..=10_007;

/// An end that a stranger writes into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// An address of its own.
    Own(u8),
    /// An honest client.
    User(u8),
    /// Another port of an honest client.
    PortOf(u8, u16),
    /// The service of an honest client.
    Service(u8),
    /// Another port of its address.
    PortOfService(u8, u16),
    /// The backend of an honest client, or the one that replaces it.
    Backend(u8),
    Spare(u8),
    /// The address of the node that remote backends see, with one of its ports.
    Node(u8),
    /// Another service that has the same backends, or none.
    Other(u8),
    /// A group, the broadcast address, loopback, or no address.
    Group(u8),
}

const OTHERS: [(&str, Protocol); 10] = [
    ("203.0.113.70:80", Protocol::Tcp),
    ("203.0.113.71:53", Protocol::Udp),
    ("203.0.113.11:80", Protocol::Tcp),
    ("203.0.113.11:53", Protocol::Udp),
    ("203.0.113.27:80", Protocol::Tcp),
    ("203.0.113.23:53", Protocol::Udp),
    ("203.0.113.72:80", Protocol::Tcp),
    ("203.0.113.73:53", Protocol::Udp),
    ("203.0.113.90:80", Protocol::Tcp),
    ("203.0.113.80:53", Protocol::Udp),
];

/// Changes of services that no honest client uses. Some have the same backends.
pub(crate) const STRANGER_CHANGES: [&[&str]; 13] = [
    &["remove backend 15 70"],
    &["remove backend 15 70", "backend 15 10.0.2.5:8080/TCP 70"],
    &["remove backend 16 71"],
    &["remove backend 16 71", "backend 16 10.0.2.5:5353/UDP 71"],
    &["remove outside 203.0.113.70:80/TCP"],
    &["outside 203.0.113.70:80/TCP 70"],
    &["outside 203.0.113.70:80/TCP 27"],
    &["remove outside 203.0.113.72:80/TCP"],
    &["remove backend 11 72"],
    // With direct return.
    &["remove backend 90 90"],
    &["remove backend 90 90", "backend 90 10.0.2.90:8080/TCP 90"],
    &["remove outside 203.0.113.80:53/UDP"],
    &["outside 203.0.113.80:53/UDP 81"],
];

/// Where tunnels of strangers end: at backends here and elsewhere, and at the node.
const TUNNEL_ENDS: [(&str, &str); 6] = [
    ("10.0.1.78", "2001:db8:1001::78"),
    ("10.0.1.79", "2001:db8:1001::79"),
    ("10.0.1.5", "2001:db8:1001::5"),
    ("198.18.0.1", "2001:db8:18::1"),
    ("10.0.2.74", "2001:db8:1002::78"),
    ("10.0.1.84", "2001:db8:1001::9"),
];

/// The packet in a tunnel, which another node may have sent.
pub(crate) fn tunnelled(packet: &[u8], end: u8) -> Vec<u8> {
    let (v4, v6) = TUNNEL_ENDS[usize::from(end) % TUNNEL_ENDS.len()];
    let (source, target) = if packet[0] >> 4 == 4 { ("10.0.9.1", v4) } else { ("2001:db8:9::1", v6) };
    wrap((source.parse().unwrap(), target.parse().unwrap()), packet)
}

const GROUPS: [&str; 4] = ["224.0.0.1:80", "255.255.255.255:53", "127.0.0.1:80", "0.0.0.0:53"];

/// What the packet contains, and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// A whole packet with this much data.
    Plain { flags: u8, seq: u32, ack: u32, data: u16 },
    /// The first fragment of a datagram, and whether it has a checksum.
    First { id: u8, bytes: u16, has_sum: bool },
    /// Another one, at this offset in units of 8 bytes.
    Later { id: u8, offset: u16, bytes: u16, has_more: bool },
    /// An ICMP error, by its index in [`ERRORS`], about a packet with this number in the opposite direction.
    Error { kind: u8, seq: u32 },
    /// A packet that no program translates: malformed, or with something else than TCP and UDP.
    Odd(u8),
}

/// The number of kinds of [`Sends::Odd`].
const ODD: u8 = 8;

/// Makes a packet that no program translates of this one, which has data. `at` is where its transport header begins.
fn odd(mut packet: Vec<u8>, at: usize, kind: u8, is_tcp: bool) -> Vec<u8> {
    let is_v4 = at == 20;
    let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
    match kind % ODD {
        0 if is_tcp => put(at + 12, &[4 << 4]),
        0 => put(at + 4, &[0, 4]),
        1 if is_tcp => put(at + 12, &[15 << 4]),
        1 => put(at + 4, &[1, 0x90]),
        2 => packet.truncate(at + 4),
        3 => {
            packet.truncate(at + 4);
            packet[if is_v4 { 3 } else { 5 }] = if is_v4 { 24 } else { 4 };
        }
        // SCTP and GRE.
        4 => put(if is_v4 { 9 } else { 6 }, &[132]),
        5 => put(if is_v4 { 9 } else { 6 }, &[47]),
        // An echo request.
        6 => {
            put(if is_v4 { 9 } else { 6 }, &[if is_v4 { 1 } else { 58 }]);
            put(at, &[if is_v4 { 8 } else { 128 }, 0]);
        }
        // More extension headers than are read.
        _ if is_v4 => put(9, &[51]),
        _ => {
            let next = packet[6];
            (packet[5], packet[6]) = (packet[5] + 56, 60);
            let last = |number| if number == 6 { next } else { 60 };
            let headers: Vec<u8> = (0..7).flat_map(|number| [last(number), 0, 1, 4, 0, 0, 0, 0]).collect();
            packet.splice(at..at, headers);
        }
    }
    packet
}

/// Type and code of an ICMP error, those of the same ICMPv6 error, and their MTU.
type KindOfError = ((u8, u8), (u8, u8), u16);

/// The largest MTU in an error of strangers. The links of the lab have more.
pub(crate) const MOST_FALSE_MTU: u16 = 1_280;

/// The errors that strangers send.
const ERRORS: [KindOfError; 6] = [
    ((3, 4), (2, 0), MOST_FALSE_MTU),
    ((3, 4), (2, 0), 68),
    ((3, 3), (1, 4), 0),
    ((11, 0), (3, 0), 0),
    ((12, 0), (4, 0), 0),
    ((3, 13), (1, 1), 0),
];

/// Their number.
pub(crate) const KINDS_OF_ERRORS: u8 = 6;

/// The device where a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The way to the clients.
    Eth0,
    /// The way to the remote backends.
    Eth1,
    /// Another uplink, which reaches no client.
    Eth2,
    /// A pod's device.
    Tap1,
}

impl By {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Eth0 => "eth0",
            Self::Eth1 => "eth1",
            Self::Eth2 => "eth2",
            Self::Tap1 => "tap1",
        }
    }
}

/// A packet of a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged {
    pub(crate) by: By,
    pub(crate) from: Who,
    pub(crate) to: Who,
    pub(crate) sends: Sends,
}

/// The end with this number among many, of this family. None has a network stack.
pub(crate) fn nth(number: u32, family: Family) -> Endpoint {
    let [_, a, b, c] = number.to_be_bytes();
    let addr = match family {
        Family::Ipv4 => Addr::from(std::net::IpAddr::from([11, a, b, c])),
        Family::Ipv6 => Addr::from(std::net::IpAddr::from([
            0x2001,
            0xdb8,
            0xbad,
            0,
            0,
            0,
            u16::from(a),
            u16::from(b) << 8 | u16::from(c),
        ])),
    };
    Endpoint::new(addr, 20_000 + u16::try_from(number % 10_000).unwrap())
}

/// The address of the node that remote backends see.
fn node_addr(family: Family) -> Addr {
    match family {
        Family::Ipv4 => "198.18.0.1".parse().unwrap(),
        Family::Ipv6 => "2001:db8:18::1".parse().unwrap(),
    }
}

impl Who {
    fn family(self) -> Option<Family> {
        match self {
            Self::Own(_) | Self::Node(_) => None,
            Self::User(user)
            | Self::PortOf(user, _)
            | Self::Service(user)
            | Self::PortOfService(user, _)
            | Self::Backend(user)
            | Self::Spare(user) => Some(endpoint(User::of(user).client).addr.family()),
            Self::Other(_) | Self::Group(_) => Some(Family::Ipv4),
        }
    }

    fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Own(_) | Self::Group(_) | Self::Node(_) => None,
            Self::User(user)
            | Self::PortOf(user, _)
            | Self::Service(user)
            | Self::PortOfService(user, _)
            | Self::Backend(user)
            | Self::Spare(user) => Some(if User::of(user).is_tcp { Protocol::Tcp } else { Protocol::Udp }),
            Self::Other(other) => Some(OTHERS[usize::from(other) % OTHERS.len()].1),
        }
    }

    pub(crate) fn end(self, family: Family) -> Endpoint {
        match self {
            Self::Own(number) => nth(u32::from(number), family),
            Self::User(user) => endpoint(User::of(user).client),
            Self::PortOf(user, port) => Endpoint::new(endpoint(User::of(user).client).addr, port.max(1)),
            Self::Service(user) => endpoint(User::of(user).service),
            Self::PortOfService(user, port) => Endpoint::new(endpoint(User::of(user).service).addr, port.max(1)),
            Self::Backend(user) => endpoint(User::of(user).backend),
            Self::Spare(user) => endpoint(User::of(user).spare),
            Self::Node(port) => Endpoint::new(node_addr(family), SNAT_PORTS.start() + u16::from(port % 8)),
            Self::Other(other) => endpoint(OTHERS[usize::from(other) % OTHERS.len()].0),
            Self::Group(group) => endpoint(GROUPS[usize::from(group) % GROUPS.len()]),
        }
    }

    /// Whether the address is an honest party's: fragments with it could be mixed with those of the party anywhere on
    /// the way, with and without a load balancer.
    const fn is_honest(self) -> bool {
        matches!(self, Self::User(_) | Self::PortOf(..) | Self::Backend(_) | Self::Spare(_))
    }
}

impl Forged {
    /// The packet; `None` if its ends are of different families.
    pub(crate) fn packet(&self) -> Option<Vec<u8>> {
        let family = self.from.family().or(self.to.family()).unwrap_or(Family::Ipv4);
        if self.from.family().is_some_and(|own| own != family) || self.to.family().is_some_and(|own| own != family) {
            return None;
        }
        let protocol = self.to.protocol().or(self.from.protocol()).unwrap_or(Protocol::Udp);
        let (source, target) = (self.from.end(family), self.to.end(family));
        let whole = |source, target, data: Vec<u8>, (flags, seq, ack)| match protocol {
            Protocol::Tcp => Parcel::between(source, target, Segment { flags, seq, ack, data }),
            _ => Parcel::udp(source, target, data),
        };
        let id = |id: u8| {
            let id = u32::from(id) % IDS;
            if self.from.is_honest() { 100 + id } else { 1 + id }
        };
        let filler = |bytes: u16| vec![b'!'; usize::from(bytes)];
        Some(match self.sends {
            Sends::Plain { flags, seq, ack, data } => whole(source, target, filler(data), (flags, seq, ack)).packet(),
            Sends::First { id: own, bytes, has_sum } => {
                let bytes = bytes / 8 * 8 + 8;
                let mut parcel = Parcel::udp(source, target, filler(bytes + 400));
                if let Content::Udp { has_sum: has, .. } = &mut parcel.content {
                    *has = has_sum;
                }
                let [first, _] = parcel.halves(id(own), bytes);
                first
            }
            Sends::Later { id: own, offset, bytes, has_more } => {
                let place = Place { id: id(own), offset: (offset % 300).max(1) * 8, has_more };
                Parcel::udp(source, target, Vec::new()).ip(&filler(bytes / 8 * 8 + 8), Some(place))
            }
            Sends::Odd(kind) => {
                let at = if family == Family::Ipv4 { 20 } else { 40 };
                let packet = whole(source, target, filler(12), (2, 1, 0)).packet();
                odd(packet, at, kind, protocol == Protocol::Tcp)
            }
            Sends::Error { kind, seq } => {
                let (v4, v6, mtu) = ERRORS[usize::from(kind) % ERRORS.len()];
                let kind = if family == Family::Ipv4 { v4 } else { v6 };
                let quoted = whole(target, source, filler(40), (16, seq, 0)).packet();
                let (source, target) = (nth(7, family), target);
                Parcel { source, target, content: Content::Error { kind, mtu, quoted } }.packet()
            }
        })
    }
}

/// A number that no honest party uses.
pub(crate) fn number() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 2 => Just(1), 1 => Just(u32::MAX), 2 => 0..STRANGERS]
}

/// Those with direct return as often as all others, and this one as often as either.
pub(crate) fn user(about: u8) -> impl Strategy<Value = u8> + Clone {
    prop_oneof![0..COUNT, 19..COUNT, Just(about)]
}

fn port() -> impl Strategy<Value = u8> {
    0_u8..8
}

/// Pairs of ends that may meet something.
fn ends(about: u8) -> impl Strategy<Value = (Who, Who)> {
    use Who::{Backend, Group, Node, Other, Own, PortOf, PortOfService, Service, Spare, User};
    let user = || user(about);
    prop_oneof![
        5 => user().prop_map(|user| (User(user), Service(user))),
        4 => (user(), port()).prop_map(|(user, port)| (Backend(user), Node(port))),
        2 => user().prop_map(|user| (Backend(user), User(user))),
        3 => (any::<u8>(), user()).prop_map(|(own, user)| (Own(own), Service(user))),
        1 => (any::<u8>(), 0_u8..10).prop_map(|(own, other)| (Own(own), Other(other))),
        1 => (any::<u8>(), port()).prop_map(|(own, port)| (Own(own), Node(port))),
        2 => (user(), 0_u8..10).prop_map(|(user, other)| (User(user), Other(other))),
        1 => user().prop_map(|user| (User(user), Backend(user))),
        1 => (any::<u8>(), user()).prop_map(|(own, user)| (Own(own), Backend(user))),
        1 => user().prop_map(|user| (Service(user), User(user))),
        1 => user().prop_map(|user| (Service(user), Service(user))),
        1 => (user(), user()).prop_map(|(one, other)| (Service(one), Service(other))),
        1 => (user(), 0_u8..10).prop_map(|(user, other)| (Service(user), Other(other))),
        1 => (user(), 0_u8..10).prop_map(|(user, other)| (Other(other), Service(user))),
        1 => (user(), port()).prop_map(|(user, port)| (Node(port), Service(user))),
        1 => (user(), port()).prop_map(|(user, port)| (Node(port), Backend(user))),
        1 => (user(), port()).prop_map(|(user, port)| (Spare(user), Node(port))),
        1 => (user(), user()).prop_map(|(one, other)| (Backend(one), Service(other))),
        1 => (user(), any::<u8>()).prop_map(|(user, group)| (Group(group), Service(user))),
        2 => (any::<u8>(), user(), prop_oneof![Just(81_u16), Just(30_053), 10_000_u16..10_008])
            .prop_map(|(own, user, port)| (Own(own), PortOfService(user, port))),
        1 => (user(), user(), Just(81_u16)).prop_map(|(one, other, port)| (User(one), PortOfService(other, port))),
        2 => (user(), 39_998_u16..40_004).prop_map(|(user, port)| (PortOf(user, port), Service(user))),
    ]
}

fn sends() -> impl Strategy<Value = Sends> {
    const FLAGS: [u8; 10] = [2, 2, 18, 16, 24, 4, 20, 1, 17, 0];
    let plain = (0..FLAGS.len(), number(), number(), prop_oneof![3 => Just(0_u16), 1 => 0_u16..100, 1 => Just(1_440)]);
    prop_oneof![
        12 => plain.prop_map(|(flags, seq, ack, data)| Sends::Plain { flags: FLAGS[flags], seq, ack, data }),
        2 => (0_u8..4, prop_oneof![Just(1_192_u16), 0_u16..1_200], any::<bool>())
            .prop_map(|(id, bytes, has_sum)| Sends::First { id, bytes, has_sum }),
        2 => (0_u8..4, prop_oneof![Just(150_u16), 0_u16..200], 0_u16..500, any::<bool>())
            .prop_map(|(id, offset, bytes, has_more)| Sends::Later { id, offset, bytes, has_more }),
        2 => (0..KINDS_OF_ERRORS, number()).prop_map(|(kind, seq)| Sends::Error { kind, seq }),
        2 => (0..ODD).prop_map(Sends::Odd),
    ]
}

/// A packet of a stranger, which is often about this user.
pub(crate) fn forged(about: u8) -> impl Strategy<Value = Forged> {
    let by = prop_oneof![5 => Just(By::Eth0), 2 => Just(By::Eth1), 2 => Just(By::Eth2), 1 => Just(By::Tap1)];
    (by, ends(about), sends()).prop_map(|(by, (from, to), sends)| Forged { by, from, to, sends })
}

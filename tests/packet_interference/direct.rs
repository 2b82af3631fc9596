//! Direct return: the backends on other machines, which have the address of their service, and the other node, which sends
//! packets here in tunnels.

use std::collections::BTreeMap;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::state::entries::ServiceId;
use nodelb_programs::checksum;
use nodelb_programs::headers::tcp_flags::SYN;
use nodelb_programs::headers::{Content, Headers, Parsed, parse, tunnel_number};
use nodelb_programs::key::{Endpoint, Tuple};
use nodelb_programs::rewrite;

use crate::honest::{MORE_BACKENDS, USERS, User, endpoint};
use crate::world::World;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// The address of the other node.
fn other_node(family: Family) -> Addr {
    let text = if family == Family::Ipv4 { "10.0.9.1" } else { "2001:db8:9::1" };
    text.parse().unwrap()
}

/// The byte of an address by which [`alias`] and [`machine`] differ.
const fn place(family: Family) -> usize {
    match family {
        Family::Ipv4 => 14,
        Family::Ipv6 => 5,
    }
}

fn with_byte(addr: Addr, from: u8, to: u8) -> Option<Addr> {
    let (mut octets, at) = (addr.octets(), place(addr.family()));
    let is_inside = if addr.family() == Family::Ipv4 { octets[12..14] == [10, 0] } else { octets[4] == 0x10 };
    let is_own = is_inside && octets[at] == from;
    octets[at] = to;
    is_own.then(|| Addr::from_octets(octets))
}

/// The address of the sockets that a backend has at its service's address. Each backend has others.
fn alias(machine: Addr) -> Option<Addr> {
    with_byte(machine, 2, 8)
}

/// The backend with these sockets.
fn machine(alias: Addr) -> Option<Addr> {
    with_byte(alias, 8, 2)
}

/// The user of the backend.
fn user_of(machine: Addr, protocol: Protocol) -> Option<&'static User> {
    let is_more = |number: usize| {
        MORE_BACKENDS.iter().any(|(addr, user)| usize::from(*user) == number && addr.parse() == Ok(machine))
    };
    let mut users = USERS.iter().enumerate().filter(|(_, user)| user.is_direct);
    let found = users.find(|(number, user)| {
        let is_own = [user.backend, user.spare].iter().any(|own| endpoint(own).addr == machine);
        user.is_tcp == (protocol == Protocol::Tcp) && (is_own || is_more(*number))
    });
    found.map(|(_, user)| user)
}

/// The frame as the sockets of the backend get it: outside of its tunnel, and with their own address.
pub(crate) fn at_backend(machine: Addr, frame: &[u8]) -> Option<Vec<u8>> {
    let Parsed::Packet(outer) = parse(frame, ETHERNET, false) else { return None };
    let mut frame = frame.to_vec();
    if matches!(outer.content, Content::Tunnel(_)) {
        assert_eq!((outer.target, outer.ttl), (machine, 64));
        frame.drain(outer.ip..outer.transport);
    }
    let Parsed::Packet(headers) = parse(&frame, ETHERNET, false) else { return None };
    let (source, port) = match headers.content {
        Content::Transport(Protocol::Tcp, ports) => (ports.source, 8_080),
        Content::Transport(_, ports) => (ports.source, 5_353),
        Content::LaterFragment(_) => (0, 0),
        // An error with false numbers, which no backend believes.
        Content::IcmpError | Content::Tunnel(_) => return None,
    };
    let to = Tuple { source: Endpoint::new(headers.source, source), target: Endpoint::new(alias(machine)?, port) };
    rewrite::write(&mut frame, &headers, &to);
    Some(frame)
}

/// What such sockets send, with the address of the service; `None` if others have sent the frame.
pub(crate) fn with_service(frame: &[u8], headers: &Headers) -> Option<Vec<u8>> {
    let machine = machine(headers.source)?;
    let Content::Transport(protocol, ports) = headers.content else { return None };
    let source = endpoint(user_of(machine, protocol)?.service);
    let mut frame = frame.to_vec();
    rewrite::write(&mut frame, headers, &Tuple { source, target: Endpoint::new(headers.target, ports.target) });
    Some(frame)
}

/// A packet in a tunnel.
pub(crate) fn wrap((source, target): (Addr, Addr), packet: &[u8]) -> Vec<u8> {
    let wire = |addr: Addr| addr.octets()[if addr.family() == Family::Ipv4 { 12 } else { 0 }..].to_vec();
    let family = target.family();
    let length = |more: usize| u16::try_from(packet.len() + more).unwrap().to_be_bytes();
    let mut header = match family {
        Family::Ipv4 => {
            vec![4 << 4 | 5, 0, length(20)[0], length(20)[1], 0, 0, 0x40, 0, 64, tunnel_number(family), 0, 0]
        }
        Family::Ipv6 => vec![6 << 4, 0, 0, 0, length(0)[0], length(0)[1], tunnel_number(family), 64],
    };
    header.extend([wire(source), wire(target)].concat());
    if family == Family::Ipv4 {
        let sum = checksum::of(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [&header[..], packet].concat()
}

/// The other node, which knows the backend of each connection.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    ends: BTreeMap<(Addr, Addr), Addr>,
}

impl Tunnels {
    /// The frame as the other node sends it, if the client's packets come by that node.
    pub(crate) fn wrapped(&mut self, world: &World, frame: &[u8]) -> Option<Vec<u8>> {
        let Parsed::Packet(headers) = parse(frame, ETHERNET, false) else { return None };
        let is_to = |user: &&User| user.is_tunnelled && endpoint(user.service).addr == headers.target;
        let user = USERS.iter().find(is_to)?;
        let key = (headers.source, headers.target);
        let is_first = match headers.content {
            Content::Transport(protocol, ports) => protocol != Protocol::Tcp || ports.tcp_flags & SYN != 0,
            _ => false,
        };
        let service = world.state.services.get(&ServiceId(user.numbers.0))?;
        let now: Option<L4Addr> = service.cluster.first().map(|slot| slot.addr);
        if let Some(now) = now.filter(|_| is_first) {
            self.ends.insert(key, now.addr);
        }
        let end = *self.ends.get(&key)?;
        let (link, packet) = frame.split_at(ETHERNET);
        let mut link = link.to_vec();
        link[..6].copy_from_slice(&world.devices["eth1"].mac);
        Some([link, wrap((other_node(headers.family), end), packet)].concat())
    }
}

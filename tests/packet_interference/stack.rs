//! The network stacks of the parties: the sockets of all clients, of all strangers that take part with their own
//! addresses, or of all backends.

use std::collections::BTreeMap;

use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_programs::headers::tcp_flags::{ACK, RST, SYN};
use nodelb_programs::headers::{Content as Parsed, Headers, Parsed as Read, UDP, parse};
use nodelb_programs::key::Endpoint;

use crate::honest::{COUNT, User, endpoint};
use crate::socket::{Event, Result, Socket, State};
use crate::strangers::MOST_FALSE_MTU;
use crate::tag::{Kind, Label, Message, has_secret};
use crate::wire::{self, Content, Parcel, Place, Segment, TCP_NUMBER, UDP_NUMBER};

/// How many nanoseconds fragments wait for the others: `net.ipv4.ipfrag_time`.
const FRAGMENT_NS: u64 = 30_000_000_000;

/// What a backend answers to a datagram of a stranger.
const ECHO: &[u8] = b"stranger";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Clients,
    Guests,
    Backends,
}

/// What an honest party has observed, and who: the user's client, or the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) label: Label,
    pub(crate) is_client: bool,
    pub(crate) event: Event,
}

type Ends = (Endpoint, Endpoint);

/// A datagram with a missing part.
#[derive(Clone, Debug)]
struct Datagram {
    since: u64,
    parts: BTreeMap<u16, Vec<u8>>,
    end: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Stack {
    role: Role,
    pub(crate) sockets: BTreeMap<Ends, Socket>,
    /// The queries over UDP that clients wait for an answer to.
    pub(crate) questions: BTreeMap<Ends, Label>,
    datagrams: BTreeMap<(Addr, Addr, u32, u8), Datagram>,
    pub(crate) seen: Vec<Seen>,
    /// The connections that sent another SYN, because the backend took the first one for a part of another connection.
    pub(crate) delayed: Vec<Label>,
    /// The stack of a stranger has got something of an honest party.
    pub(crate) leaks: Vec<Vec<u8>>,
}

/// What arrived: its ends, the protocol, and the bytes after the IP header.
#[derive(Debug)]
struct Arrived {
    headers: Headers,
    protocol: u8,
    transport: Vec<u8>,
}

impl Stack {
    pub(crate) fn new(role: Role) -> Self {
        let (sockets, questions, datagrams) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { role, sockets, questions, datagrams, seen: Vec::new(), delayed: Vec::new(), leaks: Vec::new() }
    }

    /// A stranger without a network stack gets a frame.
    pub(crate) fn overhear(&mut self, frame: &[u8], headers: &Headers) {
        if has_secret(frame) && !matches!(headers.content, Parsed::IcmpError) {
            self.leaks.push(frame.to_vec());
        }
    }

    /// Takes a frame; returns what it answers.
    pub(crate) fn receive(&mut self, frame: &[u8], now: u64) -> Vec<Parcel> {
        let Read::Packet(headers) = parse(frame, 14, false) else { return Vec::new() };
        if self.role == Role::Guests {
            self.overhear(frame, &headers);
        }
        let bytes = frame[headers.transport..headers.end].to_vec();
        if let Some(place) = wire::place(frame, &headers) {
            let protocol = match headers.content {
                Parsed::Transport(protocol, _) | Parsed::LaterFragment(protocol) => protocol,
                Parsed::IcmpError | Parsed::Tunnel(_) => return Vec::new(),
            };
            let Some(transport) = self.assemble(&headers, (place, protocol.number()), bytes, now) else {
                return Vec::new();
            };
            return self.arrived(Arrived { headers, protocol: protocol.number(), transport }, now);
        }
        match headers.content {
            Parsed::IcmpError => self.error(&headers, &bytes),
            Parsed::Transport(protocol, _) => {
                self.arrived(Arrived { headers, protocol: protocol.number(), transport: bytes }, now)
            }
            Parsed::LaterFragment(_) | Parsed::Tunnel(_) => Vec::new(),
        }
    }

    /// Adds a part of a datagram, and returns the datagram if it is whole. As with Linux, a part with no new bytes is
    /// ignored, and one that overlaps ends the datagram.
    fn assemble(
        &mut self,
        headers: &Headers,
        (place, protocol): (Place, u8),
        bytes: Vec<u8>,
        now: u64,
    ) -> Option<Vec<u8>> {
        let key = (headers.source, headers.target, place.id, protocol);
        if self.datagrams.get(&key).is_some_and(|datagram| now - datagram.since >= FRAGMENT_NS) {
            self.datagrams.remove(&key);
        }
        let new = || Datagram { since: now, parts: BTreeMap::new(), end: None };
        let datagram = self.datagrams.entry(key).or_insert_with(new);
        let (start, end) = (place.offset, place.offset + u16::try_from(bytes.len()).unwrap());
        let end_of = |(start, part): (&u16, &Vec<u8>)| *start + u16::try_from(part.len()).unwrap();
        if datagram.parts.iter().any(|(from, part)| *from <= start && end <= end_of((from, part))) {
            return None;
        }
        let overlaps = datagram.parts.iter().any(|(from, part)| *from < end && start < end_of((from, part)));
        if overlaps {
            self.datagrams.remove(&key);
            return None;
        }
        datagram.parts.insert(start, bytes);
        if !place.has_more {
            datagram.end = Some(end);
        }
        let mut next = 0;
        for (from, part) in &datagram.parts {
            if *from != next {
                return None;
            }
            next = end_of((from, part));
        }
        (datagram.end == Some(next))
            .then(|| self.datagrams.remove(&key).map(|whole| whole.parts))?
            .map(|parts| parts.into_values().flatten().collect())
    }

    /// A whole packet has arrived.
    fn arrived(&mut self, arrived: Arrived, now: u64) -> Vec<Parcel> {
        let Arrived { headers, protocol, transport } = arrived;
        if transport.len() < UDP || !wire::has_right_sum((headers.source, headers.target), protocol, &transport) {
            return Vec::new();
        }
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let ends = (Endpoint::new(headers.target, port(2)), Endpoint::new(headers.source, port(0)));
        match protocol {
            TCP_NUMBER => {
                let Parsed::Transport(Protocol::Tcp, ports) = headers.content else { return Vec::new() };
                self.tcp(ends, &wire::segment(&ports, &transport), now)
            }
            UDP_NUMBER => self.udp(ends, &transport[UDP..]),
            _ => Vec::new(),
        }
    }

    fn tcp(&mut self, ends: Ends, segment: &Segment, now: u64) -> Vec<Parcel> {
        let is_syn = segment.flags & (SYN | ACK | RST) == SYN;
        let is_listening = self.role == Role::Backends && ends.0.port == 8_080;
        if is_syn && is_listening && self.sockets.get(&ends).is_none_or(|socket| socket.gives_way(segment, now)) {
            let (socket, answer) = Socket::accept(segment, now);
            self.sockets.insert(ends, socket);
            return vec![Parcel::between(ends.0, ends.1, answer)];
        }
        let open = self.sockets.get_mut(&ends).filter(|socket| socket.state != State::Closed);
        let Some(socket) = open else { return refuse(ends, segment) };
        let is_connecting = socket.state == State::SynSent;
        let (label, Result { sent, events }) = (socket.label, socket.receive(segment, now));
        if is_connecting && sent.iter().any(|answer| answer.flags & RST != 0) {
            self.delayed.extend(label);
        }
        let is_closed = socket.state == State::Closed;
        if is_closed {
            self.sockets.remove(&ends);
        }
        let is_client = self.role == Role::Clients;
        for event in events {
            let event =
                if event == Event::Accepted(String::new()) { Event::Accepted(ends.0.to_string()) } else { event };
            self.seen.extend(label.map(|label| Seen { label, is_client, event }));
        }
        sent.into_iter().map(|segment| Parcel::between(ends.0, ends.1, segment)).collect()
    }

    fn udp(&mut self, ends: Ends, data: &[u8]) -> Vec<Parcel> {
        let message = Message::read(data);
        if has_secret(data) && message.is_none() {
            let label = Label { user: data.get(3).copied().unwrap_or(0) % COUNT, connection: 0 };
            self.seen.push(Seen { label, is_client: self.role == Role::Clients, event: Event::Mixed(data.to_vec()) });
        }
        if let Some(message) = message {
            let User { client, service, .. } = User::of(message.label.user);
            let is_own = self.role != Role::Clients || ends == (endpoint(client), endpoint(service));
            let event =
                if is_own { Event::Got(message.number, message.kind, data.len()) } else { Event::Mixed(data.to_vec()) };
            self.seen.push(Seen { label: message.label, is_client: self.role == Role::Clients, event });
        }
        // An echo gets no echo: two servers would answer each other for ever.
        if self.role != Role::Backends || ends.0.port != 5_353 || data == ECHO {
            return Vec::new();
        }
        let answer = match message {
            Some(message) => Message { kind: Kind::Answer, ..message }.bytes(64),
            // An echo, also of what belongs together only by mistake.
            None if has_secret(data) => data[..data.len().min(1_000)].to_vec(),
            None => ECHO.to_vec(),
        };
        vec![Parcel::udp(ends.0, ends.1, answer)]
    }

    /// An ICMP error. A client believes it if it quotes something that the client has just sent: the sequence number of
    /// a segment, or the checksum of a datagram.
    fn error(&mut self, headers: &Headers, bytes: &[u8]) -> Vec<Parcel> {
        let is_v4 = headers.family == Family::Ipv4;
        let header = if is_v4 { 20 } else { 40 };
        let Some(quoted) = bytes.get(8..).filter(|quoted| quoted.len() >= header + 8) else { return Vec::new() };
        let (protocol, from, to) = if is_v4 { (quoted[9], 12, 16) } else { (quoted[6], 8, 24) };
        let addr = |at: usize| -> Addr {
            let octets = &quoted[at..at + if is_v4 { 4 } else { 16 }];
            match <[u8; 4]>::try_from(octets) {
                Ok(v4) => Addr::from(std::net::IpAddr::from(v4)),
                Err(_) => Addr::from_octets(octets.try_into().unwrap()),
            }
        };
        let port = |at: usize| u16::from_be_bytes([quoted[header + at], quoted[header + at + 1]]);
        let ends = (Endpoint::new(addr(from), port(0)), Endpoint::new(addr(to), port(2)));
        let seq = u32::from(port(4)) << 16 | u32::from(port(6));
        let is_too_big = (bytes[0], bytes[1]) == if is_v4 { (3, 4) } else { (2, 0) };
        if protocol == TCP_NUMBER && is_too_big {
            let mtu = usize::from(u16::from_be_bytes([bytes[6], bytes[7]]));
            let Some(socket) = self.sockets.get_mut(&ends) else { return Vec::new() };
            let again = socket.too_big(seq, mtu, header + 20);
            return again.into_iter().map(|segment| Parcel::between(ends.0, ends.1, segment)).collect();
        }
        // What makes the next call of a connected socket of Linux fail. A link of the node has the MTU that it says to anyone
        // who sends more.
        let is_true = is_too_big && u16::from_be_bytes([bytes[6], bytes[7]]) > MOST_FALSE_MTU;
        let is_fatal = match (is_v4, bytes[0], bytes[1]) {
            (true, 3, code) => !is_true && !matches!(code, 0 | 1 | 5 | 11 | 12),
            (true, kind, _) => kind == 12,
            (false, 1, code) => !matches!(code, 0 | 2 | 3),
            (false, kind, _) => !is_true && matches!(kind, 2 | 4),
        };
        if protocol == UDP_NUMBER && is_fatal && self.role == Role::Clients {
            self.refused(ends, port(6), headers.source);
        }
        Vec::new()
    }

    /// Records the refusal of the request that has this checksum, as long as the client waits for it. It believes the address
    /// that it has asked in any case, unless nodelb itself refuses there what strangers send.
    fn refused(&mut self, ends: Ends, sum: u16, by: Addr) {
        let Some(label) = self.questions.get(&ends).copied() else { return };
        let is_own = |parcel: &Parcel| {
            let transport = parcel.transport();
            u16::from_be_bytes([transport[6], transport[7]]) == sum
        };
        let question = |length| {
            let data = Message { label, number: label.connection, kind: Kind::Question }.bytes(length);
            Parcel { source: ends.0, target: ends.1, content: Content::Udp { data, has_sum: true } }
        };
        let has_backend = User::of(label.user).numbers.1 != 0;
        if (has_backend && by == ends.1.addr) || is_own(&question(crate::honest::SHORT)) {
            self.seen.push(Seen { label, is_client: true, event: Event::Refused });
        }
    }
}

/// The answer to a segment that belongs to no socket.
fn refuse(ends: Ends, segment: &Segment) -> Vec<Parcel> {
    if segment.flags & RST != 0 {
        return Vec::new();
    }
    let reset = if segment.flags & ACK != 0 {
        Segment { flags: RST, seq: segment.ack, ..Segment::default() }
    } else {
        let length = u32::try_from(segment.data.len()).unwrap() + u32::from(segment.flags & SYN != 0);
        Segment { flags: RST | ACK, ack: segment.seq.wrapping_add(length), ..Segment::default() }
    };
    vec![Parcel::between(ends.0, ends.1, reset)]
}

//! The network of a sequence: a node with its packet programs, the clients and strangers outside, pods on the node, and
//! pods on another node.

use std::collections::VecDeque;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_programs::headers::tcp_flags::{ACK, FIN, RST, SYN};
use nodelb_programs::headers::{Content as Parsed, Headers, Parsed as Read, parse};
use nodelb_programs::key::{Endpoint, Side};
use nodelb_programs::node::{Packet, Reason, Route, RouteQuery, Routes as _, Summed, Verdict};

use crate::case;
use crate::direct::{self, Tunnels};
use crate::honest::{USERS, User, endpoint};
use crate::print;
use crate::stack::{Role, Stack};
use crate::wire::{self, Content, Parcel, Segment};
use crate::world::World;

/// What the packet programs do with a packet.
#[derive(Debug)]
pub(crate) struct Ruled {
    pub(crate) verdict: Verdict,
    pub(crate) bytes: Vec<u8>,
    pub(crate) reason: Option<Reason>,
    /// The machine that gets a packet of a service with direct return.
    pub(crate) backend: Option<Addr>,
}

/// The packet programs with their tables: the pure function, or the programs themselves.
pub(crate) trait Programs {
    /// Decides what is done with a packet.
    fn rule(&mut self, world: &World, packet: &Packet) -> Ruled;
    /// Deletes the connections that are due.
    fn sweep(&mut self, world: &World);
    /// Whether they see what connection tracking knows of a packet.
    fn sees_tracking(&self) -> bool;
    /// The content of the world has changed.
    fn change(&mut self, world: &World);
    /// This number of milliseconds has passed.
    fn pass(&mut self, millis: u64);
}

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It arrives at a device of the node.
    Device(&'static str),
    /// An honest client has sent it, and it arrives at the device that leads to the clients.
    Client,
    /// A pod of the node has sent it.
    Pod,
    /// An honest process of the node has sent it.
    Node,
    /// A backend on another machine has sent it with the address of the service. It does not pass the node.
    Past,
}

/// Trips of packets through the node until the network counts as busy for ever.
const MOST_ROUNDS: usize = 200;

/// Bytes of a packet that an ICMP error about it contains.
const QUOTED: usize = 548;

/// A VLAN tag that is only a priority, and the client with such tags in all its frames.
const PRIORITY: u16 = 5 << 13;
const WITH_PRIORITY: [u8; 4] = [198, 51, 100, 8];

fn has_priority(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 0]) && frame.get(26..30) == Some(&WITH_PRIORITY)
}

/// Whether a user that is masqueraded has sent the packet.
fn is_of_masqueraded(frame: &[u8]) -> bool {
    let Read::Packet(headers) = parse(frame, 14, false) else { return false };
    let Parsed::Transport(_, ports) = headers.content else { return false };
    let from = Endpoint::new(headers.source, ports.source);
    USERS.iter().any(|user| user.is_masqueraded && endpoint(user.client) == from)
}

pub(crate) struct Lab<'a> {
    pub(crate) programs: &'a mut dyn Programs,
    pub(crate) world: World,
    pub(crate) clients: Stack,
    pub(crate) guests: Stack,
    pub(crate) backends: Stack,
    flights: VecDeque<(At, Vec<u8>)>,
    tunnels: Tunnels,
    /// TCP packets of honest clients to their services that the network stack gets, which has no way for them but back.
    pub(crate) sent_back: Vec<String>,
    /// Packets for the address of a service that the node sends back to the router, which sends them here again: as they
    /// came, or from another service.
    pub(crate) circling: Vec<String>,
    /// The text of each packet that met the node, if it is wanted.
    pub(crate) trace: Option<Vec<String>>,
}

/// The node: that of the cases, with a second uplink, and services that have the backends of others.
pub(crate) fn world() -> World {
    let worlds = include_str!("../packet_programs/fixtures/worlds");
    let text = format!("{worlds}\n{}\ncase sequence\n  world strangers", include_str!("world"));
    let case = case::cases(&text).remove(0);
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    world
}

/// A part of the network: how its addresses of each family begin.
type Part = (&'static [u8], &'static [u8]);

const LOCAL: Part = (&[10, 0, 1], &[0x20, 1, 0xd, 0xb8, 0x10, 1]);
const REMOTE: Part = (&[10, 0, 2], &[0x20, 1, 0xd, 0xb8, 0x10, 2]);
const CLIENTS: Part = (&[198, 51, 100], &[0x20, 1, 0xd, 0xb8, 0, 0xc]);
const GUESTS: Part = (&[12], &[0xff]);
const STRANGERS: Part = (&[11], &[0x20, 1, 0xd, 0xb8, 0xb, 0xad]);

fn is_in(addr: Addr, (v4, v6): Part) -> bool {
    let octets = addr.octets();
    match addr.family() {
        Family::Ipv4 => octets[12..].starts_with(v4),
        Family::Ipv6 => octets.starts_with(v6),
    }
}

impl<'a> Lab<'a> {
    pub(crate) fn new(programs: &'a mut dyn Programs, world: World) -> Self {
        let (clients, guests) = (Stack::new(Role::Clients), Stack::new(Role::Guests));
        let backends = Stack::new(Role::Backends);
        Self {
            programs,
            world,
            clients,
            guests,
            backends,
            flights: VecDeque::new(),
            tunnels: Tunnels::default(),
            sent_back: Vec::new(),
            circling: Vec::new(),
            trace: None,
        }
    }

    /// A packet of a client or a stranger arrives by the device.
    pub(crate) fn arrive(&mut self, device: &'static str, packet: &[u8]) {
        let frame = wire::frame(self.world.devices[device].mac, packet);
        self.flights.push_back((At::Device(device), frame));
    }

    /// A packet of an honest client arrives.
    pub(crate) fn send_from_client(&mut self, packet: &[u8]) {
        let frame = wire::frame(self.world.devices["eth0"].mac, packet);
        self.flights.push_back((At::Client, frame));
    }

    /// A process of the node sends a packet.
    pub(crate) fn send_from_node(&mut self, packet: &[u8]) {
        self.flights.push_back((At::Node, wire::frame([2, 0, 0, 0, 0, 1], packet)));
    }

    /// A backend sends a packet. From another machine, the way to a client does not lead through the node.
    pub(crate) fn send_from_backend(&mut self, packet: &[u8]) {
        let frame = wire::frame([2, 0, 0, 0, 0, 1], packet);
        let Read::Packet(headers) = parse(&frame, 14, false) else { return };
        if let Some(frame) = direct::with_service(&frame, &headers) {
            self.flights.push_back((At::Past, frame));
        } else if is_in(headers.source, LOCAL) {
            self.flights.push_back((At::Pod, frame));
        } else if is_in(headers.target, CLIENTS) {
            self.flights.push_back((At::Past, frame));
        } else {
            self.arrive("eth1", packet);
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }

    /// Every packet that is on its way goes on to its receiver, which may answer.
    pub(crate) fn round(&mut self) {
        for (at, frame) in std::mem::take(&mut self.flights) {
            self.go(at, frame);
        }
    }

    fn go(&mut self, at: At, frame: Vec<u8>) {
        match at {
            At::Device(device) => self.by_wire(device, frame),
            At::Client => self.by_client(frame),
            At::Pod => self.route(frame, self.world.devices["veth1"].ifindex),
            At::Node => self.by_node(frame),
            At::Past => self.deliver(&frame),
        }
    }

    /// What a process of the node sends, with its answer: until that comes, conntrack keeps the port from the programs.
    fn by_node(&mut self, frame: Vec<u8>) {
        let others = std::mem::take(&mut self.flights);
        self.route(frame, 0);
        for (at, frame) in std::mem::replace(&mut self.flights, others) {
            self.go(at, frame);
        }
    }

    /// [`Self::round`] until no packet is on its way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if self.flights.is_empty() {
                return;
            }
            self.round();
        }
        let frames: Vec<String> = self.flights.iter().map(|(_, frame)| print::packet(&frame[14..])).collect();
        panic!("packets go round for ever: {frames:#?}");
    }

    /// What the programs at the device do with the frame, which came by another one before; 0: the node itself has sent it.
    fn rule(&mut self, device: &str, side: Side, (frame, came_by): (Vec<u8>, u32)) -> Ruled {
        let own = &self.world.devices[device];
        let is_masqueraded = side == Side::Leaving && is_of_masqueraded(&frame);
        let vlan_tag = (side == Side::Arriving && has_priority(&frame)).then_some(PRIORITY);
        let packet = Packet {
            bytes: frame,
            ifindex: own.ifindex,
            came_by: if is_masqueraded { self.world.devices["veth1"].ifindex } else { came_by },
            hook: own.hook(side),
            l2_length: own.l2_length,
            is_for_host: true,
            vlan_tag,
            is_gso: false,
            is_tracked_request: is_masqueraded,
            linear: None,
            summed: Summed::None,
        };
        let ruled = self.programs.rule(&self.world, &packet);
        if let Some(trace) = &mut self.trace {
            let seconds = self.world.now_ns / 1_000_000 % 1_000_000;
            let word = if side == Side::Arriving { "in" } else { "out" };
            let before = print::packet(&packet.bytes[14..]);
            let after = if packet.bytes == ruled.bytes { String::new() } else { print::packet(&ruled.bytes[14..]) };
            let reason = ruled.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            trace.push(format!("{seconds} {word} {device} {before}\n    => {:?}{reason} {after}", ruled.verdict));
        }
        ruled
    }

    fn by_client(&mut self, frame: Vec<u8>) {
        if let Some(frame) = self.tunnels.wrapped(&self.world, &frame) {
            return self.by_wire("eth1", frame);
        }
        let ruled = self.rule("eth0", Side::Arriving, (frame, 0));
        if ruled.verdict == Verdict::Next
            && let Read::Packet(headers) = parse(&ruled.bytes, 14, false)
            && let Parsed::Transport(Protocol::Tcp, ports) = headers.content
            && !self.world.state.node_addrs.contains(&headers.target)
            && USERS.iter().any(|user| endpoint(user.service) == Endpoint::new(headers.target, ports.target))
        {
            self.sent_back.push(print::packet(&ruled.bytes[14..]));
        }
        self.go_on("eth0", ruled);
    }

    fn by_wire(&mut self, device: &'static str, frame: Vec<u8>) {
        let ruled = self.rule(device, Side::Arriving, (frame, 0));
        self.go_on(device, ruled);
    }

    /// The packet that has arrived by the device goes where the programs send it.
    fn go_on(&mut self, device: &'static str, Ruled { verdict, bytes, backend, .. }: Ruled) {
        let ifindex = self.world.devices[device].ifindex;
        match verdict {
            Verdict::Redirect { .. } if backend.is_some() => backend.into_iter().for_each(|to| self.reach(to, &bytes)),
            // The router sends it here again. A pod has sent it for the first time.
            Verdict::Next if self.leads_to_router(ifindex, &bytes) => match self.world.devices[device].is_pod {
                true => self.arrive("eth0", &bytes[14..]),
                false => self.circling.push(print::packet(&bytes[14..])),
            },
            Verdict::Next => self.route(bytes, ifindex),
            Verdict::Drop => {}
            Verdict::Redirect { ifindex, .. } => self.leave(ifindex, &bytes),
            Verdict::Reply => self.leave(ifindex, &bytes),
        }
    }

    /// The network stack of the node has the packet, which came by this device; 0: the node itself has sent it.
    fn route(&mut self, frame: Vec<u8>, came_by: u32) {
        let Read::Packet(headers) = parse(&frame, 14, false) else { return };
        let is_own = |addr: &Addr| self.world.state.node_addrs.contains(addr);
        // The node takes no packet from a wire with its own address.
        if came_by != 0 && is_own(&headers.source) {
            return;
        }
        if is_own(&headers.target) {
            if USERS.iter().any(|user| user.is_of_node && self.is_answer_to(user, &headers)) {
                drop(self.clients.receive(&frame, self.world.now_ns));
            } else {
                self.own(&headers);
            }
            return;
        }
        let by = self.world.devices["veth1"].ifindex;
        let query = RouteQuery { ifindex: by, source: headers.source, target: headers.target };
        let Route::Device { ifindex, mtu, .. } = self.world.route(&query) else { return };
        let name = self.world.name_of(ifindex).to_owned();
        if frame.len() - 14 > usize::try_from(mtu).unwrap() {
            return self.too_big(&headers, &frame[14..], (&name, mtu));
        }
        let device = &self.world.devices[&name];
        if !device.is_uplink && !device.is_pod {
            return self.deliver(&frame);
        }
        if device.l2_length != 14 {
            return;
        }
        let Ruled { verdict, bytes, .. } = self.rule(&name, Side::Leaving, (frame, came_by));
        match verdict {
            Verdict::Next => self.leave(ifindex, &bytes),
            Verdict::Redirect { ifindex, .. } => self.leave(ifindex, &bytes),
            Verdict::Drop | Verdict::Reply => {}
        }
    }

    /// The stack of the node tells the sender of the packet that it does not fit this device.
    fn too_big(&mut self, headers: &Headers, packet: &[u8], (device, mtu): (&str, u32)) {
        let is_same = |addr: &&Addr| addr.family() == headers.family;
        let Some(own) = self.world.devices[device].addrs.iter().find(is_same) else { return };
        let quoted = packet[..packet.len().min(QUOTED)].to_vec();
        let kind = if headers.family == Family::Ipv4 { (3, 4) } else { (2, 0) };
        let content = Content::Error { kind, mtu: mtu.try_into().unwrap(), quoted };
        let error = Parcel { source: Endpoint::new(*own, 0), target: Endpoint::new(headers.source, 0), content };
        self.route(wire::frame([2, 0, 0, 0, 0, 1], &error.packet()), 0);
    }

    /// Whether the packet is from what the user asks, to the user's own address.
    fn is_answer_to(&self, user: &User, headers: &Headers) -> bool {
        let Parsed::Transport(protocol, ports) = headers.content else { return false };
        let (to, from) = (Endpoint::new(headers.target, ports.target), Endpoint::new(headers.source, ports.source));
        user.is_tcp == (protocol == Protocol::Tcp) && (to, from) == (endpoint(user.client), endpoint(user.service))
    }

    /// A packet to the node itself that no process has a socket for.
    fn own(&mut self, headers: &Headers) {
        let Parsed::Transport(_, ports) = headers.content else { return };
        let is_tcp = ports.tcp_flags & (SYN | ACK | FIN) != 0;
        if !is_tcp || ports.tcp_flags & RST != 0 {
            return;
        }
        let (flags, seq) = if ports.tcp_flags & ACK != 0 { (RST, ports.acknowledgment) } else { (RST | ACK, 0) };
        let length =
            u32::try_from(headers.end - headers.transport - 20).unwrap() + u32::from(ports.tcp_flags & SYN != 0);
        let ack = if flags == RST { 0 } else { ports.sequence.wrapping_add(length) };
        let from = Endpoint::new(headers.target, ports.target);
        let to = Endpoint::new(headers.source, ports.source);
        let reset = Parcel::between(from, to, Segment { flags, seq, ack, data: Vec::new() });
        self.route(wire::frame([2, 0, 0, 0, 0, 1], &reset.packet()), 0);
    }

    /// The frame leaves by the device.
    fn leave(&mut self, ifindex: u32, frame: &[u8]) {
        if self.is_between_services(frame) {
            self.circling.push(print::packet(&frame[14..]));
        }
        match self.world.name_of(ifindex) {
            // No client is reached by the second uplink.
            "eth0" | "eth1" => self.deliver(frame),
            _ => {}
        }
    }

    /// Whether the stack routes the packet, which may be malformed, to the router although it is for the address of a service.
    fn leads_to_router(&self, ifindex: u32, frame: &[u8]) -> bool {
        let Some((source, target)) = wire::addresses(frame) else { return false };
        // The stack drops what comes from such an address, or from one of its own.
        let is_refused = source.family() == Family::Ipv4 && matches!(source.octets()[12], 0 | 127 | 224..);
        if is_refused || self.world.state.node_addrs.contains(&source) {
            return false;
        }
        let is_of_service = self.world.state.outside.keys().any(|own| own.addr == target);
        is_of_service
            && match self.world.route(&RouteQuery { ifindex, source, target }) {
                Route::Device { ifindex, .. } => self.world.state.uplinks.contains_key(&ifindex),
                _ => false,
            }
    }

    fn is_between_services(&self, frame: &[u8]) -> bool {
        let Read::Packet(Headers { source, target, content: Parsed::Transport(protocol, ports), .. }) =
            parse(frame, 14, false)
        else {
            return false;
        };
        let is_served = |addr, port| self.world.state.outside.contains_key(&L4Addr { addr, port, protocol });
        is_served(source, ports.source) && is_served(target, ports.target)
    }

    /// The backend on another machine gets the frame, which is for the address of its service.
    fn reach(&mut self, backend: Addr, frame: &[u8]) {
        let Some(frame) = direct::at_backend(backend, frame) else { return };
        let answers = self.backends.receive(&frame, self.world.now_ns);
        answers.iter().for_each(|parcel| self.send_from_backend(&parcel.packet()));
    }

    /// The receiver of the frame gets it, and answers.
    fn deliver(&mut self, frame: &[u8]) {
        let Read::Packet(headers) = parse(frame, 14, false) else { return };
        let now = self.world.now_ns;
        if is_in(headers.target, CLIENTS) {
            let answers = self.clients.receive(frame, now);
            answers.iter().for_each(|parcel| self.send_from_client(&parcel.packet()));
        } else if is_in(headers.target, GUESTS) {
            let answers = self.guests.receive(frame, now);
            answers.iter().for_each(|parcel| self.arrive("eth0", &parcel.packet()));
        } else if is_in(headers.target, LOCAL) || is_in(headers.target, REMOTE) {
            let answers = self.backends.receive(frame, now);
            answers.iter().for_each(|parcel| self.send_from_backend(&parcel.packet()));
        } else if is_in(headers.target, STRANGERS) {
            // They have no network stack.
            self.guests.overhear(frame, &headers);
        }
    }
}

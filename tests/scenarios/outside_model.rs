//! Clients outside the node: the frames that arrive, what the packet programs of `nodelb_programs` do with them, and whether
//! `report::explain` agrees. The network is the one of `netns/lab.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::uplink::{Uplink, UplinkEntry};
use nodelb_core::packets::admission::Refusal;
use nodelb_core::state::entries::{MapState, ServiceId};
use nodelb_core::trace::{Verdict as Traced, is_of_service_outside, trace, trace_outside};
use nodelb_programs::headers::{Content, ETHERNET, Parsed, parse, tcp_flags};
use nodelb_programs::key::Side;
use nodelb_programs::node::{Packet, Summed, Verdict};
use nodelb_programs::programs::{Load, Programs};

use crate::frame::described;
use crate::world::World;

/// The number of connections that find the backends of an address.
const CONNECTIONS: u16 = 48;

/// The first port of a client; ports above are those of real sockets.
const FIRST_PORT: u16 = 1_024;
const LAST_PORT: u16 = 29_000;

/// The devices that packets may be redirected to.
const DEVICES_WITH_PROGRAMS: [&str; 2] = ["uplink", "pod-a1"];

/// Changes the bytes of a packet; `None` if it is dropped.
pub(crate) type Run<'a> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>, String> + 'a;

/// A client that nodelb serves by packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// A client behind a router.
    Outside,
    /// The second node of the cluster.
    OtherNode,
    /// A pod on the node with its own kernel.
    Vm,
}

impl Machine {
    pub(crate) const OUTSIDE: &'static str = "outside";
    pub(crate) const OTHER_NODE: &'static str = "other-node";
    pub(crate) const VM: &'static str = "vm";

    /// The device of the node where its packets arrive.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Outside | Self::OtherNode => "uplink",
            Self::Vm => "pod-a1",
        }
    }

    /// Its address.
    fn addr(self, family: Family) -> Addr {
        let text = match (self, family) {
            (Self::Outside, Family::Ipv4) => "203.0.113.10",
            (Self::Outside, Family::Ipv6) => "2001:db8:2::10",
            (Self::OtherNode, Family::Ipv4) => "203.0.113.18",
            (Self::OtherNode, Family::Ipv6) => "2001:db8:3::2",
            (Self::Vm, Family::Ipv4) => "203.0.113.34",
            (Self::Vm, Family::Ipv6) => "2001:db8:a1::2",
        };
        text.parse().expect("an address")
    }
}

/// Connections of a machine to an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) to: L4Addr,
    pub(crate) machine: Machine,
    /// The port of the first connection.
    first_port: u16,
}

/// A packet of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) to: L4Addr,
    from: Addr,
    port: u16,
    /// Whether the packet is the first one of a connection.
    pub(crate) is_first: bool,
}

impl Frame {
    /// The bytes, for a device with this Ethernet address.
    pub(crate) fn bytes(&self, mac: [u8; 6]) -> Vec<u8> {
        let [from, to] =
            [(self.from, self.port), (self.to.addr, self.to.port)].map(|(addr, port)| SocketAddr::new(addr.ip(), port));
        let content = match (self.to.protocol, self.is_first) {
            (Protocol::Tcp, true) => "tcp SYN",
            (Protocol::Tcp, false) => "tcp ACK data 4",
            (Protocol::Udp, _) => "udp data 4",
            (Protocol::Sctp, _) => "sctp",
        };
        described(&format!("{from} > {to} {content}")).frame(Some(mac))
    }

    /// What the client experiences if the packet becomes these bytes; `None` if it is dropped.
    fn meets(&self, sent: &[u8], became: Option<&[u8]>) -> Result<Met, String> {
        let Some(became) = became else { return Ok(Met::Silence) };
        if became == sent {
            return Ok(Met::PassesThrough);
        }
        let Parsed::Packet(headers) = parse(became, ETHERNET, false) else {
            return Err(format!("a frame that cannot be read: {became:?}"));
        };
        let is_to_client = headers.target == self.from;
        match headers.content {
            // A pod that reaches itself also gets packets at the port of a backend.
            Content::Transport(_, ports) if is_to_client && ports.target == self.port => {
                if ports.tcp_flags & tcp_flags::RST == 0 {
                    Err("an answer without RST".into())
                } else {
                    Ok(Met::Refused)
                }
            }
            Content::Transport(protocol, ports) => {
                let backend = L4Addr::new(headers.target, ports.target, protocol);
                Ok(Met::Reaches(BTreeSet::from([(backend, headers.source)])))
            }
            Content::IcmpError if is_to_client && is_port_unreachable(&became[headers.transport..], headers.family) => {
                Ok(Met::Refused)
            }
            other => Err(format!("an unexpected packet: {other:?} from {}", headers.source)),
        }
    }
}

/// Whether the address is a service's, and none of the node; see [`ROUTES`].
fn is_only_nodelbs(state: &MapState, addr: Addr) -> bool {
    let is_here = ["203.0.113.2", "203.0.113.3", "2001:db8:1::2", "2001:db8:1::3"].contains(&addr.to_string().as_str());
    !is_here && is_of_service_outside(state, addr)
}

/// Whether these bytes are the ICMP error "port unreachable" of the family.
fn is_port_unreachable(icmp: &[u8], family: Family) -> bool {
    match family {
        Family::Ipv4 => icmp.starts_with(&[3, 3]),
        Family::Ipv6 => icmp.starts_with(&[1, 4]),
    }
}

/// What clients outside the node experience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Connections reach all of these backends, which see these addresses.
    Reaches(BTreeSet<(L4Addr, Addr)>),
    /// Session affinity: all connections reach one of these backends, always the same one unless the client pauses for
    /// `seconds`.
    Keeps { service: ServiceId, seconds: u32, one_of: BTreeSet<(L4Addr, Addr)> },
    /// Connections are refused, by RST or ICMP.
    Refused,
    /// Packets are not answered.
    Silence,
    /// nodelb does not translate the packets.
    PassesThrough,
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &BTreeSet<(L4Addr, Addr)>| {
            all.iter().map(|(backend, seen)| format!("{backend} as {seen}")).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Reaches(all) => write!(f, "reaches {}", list(all)),
            Self::Keeps { one_of, .. } => write!(f, "keeps one of {}", list(one_of)),
            Self::Refused => f.write_str("is refused"),
            Self::Silence => f.write_str("gets no answer"),
            Self::PassesThrough => f.write_str("passes through"),
        }
    }
}

/// What `report::explain` returns: the backends that are possible, or the outcome without any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidates {
    Backends(BTreeSet<L4Addr>),
    Without(Met),
}

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backends(all) => {
                write!(f, "reaches {}", all.iter().map(L4Addr::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::Without(met) => met.fmt(f),
        }
    }
}

impl Met {
    /// The backends that a client may get.
    pub(crate) fn candidates(state: &MapState, range: &RangeInclusive<u16>, attempt: &Attempt) -> Candidates {
        let client = attempt.machine.addr(attempt.to.addr.family());
        let is_vm = attempt.machine == Machine::Vm;
        let verdict =
            if is_vm { trace(state, range, attempt.to) } else { trace_outside(state, range, attempt.to, Some(client)) };
        match verdict {
            Traced::Forwarded(_, slots) => Candidates::Backends(slots.iter().map(|slot| slot.addr).collect()),
            Traced::Refused(_, Refusal::NoBackend) => Candidates::Without(Self::Refused),
            Traced::Refused(_, Refusal::NoLocalBackend | Refusal::NotAdmitted) => Candidates::Without(Self::Silence),
            Traced::PassedThrough if !is_vm && is_only_nodelbs(state, attempt.to.addr) => {
                let is_answered = attempt.to.protocol != Protocol::Sctp;
                Candidates::Without(if is_answered { Self::Refused } else { Self::Silence })
            }
            Traced::PassedThrough => Candidates::Without(Self::PassesThrough),
        }
    }

    /// Whether this is one of the possible outcomes.
    pub(crate) fn fits(&self, candidates: &Candidates) -> bool {
        match (self, candidates) {
            (Self::Reaches(found) | Self::Keeps { one_of: found, .. }, Candidates::Backends(all)) => {
                found.iter().map(|(backend, _)| *backend).collect::<BTreeSet<_>>() == *all
            }
            (met, Candidates::Without(other)) => met == other,
            _ => false,
        }
    }

    /// What the connections of a client experience, by a function that changes the bytes of a packet.
    pub(crate) fn of(attempt: &Attempt, mac: [u8; 6], run: &mut Run<'_>) -> Result<Self, String> {
        let mut all = BTreeSet::new();
        for number in 0..CONNECTIONS {
            match Self::by(&attempt.frame(number), mac, run)? {
                Self::Reaches(one) => all.extend(one),
                other if number == 0 => return Ok(other),
                other => return Err(format!("{other} at connection {number}")),
            }
        }
        Ok(Self::Reaches(all))
    }

    /// What the client experiences that sends this packet.
    pub(crate) fn by(frame: &Frame, mac: [u8; 6], run: &mut Run<'_>) -> Result<Self, String> {
        let sent = frame.bytes(mac);
        frame.meets(&sent, run(&sent)?.as_deref())
    }
}

/// The backends that clients keep, each with the time of the client's last connections.
#[derive(Debug, Default)]
pub(crate) struct Affinities(BTreeMap<(ServiceId, Addr), (L4Addr, Moment)>);

impl Affinities {
    /// Checks that the client keeps its backend, if `expected` requires it.
    pub(crate) fn check(&mut self, attempt: &Attempt, met: Met, expected: &Met, began: Moment) -> Result<Met, String> {
        let (Met::Keeps { service, seconds, one_of }, Met::Reaches(reached)) = (expected, &met) else { return Ok(met) };
        let Some((backend, _)) = reached.first().filter(|one| reached.len() == 1 && one_of.contains(one)) else {
            return Err(format!("{met} although it {expected}"));
        };
        let client = attempt.machine.addr(attempt.to.addr.family());
        let before = self.0.insert((*service, client), (*backend, began));
        if let Some((before, at)) = before
            && one_of.iter().any(|(backend, _)| *backend == before)
            && began.0 < at.0 + u64::from(*seconds) * 1_000
            && before != *backend
        {
            return Err(format!("leaves {before} for {backend}"));
        }
        Ok(expected.clone())
    }
}

impl Attempt {
    fn frame(&self, number: u16) -> Frame {
        let from = self.machine.addr(self.to.addr.family());
        Frame { to: self.to, from, port: self.first_port + number, is_first: true }
    }
}

/// The clients, and what the node remembers of their connections.
pub(crate) struct OutsideModel {
    world: World,
    uplink: u32,
    programs: Programs,
    next_port: u16,
    affinities: Affinities,
    /// The ports of clients that keep their connections.
    talks: BTreeMap<String, u16>,
}

impl OutsideModel {
    /// Clients that reach the node by the device with this index.
    pub(crate) fn new(uplink: u32, always_masquerades: bool) -> Self {
        let mut world = World::new();
        world.settings.always_masquerades = always_masquerades;
        let (near, far) = (uplink + 1, uplink + 2);
        for line in [
            format!("device {uplink} uplink uplink 203.0.113.2 2001:db8:1::2"),
            format!("device {near} pod-a1 pod 203.0.113.33 2001:db8:a1::1"),
            format!("device {far} pod-a2 plain 203.0.113.37 2001:db8:a2::1"),
        ] {
            world.apply(&line);
        }
        for line in ROUTES {
            world.apply(line);
        }
        let programs = Programs::load(Load::new(world.limits), &world.node());
        Self {
            world,
            uplink,
            programs,
            next_port: FIRST_PORT,
            affinities: Affinities::default(),
            talks: BTreeMap::new(),
        }
    }

    /// The device that the clients reach the node by.
    pub(crate) fn uplink(&self) -> Uplink {
        let [v4, v6] = ["203.0.113.2", "2001:db8:1::2"].map(|text| text.parse().ok());
        Uplink {
            ifindex: self.uplink,
            name: "uplink".into(),
            entry: UplinkEntry {
                v4,
                v6,
                mtu: 1_500,
                l2_length: 14,
                is_v4_source: false,
                is_v6_source: false,
                is_strict: false,
            },
        }
    }

    fn take_ports(&mut self, count: u16) -> u16 {
        let first = if self.next_port + count > LAST_PORT { FIRST_PORT } else { self.next_port };
        self.next_port = first + count;
        first
    }

    /// New connections.
    pub(crate) fn attempt(&mut self, to: L4Addr, machine: Machine) -> Attempt {
        Attempt { to, machine, first_port: self.take_ports(CONNECTIONS) }
    }

    /// The next packet of the client with this name, which keeps its connection.
    pub(crate) fn next_packet(&mut self, name: &str, to: L4Addr) -> Frame {
        let known = self.talks.get(name).copied();
        let port = known.unwrap_or_else(|| self.take_ports(1));
        self.talks.insert(name.to_owned(), port);
        let from = Machine::Outside.addr(to.addr.family());
        Frame { to, from, port, is_first: known.is_none() }
    }

    fn mac(&self, machine: Machine) -> [u8; 6] {
        self.world.devices[machine.device()].mac
    }

    /// What new connections experience with these maps.
    pub(crate) fn connect(
        &mut self,
        state: &MapState,
        range: &RangeInclusive<u16>,
        now: Moment,
        attempt: &Attempt,
    ) -> Result<Met, String> {
        let client = attempt.machine.addr(attempt.to.addr.family());
        let Traced::Forwarded(service, _) = trace_outside(state, range, attempt.to, Some(client)) else {
            return self.try_all(state, now, attempt);
        };
        let seconds = state.services[&service].affinity_seconds;
        if seconds == 0 {
            return self.try_all(state, now, attempt);
        }
        self.programs.save();
        let mut without = state.clone();
        Arc::make_mut(without.services.get_mut(&service).expect("traced")).affinity_seconds = 0;
        let Met::Reaches(one_of) = self.try_all(&without, now, attempt)? else { return Err("not forwarded".into()) };
        self.programs.restore();
        let (kept, met) = (Met::Keeps { service, seconds, one_of }, self.try_all(state, now, attempt)?);
        self.affinities.check(attempt, met, &kept, now)
    }

    fn try_all(&mut self, state: &MapState, now: Moment, attempt: &Attempt) -> Result<Met, String> {
        let mac = self.mac(attempt.machine);
        Met::of(attempt, mac, &mut |sent| self.translate(state, now, (attempt.machine, sent)))
    }

    /// What a client that keeps its connection experiences with these maps.
    pub(crate) fn say(&mut self, state: &MapState, now: Moment, frame: &Frame) -> Result<Met, String> {
        let mac = self.mac(Machine::Outside);
        Met::by(frame, mac, &mut |sent| self.translate(state, now, (Machine::Outside, sent)))
    }

    fn translate(
        &mut self,
        state: &MapState,
        now: Moment,
        (machine, sent): (Machine, &[u8]),
    ) -> Result<Option<Vec<u8>>, String> {
        self.world.state = state.clone();
        self.world.now_ns = 1_000_000_000_000 + now.0 * 1_000_000;
        let device = &self.world.devices[machine.device()];
        let packet = Packet {
            bytes: sent.to_vec(),
            ifindex: device.ifindex,
            came_by: 0,
            hook: device.hook(Side::Arriving),
            l2_length: ETHERNET,
            is_for_host: true,
            vlan_tag: None,
            is_gso: false,
            is_tracked_request: false,
            linear: None,
            summed: Summed::None,
        };
        self.programs.set(&self.world.node());
        let outcome = self.programs.run(&self.world.node(), &packet);
        if let Verdict::Redirect { ifindex, .. } = outcome.verdict
            && !DEVICES_WITH_PROGRAMS.contains(&self.world.name_of(ifindex))
        {
            return Err(format!("redirected to {}", self.world.name_of(ifindex)));
        }
        Ok((outcome.verdict != Verdict::Drop).then_some(outcome.bytes))
    }
}

/// The routes of the node.
const ROUTES: [&str; 10] = [
    "route 203.0.113.2/31 here",
    "route 2001:db8:1::2/127 here",
    "route 203.0.113.32/30 dev pod-a1",
    "route 203.0.113.36/30 dev pod-a2",
    "route 2001:db8:a1::/64 dev pod-a1",
    "route 2001:db8:a2::/64 dev pod-a2",
    "route 203.0.113.0/29 dev uplink",
    "route 2001:db8:1::/64 dev uplink",
    "route 0.0.0.0/0 dev uplink neighbor 02:00:00:00:00:aa",
    "route ::/0 dev uplink neighbor 02:00:00:00:00:aa",
];

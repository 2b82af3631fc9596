//! Properties of the packet path over random sequences of packets and changes. `PROPTEST_CASES=1000 cargo test -p
//! nodelb-programs --test packet_properties` runs more sequences.

#[cfg(test)]
#[expect(dead_code, reason = "the cases of a property have no names")]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_fixtures/print.rs"]
mod print;
#[cfg(test)]
#[path = "packet_fixtures/steps.rs"]
mod steps;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
mod world;

use std::sync::Arc;

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::state::entries::ServiceEntry;
use nodelb_programs::connections::{Connection, Tables, is_plain_syn};
use nodelb_programs::headers::{Content, Headers};
use nodelb_programs::key::{Hook, PacketKey};
use nodelb_programs::node::{Packet, Reason, Summed, Verdict};
use nodelb_programs::programs::{Load, Outcome, Programs};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::steps::{Step, headers, packet, policies, step, tuple, turned};
use crate::world::World;

fn cases(cases: u32) -> Config {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config { failure_persistence: None, ..Config::default() };
    let config = match std::env::var_os("PROPTEST_MAX_SHRINK_ITERS") {
        Some(_) => config,
        None => Config { max_shrink_iters: 4_096, ..config },
    };
    if is_set { config } else { Config { cases, ..config } }
}

/// A node, and what its programs remember.
struct Node {
    world: World,
    programs: Programs,
    tables: Tables,
}

impl Node {
    fn new(world: World) -> Self {
        Self::with(world, |_| {})
    }

    /// A node with other random numbers.
    fn with_random(world: World, random: u32) -> Self {
        Self::with(world, |load| load.random = random)
    }

    fn with(world: World, change: impl FnOnce(&mut Load)) -> Self {
        let mut load = Load::new(world.limits);
        change(&mut load);
        let mut programs = Programs::load(load, &world.node());
        let tables = programs.tables();
        Self { world, programs, tables }
    }

    /// The packet of the step; otherwise the node changes.
    fn step(&mut self, step: &Step) -> Option<Packet> {
        let packet = packet(&mut self.world, step);
        self.programs.set(&self.world.node());
        packet
    }

    /// The same for a node with services that have no direct return.
    fn step_without_direct_return(&mut self, step: &Step) -> Option<Packet> {
        let packet = packet(&mut self.world, step);
        let translated = |entry: &ServiceEntry| ServiceEntry { forward: Forward::Translate, ..entry.clone() };
        let services = self.world.state.services.iter().map(|(id, entry)| (*id, Arc::new(translated(entry))));
        self.world.state.services = services.collect();
        self.programs.set(&self.world.node());
        packet
    }

    fn handle(&mut self, packet: &Packet) -> Outcome {
        let outcome = self.programs.run(&self.world.node(), packet);
        self.tables = self.programs.tables();
        outcome
    }
}

/// Whether the view of the entry has its backend.
fn is_in_view(world: &World, entry: &Connection) -> bool {
    world.state.services.get(&entry.service).is_some_and(|service| {
        let view = if entry.flags.is_local_view { &service.local } else { &service.cluster };
        view.iter().any(|slot| slot.backend == entry.backend)
    })
}

/// The text of the packet without its link-layer header and its time to live.
fn text(bytes: &[u8], packet: &Packet) -> String {
    print::packet(&bytes[packet.l2_length..])
}

fn is_translated(packet: &Packet, outcome: &Outcome) -> bool {
    match outcome.verdict {
        Verdict::Next => outcome.bytes != packet.bytes,
        Verdict::Redirect { .. } => true,
        Verdict::Drop | Verdict::Reply => false,
    }
}

/// Whether the tunnel leads to a backend of the service of the packet in it.
fn is_of_backend(node: &Node, packet: &Packet, outer: &Headers) -> bool {
    let bytes = [&packet.bytes[..outer.ip], &packet.bytes[outer.transport..]].concat();
    let Some((protocol, ends, _)) = headers(&bytes, packet).and_then(|inner| tuple(&inner)) else { return true };
    let to = L4Addr::new(ends.target.addr, ends.target.port, protocol);
    let service = node.world.node().frontend(packet.hook, to).and_then(|it| node.world.state.services.get(&it.service));
    service.is_some_and(|service| service.cluster.iter().any(|slot| slot.addr.addr == outer.target))
}

/// What has left its tunnel stays on this node, and what leads to no backend is left to the owner of the tunnel.
fn check_unwrapped(node: &Node, before: &Tables, packet: &Packet, outcome: &Outcome) -> Result<(), TestCaseError> {
    let Some(outer) = headers(&packet.bytes, packet).filter(|outer| matches!(outer.content, Content::Tunnel(_))) else {
        return Ok(());
    };
    if outcome.verdict == Verdict::Next && outcome.bytes != packet.bytes {
        let target = headers(&outcome.bytes, packet).expect("the packet in the tunnel").target;
        prop_assert!(node.world.node().stays_here(packet.ifindex, target), "{} is sent on", target);
    }
    if let Verdict::Redirect { ifindex, .. } = outcome.verdict {
        prop_assert!(!node.world.state.uplinks.contains_key(&ifindex), "sent on by device {}", ifindex);
    }
    let is_end = |entry: &Connection| entry.to.target.addr == outer.target;
    let is_known = before.connections.values().chain(before.half_open.values()).any(is_end);
    if !is_known && !is_of_backend(node, packet, &outer) {
        prop_assert_eq!((outcome.verdict, &outcome.bytes, outcome.reason), (Verdict::Next, &packet.bytes, None));
    }
    Ok(())
}

/// A packet that no service can get goes on as it came, unless only nodelb may have its target: then it is dropped with a
/// reason. It leaves no trace.
fn check_left(
    node: &Node,
    before: &Tables,
    (packet, may_be_owned): (&Packet, bool),
    outcome: &Outcome,
) -> Result<(), TestCaseError> {
    if outcome.verdict != Verdict::Next {
        prop_assert!(may_be_owned);
        prop_assert_eq!((outcome.verdict, outcome.reason.is_some()), (Verdict::Drop, true));
    }
    prop_assert_eq!(&outcome.bytes, &packet.bytes);
    prop_assert_eq!(&node.tables, before);
    Ok(())
}

/// What holds after each packet.
fn check(node: &Node, before: &Tables, packet: &Packet, outcome: &Outcome) -> Result<(), TestCaseError> {
    let Some(headers) = headers(&packet.bytes, packet) else {
        return check_left(node, before, (packet, packet.hook == Hook::In), outcome);
    };
    // The program leaves what is wrong in a tunnel to others.
    let sent = text(&packet.bytes, packet);
    if !sent.contains("wrong") && !sent.contains("unreadable") {
        let after = text(&outcome.bytes, packet);
        prop_assert!(!after.contains("wrong") && !after.contains("unreadable"), "{} of {}", after, sent);
    }
    if outcome.verdict == Verdict::Drop {
        prop_assert!(outcome.reason.is_some());
        prop_assert_eq!(&outcome.bytes, &packet.bytes);
    }
    check_unwrapped(node, before, packet, outcome)?;
    for (key, entry) in &node.tables.connections {
        prop_assert!(node.tables.reverse_of(key, entry).is_some(), "{} has no other entry", key.tuple);
    }
    let Some((protocol, ends, flags)) = tuple(&headers).filter(|_| is_translated(packet, outcome)) else {
        return Ok(());
    };
    let key = PacketKey { tuple: ends, protocol, side: packet.hook.side() };
    let key = node.tables.key_of_arrival(key);
    let entry = node.tables.find(&key).expect("the entry of a translated packet");
    if entry.flags.is_forwarded {
        prop_assert!(node.tables.half_open.contains_key(&key));
        prop_assert!(outcome.backend == Some(entry.to.target.addr));
        let is_new = before.find(&key).is_none();
        prop_assert!(!is_new || is_in_view(&node.world, entry), "{} goes to a backend in no view", key.tuple);
        // The packet is as it came, one hop further.
        let mut wanted = packet.bytes[packet.l2_length..].to_vec();
        let inner = outcome.bytes.len() - wanted.len();
        let mut got = outcome.bytes[inner..].to_vec();
        prop_assert_eq!(outcome.bytes.len() == packet.bytes.len(), !entry.flags.is_tunnelled);
        for packet in [&mut wanted, &mut got] {
            let is_v4 = packet[0] >> 4 == 4;
            packet[if is_v4 { 8 } else { 7 }] = 0;
            packet[10..if is_v4 { 12 } else { 10 }].fill(0);
        }
        prop_assert_eq!(wanted, got);
        return Ok(());
    }
    if !entry.flags.is_reverse {
        // Another connection with the same key for answers would be answered instead.
        prop_assert!(node.tables.reverse_of(&key, entry).is_some(), "answers to {} are another's", key.tuple);
        if protocol == Protocol::Udp || is_plain_syn(flags) || before.find(&key).is_none() {
            prop_assert!(is_in_view(&node.world, entry), "{} goes to a backend in no view", key.tuple);
        }
    }
    Ok(())
}

/// Where the fragment header of an IPv6 packet begins.
fn fragment_header(packet: &[u8]) -> Option<usize> {
    let (mut kind, mut at) = (packet[6], 40);
    while [0, 60].contains(&kind) {
        (kind, at) = (*packet.get(at)?, at + (usize::from(*packet.get(at + 1)?) + 1) * 8);
    }
    (kind == 44 && packet.len() >= at + 8).then_some(at)
}

/// The answer to a translated packet of a client has the ends that the client expects.
fn check_answer(node: &mut Node, packet: &Packet, outcome: &Outcome) -> Result<(), TestCaseError> {
    let Some(answer) = steps::answer(&node.world, packet, outcome) else { return Ok(()) };
    let back = node.handle(&answer);
    if back.verdict == Verdict::Drop || back.verdict == Verdict::Reply {
        let is_limit = matches!(back.reason, Some(Reason::Ttl | Reason::Mtu | Reason::NoRoute | Reason::AnswerRate));
        prop_assert!(is_limit, "{:?}", back.reason);
        return Ok(());
    }
    let seen = headers(&back.bytes, &answer).and_then(|headers| tuple(&headers));
    let sent = headers(&packet.bytes, packet).and_then(|headers| tuple(&headers));
    prop_assert_eq!(seen.map(|(_, ends, _)| ends), sent.map(|(_, ends, _)| ends.turned()));
    // Only the ends, the time to live and the id of a datagram in fragments differ from the answer to the packet itself.
    let mut wanted = turned(&packet.bytes, packet)[packet.l2_length..].to_vec();
    let mut got = back.bytes[answer.l2_length..].to_vec();
    for packet in [&mut wanted, &mut got] {
        let at = if packet[0] >> 4 == 4 { 8 } else { 7 };
        packet[at] = 0;
        if at == 8 {
            packet[4..6].fill(0);
            packet[10..12].fill(0);
        } else if let Some(fragment) = fragment_header(packet) {
            packet[fragment + 4..fragment + 8].fill(0);
        }
    }
    prop_assert_eq!(wanted, got);
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever happens in any order: sums stay right, packets go only to backends in a view, answers are put back,
    /// and no two live connections share the key of their answers.
    #[test]
    fn every_sequence_keeps_the_connections_apart(
        steps in prop::collection::vec(step(), 1..80),
        last_port in prop_oneof![10_000_u16..10_005, Just(10_999)],
    ) {
        let mut world = policies();
        world.settings.source_ports = 10_000..=last_port;
        let mut node = Node::new(world);
        for step in &steps {
            let Some(packet) = node.step(step) else { continue };
            let before = node.tables.clone();
            let outcome = node.handle(&packet);
            check(&node, &before, &packet, &outcome)?;
            let is_client = headers(&packet.bytes, &packet).and_then(|headers| tuple(&headers)).is_some_and(|(protocol, ends, _)| {
                let key = PacketKey { tuple: ends, protocol, side: packet.hook.side() };
                node.tables.find(&node.tables.key_of_arrival(key)).is_some_and(|entry| !entry.flags.is_reverse && !entry.flags.is_forwarded)
            });
            if is_client && is_translated(&packet, &outcome) && matches!(step, Step::Packet { is_answered: true, .. }) {
                check_answer(&mut node, &packet, &outcome)?;
            }
        }
    }

    /// Programs without direct return do the same for services without it, but for tunnels, which they leave to others.
    #[test]
    fn direct_return_changes_nothing_for_other_services(steps in prop::collection::vec(step(), 1..80)) {
        let [mut with, mut without] = [true, false].map(|is_on| Node::with(policies(), |load| load.direct_return = is_on));
        for step in &steps {
            let packets = [&mut with, &mut without].map(|node| node.step_without_direct_return(step));
            if let [Some(packet), Some(_)] = packets {
                if headers(&packet.bytes, &packet).is_some_and(|outer| matches!(outer.content, Content::Tunnel(_))) {
                    prop_assert_eq!(without.handle(&packet).bytes, packet.bytes);
                    continue;
                }
                prop_assert_eq!(with.handle(&packet), without.handle(&packet));
                prop_assert_eq!(&with.tables, &without.tables);
            }
        }
    }

    /// What is no service's is not changed, and leaves no trace.
    #[test]
    fn other_packets_are_not_touched(
        steps in prop::collection::vec(step(), 0..30),
        host in 0_u8..=255,
        port in 1_u16..10_000,
        is_udp: bool,
        is_arriving: bool,
        data in 0_usize..100,
    ) {
        let mut node = Node::new(policies());
        for step in &steps {
            if let Some(packet) = node.step(step) {
                node.handle(&packet);
            }
        }
        let protocol = if is_udp { "udp" } else { "tcp SYN" };
        let side = if is_arriving { "in" } else { "out" };
        let text = format!("{side} eth0 198.18.9.{host}:{port} > 192.0.2.1:{port} {protocol} data {data}");
        let packet = case::packet(&node.world, &text);
        let before = node.tables.clone();
        let outcome = node.handle(&packet);
        prop_assert_eq!(outcome.verdict, Verdict::Next);
        prop_assert_eq!(outcome.bytes, packet.bytes);
        prop_assert_eq!(node.tables, before);
    }

    /// A packet that was cut comes out as it came in, if it comes out, and leaves no trace.
    #[test]
    fn a_cut_packet_is_not_touched(step in step(), cut in any::<prop::sample::Index>()) {
        let mut node = Node::new(policies());
        // Without its padding, a packet is whole.
        let has_padding = matches!(&step, Step::Packet { text, .. } if text.contains("padding"));
        if let Some(mut packet) = node.step(&step).filter(|_| !has_padding) {
            let target = headers(&packet.bytes, &packet).map(|headers| headers.target);
            let is_of_service = node.world.state.outside.keys().any(|frontend| Some(frontend.addr) == target);
            packet.bytes.truncate(cut.index(packet.bytes.len()));
            let before = node.tables.clone();
            let outcome = node.handle(&packet);
            check_left(&node, &before, (&packet, packet.hook == Hook::In && is_of_service), &outcome)?;
        }
    }

    /// Any bytes are handled, also bytes that are nearly a packet.
    #[test]
    fn any_bytes_are_handled(
        step in step(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        l2_length in prop_oneof![Just(0_usize), Just(14)],
    ) {
        let mut node = Node::new(policies());
        let packet = node.step(&step);
        let hook = packet.as_ref().map_or(Hook::In, |packet| packet.hook);
        if let Some(mut packet) = packet {
            for (at, byte) in &flips {
                let at = at.index(packet.bytes.len());
                packet.bytes[at] = *byte;
            }
            let before = node.tables.clone();
            let outcome = node.handle(&packet);
            check(&node, &before, &packet, &outcome)?;
        }
        let packet = Packet { bytes, ifindex: 3, came_by: 0, hook, l2_length, is_for_host: true, vlan_tag: None, is_gso: false, is_tracked_request: false, linear: None, summed: Summed::None };
        let before = node.tables.clone();
        let outcome = node.handle(&packet);
        check(&node, &before, &packet, &outcome)?;
    }

    /// Handshakes never evict an established connection, however many there are.
    #[test]
    fn a_flood_removes_no_established_connection(clients in prop::collection::vec((any::<u32>(), 1_u16..), 1..300)) {
        let mut world = policies();
        world.limits.half_open = 32;
        let mut node = Node::new(world);
        for line in [
            "in eth0 198.51.100.7:40000 > 203.0.113.1:80 tcp SYN",
            "out eth0 10.0.1.5:8080 > 198.51.100.7:40000 tcp SYN,ACK",
            "in eth0 198.51.100.7:40000 > 203.0.113.1:80 tcp ACK ack 1",
            "in eth0 198.51.100.7:40000 > 203.0.113.2:80 tcp SYN",
            "in eth1 10.0.2.5:8080 > 198.18.0.1:10000 tcp SYN,ACK",
            "in eth0 198.51.100.7:40000 > 203.0.113.2:80 tcp ACK ack 1",
        ] {
            node.handle(&case::packet(&node.world, line));
        }
        let before = node.tables.connections.clone();
        prop_assert_eq!(before.len(), 4);
        for (number, (client, port)) in clients.iter().enumerate() {
            let client = std::net::Ipv4Addr::from(*client & 0x00ff_ffff | 0x0b00_0000);
            let target = if number % 2 == 0 { "203.0.113.1:80" } else { "203.0.113.2:80" };
            node.world.now_ns += 10_000_000;
            node.handle(&case::packet(&node.world, &format!("in eth0 {client}:{port} > {target} tcp SYN")));
            prop_assert!(node.tables.half_open.len() <= 32);
        }
        prop_assert_eq!(&node.tables.connections, &before);
    }

    /// All source ports towards one backend are used before a handshake gives way, unless a search is too short for the
    /// range.
    #[test]
    fn every_source_port_is_used(first in 1_024_u16..60_000, count in 1_u16..=64, seed: u32) {
        let mut world = policies();
        world.settings.source_ports = first..=first + count - 1;
        let mut node = Node::with_random(world, seed);
        let mut ports = std::collections::BTreeSet::new();
        for client in 1..=count {
            let line = format!("in eth0 198.51.100.7:{client} > 203.0.113.2:80 tcp SYN");
            let sent = case::packet(&node.world, &line);
            let outcome = node.handle(&sent);
            let is_redirected = matches!(outcome.verdict, Verdict::Redirect { .. });
            prop_assert!(is_redirected);
            let (_, ends, _) = headers(&outcome.bytes, &sent).and_then(|headers| tuple(&headers)).unwrap();
            prop_assert!((first..first + count).contains(&ends.source.port));
            prop_assert!(ports.insert(ends.source.port));
        }
        let outcome = node.handle(&case::packet(&node.world, "in eth0 198.51.100.8:1 > 203.0.113.2:80 tcp SYN"));
        let is_redirected = matches!(outcome.verdict, Verdict::Redirect { .. });
        prop_assert!(is_redirected);
    }
}

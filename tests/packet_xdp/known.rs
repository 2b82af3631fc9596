//! Packets of connections to backends elsewhere, and of what begins such connections.

use std::fmt::Write as _;

use nodelb_programs::checksum;
use nodelb_programs::node::Packet;
use nodelb_programs::programs::Programs;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::both::load;
use crate::case;
use crate::damage::pick;
use crate::steps::policies;
use crate::world::World;

/// New connections are begun after these packets.
pub(crate) const RUN: u64 = 400;

/// Clients, services and their backends, with the device and the address of the node there. No answer passes the node
/// where the backend is empty: the services have direct return.
const KINDS: [(&str, &str, &str, &str, &str); 13] = [
    ("198.51.100.7", "203.0.113.2:80", "10.0.2.5:8080", "198.18.0.1", "tcp"),
    ("198.51.100.7", "203.0.113.2:53", "10.0.2.5:5353", "198.18.0.1", "udp"),
    ("[2001:db8:c::7]", "[2001:db8:f::2]:80", "[2001:db8:1002::5]:8080", "[2001:db8:18::1]", "tcp"),
    ("[2001:db8:c::7]", "[2001:db8:f::2]:53", "[2001:db8:1002::5]:5353", "[2001:db8:18::1]", "udp"),
    ("198.51.100.7", "203.0.113.80:80", "", "", "tcp"),
    ("198.51.100.7", "203.0.113.80:53", "", "", "udp"),
    ("[2001:db8:c::7]", "[2001:db8:f::80]:80", "", "", "tcp"),
    ("198.51.100.7", "203.0.113.90:80", "", "", "tcp"),
    ("198.51.100.7", "203.0.113.90:53", "", "", "udp"),
    ("198.51.100.7", "203.0.113.100:80", "", "", "tcp"),
    ("198.51.100.7", "203.0.113.100:53", "", "", "udp"),
    ("[2001:db8:c::7]", "[2001:db8:f::90]:80", "", "", "tcp"),
    ("[2001:db8:c::7]", "[2001:db8:f::90]:53", "", "", "udp"),
];

/// Connections of each kind.
const EACH: u16 = 3;

const FLAGS: [&str; 16] = [
    "ACK", "ACK", "ACK", "PSH,ACK", "PSH,ACK", "URG,ACK", "ECE,ACK", "CWR,ACK", "FIN,ACK", "FIN,ACK", "FIN", "RST",
    "RST,ACK", "SYN", "SYN,ACK", "none",
];

const CHANGES: [&str; 12] = [
    "remove backend 16 6",
    "backend 16 10.0.2.5:5353/UDP 6",
    "outside 203.0.113.2:53/UDP 2",
    "outside 203.0.113.2:53/UDP 6",
    "remove outside 203.0.113.2:80/TCP",
    "outside 203.0.113.2:80/TCP 5",
    "remove backend 92 91",
    "backend 92 10.0.2.90:5353/UDP 91",
    "remove outside 203.0.113.80:80/TCP",
    "outside 203.0.113.80:80/TCP 80",
    "outside 203.0.113.80:53/UDP 2",
    "outside 203.0.113.80:53/UDP 81",
];

/// A connection: its kind, the client's port, and the node's.
type Known = (usize, u16, u16);

/// The node with its connections.
pub(crate) struct Lab {
    pub(crate) programs: Programs,
    pub(crate) world: World,
    known: Vec<Known>,
}

impl Lab {
    /// A node with established connections of each kind.
    pub(crate) fn new() -> Self {
        let world = policies();
        let programs = load(&world);
        let mut lab = Self { programs, world, known: Vec::new() };
        let ports = (0..KINDS.len()).flat_map(|kind| (0..EACH).map(move |port| (kind, 40_000 + port)));
        lab.known = ports.map(|(kind, port)| lab.establish(kind, port)).collect();
        lab
    }

    /// Establishes a connection of the kind from this port.
    fn establish(&mut self, kind: usize, port: u16) -> Known {
        let (client, service, backend, node, protocol) = KINDS[kind];
        let Self { programs, world, .. } = self;
        let mut run = |text: String| programs.run(&world.node(), &case::packet(world, &text));
        let words = |tcp: &str| if protocol == "tcp" { format!("tcp {tcp}") } else { "udp".to_owned() };
        let sent = run(format!("in eth0 {client}:{port} > {service} {}", words("SYN seq 1000")));
        if backend.is_empty() {
            run(format!("in eth0 {client}:{port} > {service} {}", words("ACK seq 1001 ack 5001")));
            return (kind, port, 0);
        }
        let ports = 14 + if client.starts_with('[') { 40 } else { 20 };
        let at_node = u16::from_be_bytes([sent.bytes[ports], sent.bytes[ports + 1]]);
        run(format!("in eth1 {backend} > {node}:{at_node} {}", words("SYN,ACK seq 5000 ack 1001")));
        run(format!("in eth0 {client}:{port} > {service} {}", words("ACK seq 1001 ack 5001")));
        (kind, port, at_node)
    }

    /// The packet as text and in bytes, and whether it is one that the XDP program must pass on.
    pub(crate) fn packet(&self, choice: &Choice) -> (String, Packet, bool) {
        let (text, mut passes) = text(self.known[choice.connection % self.known.len()], choice);
        let mut input = case::packet(&self.world, &text);
        if choice.odd == 12 {
            input.bytes[5] ^= 0x40;
        }
        if choice.odd == 18 {
            leave_sum_to_device(&mut input.bytes);
            passes = true;
        }
        (text, input, passes)
    }

    /// Changes what the services have, or lets time pass, now and then.
    pub(crate) fn change(&mut self, runner: &mut TestRunner) {
        match pick(runner, &(0_usize..400)) {
            place @ 0..12 => {
                // A backend is in a view once.
                for (backend, service) in [(16, 6), (92, 91)] {
                    if CHANGES[place].starts_with(&format!("backend {backend} ")) {
                        self.world.apply(&format!("remove backend {backend} {service}"));
                    }
                }
                self.world.apply(CHANGES[place]);
                self.programs.set(&self.world.node());
            }
            12..16 => self.world.now_ns += 1_000_000_000,
            16 => self.world.now_ns += 5_000_000_000,
            _ => self.world.now_ns += 10_000_000,
        }
    }
}

/// What is random about a packet.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    connection: usize,
    /// Added to the client's port, if the packet is not of an established connection.
    new: Option<u16>,
    is_answer: bool,
    flags: usize,
    /// Distances from the numbers of the connection.
    numbers: (i32, i32),
    data: usize,
    odd: u8,
}

impl Choice {
    /// Whether bytes of the packet are to be wrong.
    pub(crate) const fn is_damaged(&self) -> bool {
        self.odd > 30
    }
}

pub(crate) fn choice() -> impl Strategy<Value = Choice> {
    let number = prop_oneof![4 => 0..3_000_i32, 1 => -70_000..70_000_i32, 1 => any::<i32>()];
    let data = prop_oneof![4 => 0..120_usize, 1 => 0..1_500_usize];
    let new = prop_oneof![3 => Just(None), 1 => (1..1_000_u16).prop_map(Some)];
    let parts = ((any::<usize>(), new), any::<bool>(), 0..FLAGS.len(), (number.clone(), number), data, 0_u8..40);
    parts.prop_map(|((connection, new), is_answer, flags, numbers, data, odd)| Choice {
        connection,
        new,
        is_answer,
        flags,
        numbers,
        data,
        odd,
    })
}

/// The packet as text, and whether it is one that the XDP program must pass on.
fn text((kind, port, at_node): Known, choice: &Choice) -> (String, bool) {
    let (client, service, backend, node, protocol) = KINDS[kind];
    let is_v4 = !client.starts_with('[');
    let is_answer = choice.is_answer && choice.new.is_none() && !backend.is_empty();
    let port = port + choice.new.unwrap_or(0);
    let ends = if is_answer {
        format!("in eth1 {backend} > {node}:{at_node}")
    } else {
        format!("in eth0 {client}:{port} > {service}")
    };
    let flags = if choice.new.is_some() && choice.flags < 12 { "SYN" } else { FLAGS[choice.flags] };
    let (own, other) = if is_answer { (5_001_i32, 1_001_i32) } else { (1_001, 5_001) };
    let numbers = [own.wrapping_add(choice.numbers.0), other.wrapping_add(choice.numbers.1)].map(i32::cast_unsigned);
    let mut text = format!("{ends} {protocol}");
    if protocol == "tcp" {
        let _ = write!(text, " {flags} seq {} ack {}", numbers[0], numbers[1]);
    }
    let _ = write!(text, " data {}", choice.data);
    let (odd, passes) = match (choice.odd, is_v4) {
        (1, true) => (" options 8", true),
        (1, false) => (" ext hop", true),
        (2, _) => (" more id 9", true),
        (3, _) => (" offset 8 id 9", true),
        (4, _) => (" ttl 1", true),
        (5, _) => (" ttl 2", false),
        (6, _) => (" sum wrong", false),
        (7, _) if protocol == "udp" => (" sum none", true),
        (8, _) => (" padding 7", false),
        (9, true) => (" df", false),
        (9, false) => (" ext frag", true),
        (10, _) if protocol == "tcp" => (" tcp-options 20", false),
        (11, _) if protocol == "udp" => (" udp-length 9", false),
        (12, _) => (" other-host", true),
        (13, _) => (" states 60000", true),
        (14, true) => (" header-sum-wrong", false),
        (15, _) => (" ttl 0", true),
        (16, _) => (" cut 47", false),
        (17, _) => (" tos 255", false),
        _ => ("", false),
    };
    // A SYN may begin a connection again that has ended.
    (text + odd, passes || (protocol == "tcp" && flags == "SYN,ACK"))
}

/// Leaves the rest of the sum to a device, as a sender on the same machine does.
fn leave_sum_to_device(bytes: &mut [u8]) {
    let (is_v4, at) = (bytes[12] == 8, if bytes[12] == 8 { 34 } else { 54 });
    let (addresses, protocol) = if is_v4 { (&bytes[26..34], bytes[23]) } else { (&bytes[22..54], bytes[20]) };
    let length = if is_v4 {
        u16::from_be_bytes([bytes[16], bytes[17]]) - 20
    } else {
        u16::from_be_bytes([bytes[18], bytes[19]])
    };
    let sum = checksum::sum(&[addresses, &length.to_be_bytes(), &[0, protocol]].concat());
    let check = at + if protocol == 6 { 16 } else { 6 };
    bytes[check..check + 2].copy_from_slice(&sum.to_be_bytes());
}

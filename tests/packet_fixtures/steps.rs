//! Random steps on a node: packets of a few clients and backends, so that they meet often, and changes of the node.

use nodelb_core::model::addr::Protocol;
use nodelb_programs::headers::{Content, Headers, Parsed, parse};
use nodelb_programs::key::{Side, Tuple};
use nodelb_programs::node::{Packet, Verdict};
use nodelb_programs::programs::Outcome;
use nodelb_programs::rewrite;
use proptest::prelude::*;

use crate::case;
use crate::world::World;

/// A step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A packet, and whether it is answered at once.
    Packet { text: String, is_answered: bool },
    /// A change of the node.
    Change(&'static str),
    /// Milliseconds that pass.
    Wait(u64),
}

/// The node `direct` of the cases, which has the services of `policies`, too.
pub(crate) fn policies() -> World {
    let text = include_str!("../packet_programs/fixtures/worlds");
    let case = case::cases(&format!("{text}\ncase random\n  world direct")).remove(0);
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    world
}

const CLIENTS: [&str; 4] = ["198.51.100.7", "198.51.100.8", "[2001:db8:c::7]", "[2001:db8:c::8]"];

/// Addresses of services, with the protocol.
const TARGETS: [(&str, bool, &str); 35] = [
    ("203.0.113.1:80", true, "tcp"),
    ("203.0.113.11:80", true, "tcp"),
    ("203.0.113.1:53", true, "udp"),
    ("203.0.113.11:53", true, "udp"),
    ("203.0.113.2:80", true, "tcp"),
    ("203.0.113.2:53", true, "udp"),
    ("192.0.2.1:30080", true, "tcp"),
    ("198.18.0.1:30080", true, "tcp"),
    ("192.0.2.1:30053", true, "udp"),
    ("203.0.113.20:80", true, "tcp"),
    ("203.0.113.27:53", true, "udp"),
    ("203.0.113.29:53", true, "udp"),
    ("203.0.113.32:80", true, "tcp"),
    ("203.0.113.38:80", true, "tcp"),
    ("[2001:db8:f::1]:80", false, "tcp"),
    ("[2001:db8:f::2]:53", false, "udp"),
    ("[2001:db8:f::38]:80", false, "tcp"),
    ("[2001:db8:2::1]:30080", false, "tcp"),
    // With direct return.
    ("203.0.113.80:80", true, "tcp"),
    ("203.0.113.80:53", true, "udp"),
    ("203.0.113.83:80", true, "tcp"),
    ("203.0.113.85:80", true, "tcp"),
    ("203.0.113.90:80", true, "tcp"),
    ("203.0.113.90:53", true, "udp"),
    ("203.0.113.94:80", true, "tcp"),
    ("203.0.113.94:53", true, "udp"),
    ("203.0.113.97:80", true, "tcp"),
    ("[2001:db8:f::80]:80", false, "tcp"),
    ("[2001:db8:f::90]:53", false, "udp"),
    ("[2001:db8:f::94]:80", false, "tcp"),
    // With IPv6 backends.
    ("203.0.113.100:80", true, "tcp"),
    ("203.0.113.100:53", true, "udp"),
    ("192.0.2.1:53", true, "udp"),
    ("10.0.1.103:80", true, "tcp"),
    ("203.0.113.103:80", true, "tcp"),
];

/// Where tunnels end: at backends here and elsewhere, and at the node; and whether they contain IPv4.
const TUNNELS: [(&str, bool); 8] = [
    ("10.0.9.1 > 10.0.1.95", true),
    ("10.0.9.1 > 10.0.1.96", true),
    ("10.0.9.1 > 10.0.2.97", true),
    ("10.0.9.1 > 192.0.2.1", true),
    ("2001:db8:9::1 > 2001:db8:1001::95", false),
    ("2001:db8:9::1 > 2001:db8:2::1", true),
    ("2001:db8:9::1 > 2001:db8:1001::103", true),
    ("2001:db8:9::1 > 2001:db8:1002::100", true),
];

/// Packets of backends, with `{}` for the port of the client or the node.
const ANSWERS: [&str; 6] = [
    "out eth0 10.0.1.5:8080 > 198.51.100.7:{} tcp",
    "out eth0 10.0.1.5:5353 > 198.51.100.7:{} udp",
    "out eth0 [2001:db8:1001::5]:8080 > [2001:db8:c::7]:{} tcp",
    "in eth1 10.0.2.5:8080 > 198.18.0.1:{} tcp",
    "in eth1 10.0.2.5:5353 > 198.18.0.1:{} udp",
    "in eth1 [2001:db8:1002::5]:5353 > [2001:db8:18::1]:{} udp",
];

const FLAGS: [&str; 8] = ["SYN", "SYN", "SYN", "ACK", "ACK", "FIN,ACK", "RST", "SYN,ACK"];

/// Numbers that clients acknowledge. The answers of backends begin at 0.
const ACKS: [u32; 8] = [1, 1, 1, 1, 1_000, 1_048_576, 1_048_577, 0];

/// Milliseconds after which something ends, and less: a silence, the ports of fragments, a client with direct return, the
/// affinity of a client.
const WAITS: [u64; 8] = [1_000, 2_000, 29_000, 30_000, 59_000, 60_000, 99_000, 100_000];

const CHANGES: [&str; 36] = [
    "remove backend 11 1",
    "backend 11 10.0.1.5:8080/TCP 1 local",
    "remove backend 12 2",
    "backend 12 10.0.1.5:5353/UDP 2 local",
    "backend 19 10.0.1.4:5353/UDP 2 local",
    "remove backend 19 2",
    "remove backend 16 6",
    "backend 16 10.0.2.5:5353/UDP 6",
    "remove backend 33 32",
    "remove outside 203.0.113.2:80/TCP",
    "outside 203.0.113.2:80/TCP 5",
    "outside 203.0.113.2:53/UDP 2",
    "outside 203.0.113.2:53/UDP 6",
    "remove backend 81 80",
    "backend 81 10.0.4.81:80/TCP 80",
    "remove backend 92 91",
    "backend 92 10.0.2.90:5353/UDP 91",
    "remove backend 102 100",
    "backend 102 [2001:db8:1002::100]:8080/TCP 100",
    "outside 203.0.113.100:53/UDP 91",
    "remove outside 203.0.113.80:80/TCP",
    "outside 203.0.113.80:80/TCP 80",
    "outside 203.0.113.90:80/TCP 80",
    "outside 203.0.113.90:80/TCP 90",
    "remove outside 203.0.113.94:80/TCP",
    "outside 203.0.113.94:80/TCP 94",
    "set resets-unknown",
    "unset resets-unknown",
    "set always-masquerades",
    "unset always-masquerades",
    "set draining",
    "unset draining",
    "unset draining",
    "unset answers",
    "set answers",
    "set answers",
];

fn client_packet() -> impl Strategy<Value = Step> {
    let parts = (
        0..CLIENTS.len(),
        0..TARGETS.len(),
        0..FLAGS.len(),
        0_u16..3,
        0_usize..60,
        any::<bool>(),
        (1_u8..16, 0..ACKS.len()),
    );
    parts.prop_map(|(client, target, flags, port, data, is_answered, (odd, ack))| {
        let (target, is_v4, protocol) = TARGETS[target];
        let client = CLIENTS[if is_v4 { client % 2 } else { 2 + client % 2 }];
        let kind =
            if protocol == "tcp" { format!("tcp {} ack {}", FLAGS[flags], ACKS[ack]) } else { protocol.to_owned() };
        let more = match (odd, is_v4) {
            (1, true) => " options 8",
            (1, false) => " ext hop,dst",
            (2, _) => " sum wrong",
            (3, _) => " ttl 1",
            (4 | 5, _) => " more id 9",
            (6, true) => " df",
            (6, false) => " ext frag,dst",
            (7, _) => " padding 5",
            (8, _) => " seq 3000000",
            _ => "",
        };
        let text = format!("in eth0 {client}:{} > {target} {kind} data {data}{more}", 40_000 + port);
        Step::Packet { text, is_answered }
    })
}

fn backend_packet() -> impl Strategy<Value = Step> {
    (0..ANSWERS.len(), 0..FLAGS.len(), 0_u16..4, 0_usize..60).prop_map(|(answer, flags, port, data)| {
        let answer = ANSWERS[answer];
        let port = if answer.starts_with("in") { 10_000 + port } else { 40_000 + port };
        let kind = if answer.ends_with("tcp") { format!(" {}", FLAGS[flags]) } else { String::new() };
        let text = format!("{}{kind} data {data}", answer.replace("{}", &port.to_string()));
        Step::Packet { text, is_answered: false }
    })
}

fn icmp_error() -> impl Strategy<Value = Step> {
    const ABOUT: [(&str, &str); 8] = [
        ("in eth0 198.51.100.254 > 203.0.113.1 icmp 3/4 mtu 1300", "203.0.113.1:80 > 198.51.100.7:{} tcp ACK"),
        ("in eth0 198.51.100.254 > 203.0.113.2 icmp 11/0", "203.0.113.2:53 > 198.51.100.8:{} udp data 3"),
        ("in eth1 10.0.2.5 > 198.18.0.1 icmp 3/3", "198.18.0.1:{} > 10.0.2.5:5353 udp data 9"),
        ("out eth0 10.0.1.5 > 198.51.100.7 icmp 3/3", "198.51.100.7:{} > 10.0.1.5:5353 udp"),
        ("in eth0 198.51.100.254 > 203.0.113.80 icmp 3/4 mtu 1300", "203.0.113.80:80 > 198.51.100.7:{} tcp ACK"),
        ("in eth0 198.51.100.254 > 203.0.113.90 icmp 3/3", "203.0.113.90:53 > 198.51.100.8:{} udp data 3"),
        ("in eth0 198.51.100.254 > 203.0.113.97 icmp 11/0", "203.0.113.97:80 > 198.51.100.7:{} tcp ACK"),
        ("in eth0 2001:db8:c::ff > 2001:db8:f::90 icmp 3/0", "[2001:db8:f::90]:53 > [2001:db8:c::7]:{} udp data 3"),
    ];
    (0..ABOUT.len(), 0_u16..3).prop_map(|(about, port)| {
        let (outer, inner) = ABOUT[about];
        let port = if inner.starts_with("198.18") { 10_000 + port } else { 40_000 + port };
        let text = format!("{outer} about [{}]", inner.replace("{}", &port.to_string()));
        Step::Packet { text, is_answered: false }
    })
}

/// A later fragment of such a packet.
fn later_fragment() -> impl Strategy<Value = Step> {
    let parts = (0..CLIENTS.len(), 0..TARGETS.len(), 1_u16..4, any::<bool>());
    parts.prop_map(|(client, target, offset, has_more)| {
        let (target, is_v4, protocol) = TARGETS[target];
        let client = CLIENTS[if is_v4 { client % 2 } else { 2 + client % 2 }].trim_matches(['[', ']']);
        let target = target.rsplit_once(':').map_or(target, |(addr, _)| addr).trim_matches(['[', ']']);
        let kind = if protocol == "tcp" { "tcp none" } else { protocol };
        let more = if has_more { " more" } else { "" };
        let text = format!("in eth0 {client} > {target} {kind} id 9 offset {} data 24{more}", offset * 24);
        Step::Packet { text, is_answered: false }
    })
}

/// Packets of a pod and to it, and larger ones than the MTU.
fn other_packet() -> impl Strategy<Value = Step> {
    const TEXTS: [&str; 16] = [
        "in tap1 10.0.6.5:{} > 10.96.0.1:80 tcp SYN",
        "in tap1 10.0.6.5:{} > 10.96.0.1:80 tcp ACK data 5",
        "in tap1 10.0.6.5:{} > 10.96.0.2:53 udp data 5",
        "in tap1 10.0.6.5:{} > 10.96.0.60:80 tcp SYN",
        "in tap1 10.0.6.5:8080 > 10.0.6.1:{10} tcp SYN,ACK",
        "in tap1 10.0.6.5:{} > 192.0.2.1:30080 tcp SYN",
        "in tap1 10.0.6.5:{} > 10.96.0.27:80 tcp SYN data 7",
        "in tap1 10.0.6.5:{} > 10.96.0.23:80 tcp SYN",
        "out tap1 10.0.1.5:8080 > 10.0.6.5:{} tcp SYN,ACK",
        "out tap1 10.0.2.5:5353 > 10.0.6.5:{} udp data 9",
        "in eth0 198.51.100.7:{} > 10.0.1.5:8080 tcp SYN",
        "in eth0 [2001:db8:c::7]:{} > [2001:db8:1001::5]:8080 tcp SYN",
        "in eth0 198.51.100.7:{} > 203.0.113.2:53 udp data 1373",
        "in eth0 198.51.100.7:{} > 203.0.113.33:80 tcp SYN",
        "in eth0 198.51.100.7:{} > 203.0.113.36:443 tcp SYN",
        "in eth0 [2001:db8:c::7]:{} > [2001:db8:f::2]:53 udp data 1353",
    ];
    (0..TEXTS.len(), 0_u16..3).prop_map(|(text, port)| {
        let text =
            TEXTS[text].replace("{}", &(40_000 + port).to_string()).replace("{10}", &(10_000 + port).to_string());
        Step::Packet { text, is_answered: false }
    })
}

/// A whole packet of a client that often has a connection with direct return, as the XDP program translates it.
fn usual_packet() -> impl Strategy<Value = Step> {
    const TEXTS: [&str; 8] = [
        "in eth0 198.51.100.7:40000 > 203.0.113.80:80 tcp ACK",
        "in eth0 198.51.100.7:40000 > 203.0.113.80:53 udp",
        "in eth0 198.51.100.7:40000 > 203.0.113.90:80 tcp ACK",
        "in eth0 198.51.100.7:40000 > 203.0.113.90:53 udp",
        "in eth0 198.51.100.7:40000 > 203.0.113.100:80 tcp ACK",
        "in eth0 198.51.100.7:40000 > 203.0.113.100:53 udp",
        "in eth0 [2001:db8:c::7]:40000 > [2001:db8:f::80]:80 tcp ACK",
        "in eth0 [2001:db8:c::7]:40000 > [2001:db8:f::90]:53 udp",
    ];
    (0..TEXTS.len(), 0_usize..60).prop_map(|(text, data)| {
        let text = format!("{} data {data}", TEXTS[text]);
        Step::Packet { text, is_answered: false }
    })
}

/// A packet of a client or an error that another node has put into a tunnel.
fn tunnelled() -> impl Strategy<Value = Step> {
    let inner = prop_oneof![6 => client_packet(), 1 => later_fragment(), 1 => icmp_error()];
    (0..TUNNELS.len(), inner, 0_u8..16).prop_map(|(end, inner, odd)| {
        let Step::Packet { text, .. } = &inner else { return inner };
        let Some((end, inner_text)) = text.strip_prefix("in eth0 ").map(|text| (TUNNELS[end], text)) else {
            return inner;
        };
        if inner_text.starts_with('[') == end.1 || (inner_text.starts_with("2001") && end.1) {
            return inner;
        }
        let more = match odd {
            1 => " ttl 1",
            2 if end.1 => " options 8",
            3 => " more id 9",
            4 => " tos 255",
            _ => "",
        };
        Step::Packet { text: format!("in eth1 {} tunnel [{inner_text}]{more}", end.0), is_answered: false }
    })
}

/// A packet that another node sends to a backend here in a tunnel.
fn usual_tunnel() -> impl Strategy<Value = Step> {
    const TEXTS: [&str; 8] = [
        "10.0.9.1 > 10.0.1.95 tunnel [198.51.100.7:40000 > 203.0.113.94:80 tcp",
        "10.0.9.1 > 10.0.1.96 tunnel [198.51.100.7:40001 > 203.0.113.94:80 tcp",
        "10.0.9.1 > 10.0.1.95 tunnel [198.51.100.7:40000 > 203.0.113.94:53 udp",
        "10.0.9.1 > 10.0.1.95 tunnel [198.51.100.7:40000 > 203.0.113.97:80 tcp",
        "10.0.9.1 > 192.0.2.1 tunnel [198.51.100.7:40000 > 203.0.113.98:443 tcp",
        "2001:db8:9::1 > 2001:db8:1001::95 tunnel [[2001:db8:c::7]:40000 > [2001:db8:f::94]:80 tcp",
        "2001:db8:9::1 > 2001:db8:2::1 tunnel [198.51.100.7:40000 > 192.0.2.1:53 udp",
        "2001:db8:9::1 > 2001:db8:1001::103 tunnel [198.51.100.7:40000 > 10.0.1.103:80 tcp",
    ];
    const LATER: [&str; 2] = [
        "10.0.9.1 > 10.0.1.95 tunnel [198.51.100.7 > 203.0.113.94 tcp none id 9 offset 24 data 24",
        "10.0.9.1 > 10.0.1.95 tunnel [198.51.100.7 > 203.0.113.97 tcp none id 9 offset 24 data 24",
    ];
    let whole = (0..TEXTS.len(), 0..FLAGS.len(), 0..ACKS.len(), 0_u8..4).prop_map(|(text, flags, ack, odd)| {
        let text = TEXTS[text];
        let kind = if text.ends_with("tcp") { format!(" {} ack {}", FLAGS[flags], ACKS[ack]) } else { String::new() };
        format!("{text}{kind}{}", if odd == 0 { " data 4 more id 9" } else { "" })
    });
    let later = (0..LATER.len()).prop_map(|text| LATER[text].to_owned());
    prop_oneof![4 => whole, 1 => later]
        .prop_map(|text| Step::Packet { text: format!("in eth1 {text}]"), is_answered: false })
}

/// A random step.
pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => client_packet(),
        4 => backend_packet(),
        1 => icmp_error(),
        1 => later_fragment(),
        2 => other_packet(),
        3 => tunnelled(),
        2 => usual_tunnel(),
        2 => usual_packet(),
        1 => (0..CHANGES.len()).prop_map(|change| Step::Change(CHANGES[change])),
        1 => prop_oneof![3 => 0_u64..5_000, 1 => (0..WAITS.len()).prop_map(|wait| WAITS[wait])].prop_map(Step::Wait),
    ]
}

/// The packet of the step; otherwise the node changes.
pub(crate) fn packet(world: &mut World, step: &Step) -> Option<Packet> {
    match step {
        Step::Packet { text, .. } => return Some(case::packet(world, text)),
        Step::Change(line) => {
            // A backend is in a view once.
            let words: Vec<&str> = line.split(' ').collect();
            if let ["backend", id, _, service, ..] = words[..] {
                world.apply(&format!("remove backend {id} {service}"));
            }
            world.apply(line);
        }
        Step::Wait(millis) => world.now_ns += millis * 1_000_000,
    }
    None
}

/// The headers of a frame for the same device as the packet, if it may be a service's.
pub(crate) fn headers(bytes: &[u8], packet: &Packet) -> Option<Headers> {
    match parse(bytes, packet.l2_length, packet.is_gso) {
        Parsed::Packet(headers) => Some(headers),
        Parsed::Foreign | Parsed::Short => None,
    }
}

/// The protocol, the ends and the TCP flags.
pub(crate) fn tuple(headers: &Headers) -> Option<(Protocol, Tuple, u8)> {
    match headers.content {
        Content::Transport(protocol, ports) => {
            Some((protocol, headers.tuple(ports.source, ports.target), ports.tcp_flags))
        }
        _ => None,
    }
}

/// The packet with its ends exchanged, as a peer sends it.
pub(crate) fn turned(bytes: &[u8], packet: &Packet) -> Vec<u8> {
    let headers = headers(bytes, packet).expect("a packet");
    let (_, tuple, _) = tuple(&headers).expect("ports");
    let mut bytes = bytes.to_vec();
    rewrite::write(&mut bytes, &headers, &tuple.turned());
    bytes
}

/// The answer of the backend to a client's packet that was translated, where a program sees it.
pub(crate) fn answer(world: &World, packet: &Packet, outcome: &Outcome) -> Option<Packet> {
    let (name, side) = match outcome.verdict {
        Verdict::Redirect { ifindex, .. } => (world.name_of(ifindex), Side::Arriving),
        Verdict::Next if outcome.bytes != packet.bytes => (world.name_of(packet.ifindex), Side::Leaving),
        _ => return None,
    };
    let device = &world.devices[name];
    if packet.l2_length != 14 || (!device.is_uplink && !device.is_pod) {
        return None;
    }
    let headers = headers(&outcome.bytes, packet)?;
    tuple(&headers)?;
    let mut bytes = turned(&outcome.bytes, packet);
    bytes[..6].copy_from_slice(&device.mac);
    // A device without a link-layer header has none in its frames.
    let bytes = bytes[14 - device.l2_length..].to_vec();
    let (hook, ifindex, l2_length) = (device.hook(side), device.ifindex, device.l2_length);
    Some(Packet { bytes, hook, ifindex, l2_length, ..packet.clone() })
}

//! Packets that are refused, and packets that are none of the programs' business.

use super::frames::{
    ACK, Frame, ICMP, ICMPV6, RST, SYN, TCP, UDP, be32, first, frame, ones_sum, read_ip, transport_sum,
};
use super::{DROP, Family, Lists, NEXT, NODE_MAC, PEER_MAC, PacketHook, REDIRECT, V4, V6, all_kinds, with_node};

/// Checks an ICMP error about the packet, which is sent to its source: type and code, and the MTU that it contains.
pub(super) fn check_icmp(about: &Frame, bytes: &[u8], kind: (u8, u8), mtu: u32) {
    let original = about.bytes();
    assert_eq!((&bytes[..6], &bytes[6..12]), (&PEER_MAC[..], &NODE_MAC[..]), "back to where it came from");
    let (source, target, protocol, ttl, content) = read_ip(&bytes[14..]);
    assert_eq!((source, target, ttl), (about.target.ip(), about.source.ip(), 64));
    if about.source.is_ipv4() {
        assert_eq!((protocol, ones_sum(content)), (ICMP, 0xffff), "the checksum of the ICMP header");
    } else {
        assert_eq!((protocol, transport_sum(source, target, ICMPV6, content)), (ICMPV6, 0));
    }
    assert_eq!(((content[0], content[1]), be32(content, 4)), (kind, mtu));
    let quoted = &content[8..];
    assert_eq!(quoted, &original[14..14 + quoted.len()], "the beginning of the packet");
    let header = if about.source.is_ipv4() { 20 } else { 40 };
    assert!(quoted.len() >= header + 8, "{} bytes", quoted.len());
}

#[test]
fn without_backends_clients_are_refused_at_once() {
    with_node("programs::refusal::without_backends_clients_are_refused_at_once", |node| {
        for (family, protocol) in all_kinds() {
            node.serve(&Lists { protocol, has_backends: false, ..Lists::default() });
            node.publish(family.service, protocol, 0);
            let request = first(protocol, family.client, family.service);
            if protocol == TCP {
                let (code, reset) = node.arrives(&request);
                assert_eq!((code, reset.source, reset.target), (REDIRECT, request.target, request.source));
                assert_eq!((reset.target_mac, reset.source_mac), (PEER_MAC, NODE_MAC));
                assert_eq!((reset.tcp_flags, reset.sequence, reset.acknowledged), (RST | ACK, 0, 1001));
                assert_eq!((reset.payload.len(), reset.ttl), (0, 64));
                let with_data = Frame { tcp_flags: SYN, ..frame(TCP, family.client, family.service) }.payload(301);
                assert_eq!(node.arrives(&with_data).1.acknowledged, 1000 + 1 + 301, "SYN and payload");
            } else {
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &request.bytes());
                assert_eq!(code, REDIRECT);
                check_icmp(&request, &bytes, if request.source.is_ipv4() { (3, 3) } else { (1, 4) }, 0);
            }
        }
        assert_eq!((node.dropped(4), node.entries()), (6, (Vec::new(), Vec::new())));
    });
}

/// The verdicts are those of `enum packet_verdict`: 0 passed, 1 dropped, 2 RST, 3 ICMP.
#[test]
fn refused_packets_are_counted_by_service_reason_and_verdict() {
    with_node("programs::refusal::refused_packets_are_counted_by_service_reason_and_verdict", |node| {
        let refused = |protocol, count: usize| {
            node.serve(&Lists { protocol, has_backends: false, ..Lists::default() });
            node.publish(V4.service, protocol, 0);
            for _ in 0..count {
                node.run(PacketHook::UplinkIn, node.uplink, &first(protocol, V4.client, V4.service).bytes());
            }
        };
        refused(TCP, 3);
        refused(UDP, 2);
        node.settings([0, 0, 0, 0]);
        refused(TCP, 1);
        node.ignores("half a header", &first(TCP, V4.client, V4.service).bytes()[..40]);
        let expected =
            [((0, 0, 0), 1), ((super::SERVICE, 4, 1), 1), ((super::SERVICE, 4, 2), 3), ((super::SERVICE, 4, 3), 2)];
        assert_eq!(node.drops(), expected);
        assert_eq!((node.dropped(4), node.passed(0)), (6, 1), "the sums");
    });
}

#[test]
fn answers_can_be_switched_off() {
    with_node("programs::refusal::answers_can_be_switched_off", |node| {
        node.settings([0, 0, 0, 0]);
        node.serve(&Lists { has_backends: false, ..Lists::default() });
        node.publish(V4.service, TCP, 0);
        assert_eq!(node.arrives(&first(TCP, V4.client, V4.service)).0, DROP);
        assert_eq!(node.dropped(4), 1);
    });
}

/// 1,000 answers per second and CPU. A run of 1,200 packets takes two seconds at most.
#[test]
fn answers_are_limited() {
    with_node("programs::refusal::answers_are_limited", |node| {
        node.serve(&Lists { has_backends: false, ..Lists::default() });
        node.publish(V4.service, TCP, 0);
        let cpus = libbpf_rs::num_possible_cpus().unwrap();
        let bytes = first(TCP, V4.client, V4.service).bytes();
        let begun = std::time::Instant::now();
        let mut dropped = 0;
        for _ in 0..(1200 * cpus) {
            dropped += usize::from(node.run(PacketHook::UplinkIn, node.uplink, &bytes).0 == DROP);
        }
        let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
        assert_eq!(node.dropped(12), u64::try_from(dropped).unwrap());
        assert!(1200 * cpus - dropped <= 1000 * cpus * seconds, "{dropped} dropped in {seconds} s");
    });
}

#[test]
fn without_local_backends_packets_are_dropped() {
    with_node("programs::refusal::without_local_backends_packets_are_dropped", |node| {
        for (family, protocol) in all_kinds() {
            node.serve(&Lists { cluster: &[family.remote], protocol, ..Lists::default() });
            node.publish(family.service, protocol, 1);
            let request = first(protocol, family.client, family.service);
            assert_eq!(node.run(PacketHook::UplinkIn, node.uplink, &request.bytes()).0, DROP);
        }
        assert_eq!(node.dropped(5), 4);
    });
}

fn range(address: &str, prefix: u32) -> Vec<u8> {
    let mut key = (32 + prefix).to_ne_bytes().to_vec();
    key.extend(super::SERVICE.to_be_bytes());
    key.extend(super::addr(address.parse().unwrap()));
    key
}

#[test]
fn only_clients_in_the_ranges_are_admitted() {
    with_node("programs::refusal::only_clients_in_the_ranges_are_admitted", |node| {
        for (family, protocol) in all_kinds() {
            node.serve_one(family, protocol, family.pod);
            node.publish(family.service, protocol, 2);
            let request = first(protocol, family.client, family.service);
            let arrive = || node.run(PacketHook::UplinkIn, node.uplink, &request.bytes()).0;
            assert_eq!(arrive(), DROP, "no range");
            let [other, own, prefix] = if request.source.is_ipv4() {
                ["203.0.113.64", "203.0.113.0", "122"]
            } else {
                ["2001:db8:1::8000", "2001:db8:1::", "122"]
            };
            let prefix = prefix.parse().unwrap();
            node.set("source_ranges", &range(other, prefix), &[0; 4]);
            assert_eq!(arrive(), DROP, "another range");
            node.set("source_ranges", &range(own, prefix), &[0; 4]);
            assert_eq!(arrive(), NEXT, "in a range");
            node.leaves(&frame(protocol, family.pod, family.client).flags(SYN | ACK));
            let map = node.map("source_ranges");
            libbpf_rs::MapCore::delete(map, &range(own, prefix)).unwrap();
            libbpf_rs::MapCore::delete(map, &range(other, prefix)).unwrap();
            let (code, reason) = match protocol {
                TCP => (NEXT, "connections continue"),
                _ => (DROP, "flows are admitted again"),
            };
            assert_eq!(arrive(), code, "{reason}");
        }
        assert_eq!(node.dropped(6), 10);
    });
}

/// A node that serves TCP and UDP on the family's service address.
fn serving(node: &super::Node, family: Family) {
    node.serve_one(family, TCP, family.pod);
    node.publish(family.service, UDP, 0);
}

#[test]
fn what_is_no_service_is_left_alone() {
    with_node("programs::refusal::what_is_no_service_is_left_alone", |node| {
        for family in [V4, V6] {
            serving(node, family);
            let port = family.service.replace(":80", ":81");
            node.ignores("another port", &first(TCP, family.client, &port).bytes());
            node.ignores("another address", &first(TCP, family.client, family.remote).bytes());
            node.ignores("the node's own port", &first(UDP, family.client, family.node).bytes());
            let source_port = family.node.replace(":30080", ":10050");
            node.ignores("a port of the node's", &first(UDP, family.remote, &source_port).bytes());
            let answer = frame(TCP, family.pod, family.client);
            let bytes = answer.bytes();
            assert_eq!(node.run(PacketHook::UplinkOut, node.uplink, &bytes), (NEXT, bytes), "a pod's own packet");
        }
    });
}

#[test]
fn packets_for_others_are_left_alone() {
    with_node("programs::refusal::packets_for_others_are_left_alone", |node| {
        for family in [V4, V6] {
            serving(node, family);
            let plain = first(UDP, family.client, family.service);
            let other_host = Frame { target_mac: [2, 9, 9, 9, 9, 9], ..plain.clone() };
            node.ignores("a frame for another machine", &other_host.bytes());
            node.ignores("a broadcast", &Frame { target_mac: [255; 6], ..plain.clone() }.bytes());
            let mut tagged = plain.bytes();
            tagged.splice(12..12, [0x81, 0, 0, 7]);
            node.ignores("a VLAN tag", &tagged);
            let mut arp = plain.bytes();
            arp[12..14].copy_from_slice(&[8, 6]);
            node.ignores("ARP", &arp);
            node.ignores(
                "SCTP",
                &plain.packet(&[0; 32], None).iter().copied().enumerate().map(sctp).collect::<Vec<_>>(),
            );
        }
        let martian = |source, target| first(UDP, source, target).bytes();
        node.publish("224.0.0.9:80", UDP, 0);
        node.publish("127.0.0.1:80", UDP, 0);
        node.ignores("a group", &martian(V4.client, "224.0.0.9:80"));
        node.ignores("the broadcast address", &martian(V4.client, "255.255.255.255:80"));
        node.ignores("a loopback target", &martian(V4.client, "127.0.0.1:80"));
        node.ignores("a loopback source", &martian("127.0.0.1:5", V4.service));
        node.ignores("an IPv6 loopback source", &martian("[::1]:5", V6.service));
        node.ignores("an IPv6 group", &martian(V6.client, "[ff02::1]:80"));
        // On the wire this is an IPv6 packet; in the maps it would be the IPv4 service.
        node.publish(V4.service, UDP, 0);
        node.ignores("an IPv4-mapped target", &martian(V6.client, "[::ffff:198.51.100.200]:80"));
        node.ignores("an IPv4-mapped source", &martian("[::ffff:203.0.113.2]:40000", V6.service));
    });
}

/// The packet with the protocol number of SCTP.
fn sctp((at, byte): (usize, u8)) -> u8 {
    match (at, byte) {
        (20 | 23, UDP) => 132,
        _ => byte,
    }
}

/// Cut at every length. What is left comes out as it came in.
#[test]
fn cut_packets_are_left_alone() {
    with_node("programs::refusal::cut_packets_are_left_alone", |node| {
        for (family, protocol) in all_kinds() {
            serving(node, family);
            let plain = first(protocol, family.client, family.service).payload(24);
            let whole = plain.bytes();
            // The kernel runs no program on frames that are shorter than the IP header.
            let header = if plain.source.is_ipv4() { 34 } else { 54 };
            for length in header..whole.len() {
                node.ignores(&format!("{length} bytes of {}", whole.len()), &whole[..length]);
            }
            let (code, _) = node.run(PacketHook::UplinkIn, node.uplink, &whole);
            assert_eq!(code, NEXT);
            assert_eq!(node.entries().1.len(), 2, "the whole packet is served");
            super::translation::clear(node);
        }
    });
}

#[test]
fn contradictory_headers_are_left_alone() {
    with_node("programs::refusal::contradictory_headers_are_left_alone", |node| {
        serving(node, V4);
        serving(node, V6);
        let tcp = first(TCP, V4.client, V4.service).payload(40).bytes();
        for (what, at, value) in [
            ("version 5", 14, 0x55),
            ("a header of 16 bytes", 14, 0x44),
            ("a TCP header of 16 bytes", 46, 0x40),
            ("a TCP header that is longer than the packet", 46, 0xf0),
            ("an IP length without room for TCP", 17, 30),
        ] {
            let mut bytes = tcp.clone();
            bytes[at] = value;
            if at == 46 && value == 0xf0 {
                bytes.truncate(74);
                bytes[16..18].copy_from_slice(&60_u16.to_be_bytes());
            }
            node.ignores(what, &bytes);
        }
        let udp = first(UDP, V6.client, V6.service).payload(40).bytes();
        for (what, length) in [("a UDP length of 7", 7_u16), ("a UDP length beyond the packet", 200)] {
            let mut bytes = udp.clone();
            bytes[58..60].copy_from_slice(&length.to_be_bytes());
            node.ignores(what, &bytes);
        }
        let mut bytes = udp;
        bytes[14] = 0x50;
        node.ignores("IPv6 with version 5", &bytes);
        assert!(node.passed(0) >= 8, "counted");
    });
}

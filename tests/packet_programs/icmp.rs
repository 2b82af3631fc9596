//! ICMP errors about packets of connections: each reaches the side that it concerns, about the packet that this side
//! knows.

use std::net::IpAddr;

use super::frames::{Frame, ICMP, ICMPV6, SYN, TCP, UDP, first, frame, ones_sum, read_ip, transport_sum};
use super::translation::{at, clear, source_port};
use super::{DROP, Family, NEXT, Node, PacketHook, REDIRECT, V4, V6, all_kinds, with_node};

/// An ICMP error of this type from a router to the source of the packet, with this many bytes of it.
fn error(about: &Frame, router: &str, kind: u8, quoted: usize) -> Vec<u8> {
    let inner = &about.bytes()[14..];
    let inner = &inner[..quoted.min(inner.len())];
    let is_v4 = about.source.is_ipv4();
    let mut content = vec![kind, 0, 0, 0, 0, 0, 5, 0x14];
    content.extend(inner);
    let router: IpAddr = router.parse().unwrap();
    let protocol = if is_v4 { ICMP } else { ICMPV6 };
    let sum = if is_v4 { !ones_sum(&content) } else { transport_sum(router, about.source.ip(), ICMPV6, &content) };
    content[2..4].copy_from_slice(&sum.to_be_bytes());
    let outer = Frame { target: about.source, ..first(protocol, &socket(router), &about.source.to_string()) };
    outer.packet(&content, None)
}

fn socket(ip: IpAddr) -> String {
    std::net::SocketAddr::new(ip, 0).to_string()
}

/// An error as it was read: its addresses, its TTL, and the packet in it.
#[derive(Debug, PartialEq, Eq)]
struct Error {
    source: IpAddr,
    target: IpAddr,
    ttl: u8,
    about: (String, String),
}

/// Reads an error. Its checksum must be right, and those of the packet in it, if that is complete.
fn read(bytes: &[u8]) -> Error {
    let (source, target, protocol, ttl, content) = read_ip(&bytes[14..]);
    if protocol == ICMP {
        assert_eq!(ones_sum(content), 0xffff, "the checksum of the ICMP header");
    } else {
        assert_eq!((protocol, transport_sum(source, target, ICMPV6, content)), (ICMPV6, 0));
    }
    let inner = &content[8..];
    let header = if protocol == ICMP { 20 } else { 40 };
    let [from, to] = if protocol == ICMP {
        assert_eq!(ones_sum(&inner[..20]), 0xffff, "the checksum of the header in the error");
        [12, 16].map(|at| IpAddr::from(<[u8; 4]>::try_from(&inner[at..at + 4]).unwrap()))
    } else {
        [8, 24].map(|at| IpAddr::from(<[u8; 16]>::try_from(&inner[at..at + 16]).unwrap()))
    };
    let port = |at: usize| u16::from_be_bytes([inner[header + at], inner[header + at + 1]]);
    let about = [(from, port(0)), (to, port(2))].map(|(ip, port)| std::net::SocketAddr::new(ip, port).to_string());
    let transport = &inner[header..];
    let inner_protocol = if protocol == ICMP { inner[9] } else { inner[6] };
    if transport.len() > 20 {
        assert_eq!(transport_sum(from, to, inner_protocol, transport), 0, "the checksum in the packet in the error");
    }
    let [from, to] = about;
    Error { source, target, ttl, about: (from, to) }
}

/// The errors that routers send. A flow ends by the last of them, so those of UDP must be of the receiver.
fn types(family: Family, protocol: u8) -> &'static [u8] {
    match (at(family.client).is_ipv4(), protocol) {
        (true, TCP) => &[3, 11, 12],
        (true, _) => &[3, 11],
        (false, TCP) => &[1, 2, 3, 4],
        (false, _) => &[1, 2, 3],
    }
}

/// What the error contains: all of a small packet, or 8 bytes of its transport header.
fn quoted(family: Family) -> [usize; 2] {
    [1000, if at(family.client).is_ipv4() { 28 } else { 48 }]
}

fn router(family: Family) -> &'static str {
    if at(family.client).is_ipv4() { "203.0.113.99" } else { "2001:db8:1::99" }
}

/// A connection that the backend has answered. Returns the node's address and port towards a remote backend.
fn begin(node: &Node, family: Family, protocol: u8, backend: &str) -> String {
    node.serve_one(family, protocol, backend);
    node.arrives(&first(protocol, family.client, family.service));
    let port = source_port(&node.entries().1);
    std::net::SocketAddr::new(family.node_at_remote.parse().unwrap(), port).to_string()
}

#[test]
fn errors_about_answers_reach_a_local_backend() {
    with_node("programs::icmp::errors_about_answers_reach_a_local_backend", |node| {
        for (family, protocol) in all_kinds() {
            begin(node, family, protocol, family.pod);
            for (&kind, quoted) in
                types(family, protocol).iter().flat_map(|kind| quoted(family).map(|size| (kind, size)))
            {
                let about = frame(protocol, family.service, family.client);
                let bytes = error(&about, router(family), kind, quoted);
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &bytes);
                let expected = Error {
                    source: router(family).parse().unwrap(),
                    target: at(family.pod).ip(),
                    ttl: 64,
                    about: (family.pod.into(), family.client.into()),
                };
                assert_eq!((code, read(&bytes)), (NEXT, expected), "type {kind}");
            }
            clear(node);
        }
    });
}

#[test]
fn errors_about_answers_reach_a_remote_backend() {
    with_node("programs::icmp::errors_about_answers_reach_a_remote_backend", |node| {
        for (family, protocol) in all_kinds() {
            let own = begin(node, family, protocol, family.remote);
            for (&kind, quoted) in
                types(family, protocol).iter().flat_map(|kind| quoted(family).map(|size| (kind, size)))
            {
                let about = frame(protocol, family.service, family.client);
                let bytes = error(&about, router(family), kind, quoted);
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &bytes);
                let expected = Error {
                    source: at(&own).ip(),
                    target: at(family.remote).ip(),
                    ttl: 63,
                    about: (family.remote.into(), own.clone()),
                };
                assert_eq!((code, read(&bytes)), (REDIRECT, expected), "type {kind}");
            }
            clear(node);
        }
    });
}

#[test]
fn errors_about_requests_to_a_remote_backend_reach_the_client() {
    with_node("programs::icmp::errors_about_requests_to_a_remote_backend_reach_the_client", |node| {
        for (family, protocol) in all_kinds() {
            for (&kind, quoted) in
                types(family, protocol).iter().flat_map(|kind| quoted(family).map(|size| (kind, size)))
            {
                // Only a few errors about a UDP flow are translated in a second.
                let own = begin(node, family, protocol, family.remote);
                // A packet that is too big is one of this size.
                node.arrives(&frame(protocol, family.client, family.service).payload(1400));
                let about = frame(protocol, &own, family.remote);
                let bytes = error(&about, router(family), kind, quoted);
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.inner, &bytes);
                let expected = Error {
                    source: at(family.service).ip(),
                    target: at(family.client).ip(),
                    ttl: 63,
                    about: (family.client.into(), family.service.into()),
                };
                assert_eq!((code, read(&bytes)), (REDIRECT, expected), "type {kind}");
                clear(node);
            }
        }
    });
}

#[test]
fn errors_about_requests_to_a_local_backend_reach_the_client() {
    with_node("programs::icmp::errors_about_requests_to_a_local_backend_reach_the_client", |node| {
        for (family, protocol) in all_kinds() {
            begin(node, family, protocol, family.pod);
            for (&kind, quoted) in types(family, TCP).iter().flat_map(|kind| quoted(family).map(|size| (kind, size))) {
                let about = frame(protocol, family.client, family.pod);
                let from_pod = at(family.pod).ip().to_string();
                // From the backend itself, which the client does not know, and from a router.
                for (sender, shown) in
                    [(&from_pod[..], at(family.service).ip()), (router(family), router(family).parse().unwrap())]
                {
                    let bytes = error(&about, sender, kind, quoted);
                    let (code, bytes) = node.run(PacketHook::UplinkOut, node.uplink, &bytes);
                    let expected = Error {
                        source: shown,
                        target: at(family.client).ip(),
                        ttl: 64,
                        about: (family.client.into(), family.service.into()),
                    };
                    assert_eq!((code, read(&bytes)), (NEXT, expected), "type {kind}");
                }
            }
            clear(node);
        }
    });
}

#[test]
fn other_icmp_packets_are_left_alone() {
    with_node("programs::icmp::other_icmp_packets_are_left_alone", |node| {
        for family in [V4, V6] {
            let own = begin(node, family, UDP, family.remote);
            let about = frame(UDP, family.service, family.client);
            let is_v4 = at(family.client).is_ipv4();
            node.ignores("an echo request", &error(&about, router(family), if is_v4 { 8 } else { 128 }, 1000));
            node.ignores("neighbour discovery", &error(&about, router(family), if is_v4 { 5 } else { 135 }, 1000));
            let other = frame(UDP, family.service, &family.client.replace("40000", "40001"));
            node.ignores("another connection", &error(&other, router(family), 3, 1000));
            let other = frame(TCP, family.service, family.client).flags(SYN);
            node.ignores("another protocol", &error(&other, router(family), 3, 1000));
            // The error is not for the sender of the packet in it.
            let mut elsewhere = error(&about, router(family), 3, 1000);
            let at_target = if is_v4 { 14 + 19 } else { 14 + 39 };
            elsewhere[at_target] ^= 1;
            node.ignores("an error for another machine", &elsewhere);
            let mut bytes = error(&about, router(family), 3, 1000);
            for length in (14 + if is_v4 { 20 } else { 40 })..bytes.len() {
                node.ignores("cut short", &bytes[..length]);
            }
            bytes[22 - usize::from(!is_v4)] = 1;
            let (code, _) = node.run(PacketHook::UplinkIn, node.uplink, &bytes);
            assert_eq!(code, DROP, "it ends here, and an error is not answered");
            assert!(!own.is_empty());
            clear(node);
        }
    });
}

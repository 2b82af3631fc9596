//! Datagrams in fragments, and packets with options or extension headers.

use super::frames::{Frame, TCP, UDP, first, frame, read, read_ip, transport_sum};
use super::translation::{at, clear, source_port};
use super::{Lists, NEXT, Node, PacketHook, REDIRECT, V4, V6, with_node};

/// Joins fragments; checks that all have the same addresses, and the checksum of the whole.
fn join(fragments: &[Vec<u8>], protocol: u8) -> (String, String, Vec<u8>) {
    let parts: Vec<_> = fragments.iter().map(|bytes| read_ip(&bytes[14..])).collect();
    let (source, target) = (parts[0].0, parts[0].1);
    let mut whole = Vec::new();
    for (from, to, next, _, content) in parts {
        assert_eq!((from, to, next), (source, target, protocol));
        whole.extend(content);
    }
    assert_eq!(transport_sum(source, target, protocol, &whole), 0, "the checksum of the whole");
    let port = |at: usize| u16::from_be_bytes([whole[at], whole[at + 1]]);
    let [from, to] =
        [(source, port(0)), (target, port(2))].map(|(ip, port)| std::net::SocketAddr::new(ip, port).to_string());
    (from, to, whole)
}

/// All fragments pass the hook with the same verdict.
fn pass(node: &Node, hook: PacketHook, ifindex: u32, fragments: &[Vec<u8>], verdict: i32) -> Vec<Vec<u8>> {
    let pass = |bytes: &Vec<u8>| {
        let (code, bytes) = node.run(hook, ifindex, bytes);
        assert_eq!(code, verdict);
        bytes
    };
    fragments.iter().map(pass).collect()
}

#[test]
fn all_fragments_of_a_datagram_are_translated() {
    with_node("programs::fragments::all_fragments_of_a_datagram_are_translated", |node| {
        for (id, family) in [(1, V4), (2, V6)] {
            node.serve_one(family, UDP, family.pod);
            let request = first(UDP, family.client, family.service).payload(3001);
            let out = pass(node, PacketHook::UplinkIn, node.uplink, &request.fragments(id, 1200), NEXT);
            assert_eq!(out.len(), 3);
            let (from, to, _) = join(&out, UDP);
            assert_eq!((&from[..], &to[..]), (family.client, family.pod));
            let answer = frame(UDP, family.pod, family.client).payload(2999);
            let out = pass(node, PacketHook::UplinkOut, node.uplink, &answer.fragments(id + 10, 8), NEXT);
            let (from, to, _) = join(&out, UDP);
            assert_eq!((&from[..], &to[..]), (family.service, family.client));
            clear(node);

            node.serve_one(family, UDP, family.remote);
            let out = pass(node, PacketHook::UplinkIn, node.uplink, &request.fragments(id + 20, 1200), REDIRECT);
            let own = std::net::SocketAddr::new(family.node_at_remote.parse().unwrap(), source_port(&node.entries().1));
            let (from, to, _) = join(&out, UDP);
            assert_eq!((from, &to[..]), (own.to_string(), family.remote));
            let answer = frame(UDP, family.remote, &own.to_string()).payload(2000);
            let out = pass(node, PacketHook::UplinkIn, node.inner, &answer.fragments(id + 30, 1024), REDIRECT);
            let (from, to, _) = join(&out, UDP);
            assert_eq!((&from[..], &to[..]), (family.service, family.client));
            clear(node);
        }
    });
}

#[test]
fn a_fragment_before_the_first_one_is_left_alone() {
    with_node("programs::fragments::a_fragment_before_the_first_one_is_left_alone", |node| {
        for (id, family) in [(1, V4), (2, V6)] {
            node.serve_one(family, UDP, family.pod);
            let fragments = first(UDP, family.client, family.service).payload(3000).fragments(id, 1200);
            node.ignores("too early", &fragments[1]);
            assert_eq!(node.run(PacketHook::UplinkIn, node.uplink, &fragments[0]).0, NEXT);
            let (_, last) = node.run(PacketHook::UplinkIn, node.uplink, &fragments[2]);
            assert_eq!(read_ip(&last[14..]).1, at(family.pod).ip(), "the last one, after the first one");
            // Another datagram is not affected.
            let other = first(UDP, family.client, family.service).payload(3000).fragments(id + 50, 1200);
            let out = pass(node, PacketHook::UplinkIn, node.uplink, &other, NEXT);
            assert_eq!(join(&out, UDP).1, family.pod);
            // Ports are not valid for ever: the id may be another datagram's by now.
            node.change("fragments", |value| {
                let seen = u32::from_ne_bytes(value[4..8].try_into().unwrap());
                value[4..8].copy_from_slice(&(seen.wrapping_sub(31)).to_ne_bytes());
            });
            node.ignores("too late", &fragments[2]);
            clear(node);
        }
    });
}

#[test]
fn fragments_that_cut_a_header_are_left_alone() {
    with_node("programs::fragments::fragments_that_cut_a_header_are_left_alone", |node| {
        for (id, family) in [(1, V4), (2, V6)] {
            node.serve_one(family, TCP, family.pod);
            let fragments = first(TCP, family.client, family.service).payload(100).fragments(id, 16);
            for fragment in &fragments {
                node.ignores("16 bytes of a TCP header", fragment);
            }
            clear(node);
        }
        assert_eq!((node.passed(0), node.dropped(0)), (2, 0), "the first fragments are counted");
    });
}

#[test]
fn a_fragment_is_not_answered() {
    with_node("programs::fragments::a_fragment_is_not_answered", |node| {
        node.serve(&Lists { protocol: UDP, has_backends: false, ..Lists::default() });
        node.publish(V4.service, UDP, 0);
        let fragments = first(UDP, V4.client, V4.service).payload(3000).fragments(9, 1200);
        assert_eq!(node.run(PacketHook::UplinkIn, node.uplink, &fragments[0]).0, super::DROP);
        node.ignores("no ports are known", &fragments[1]);
    });
}

#[test]
fn options_and_extension_headers_are_kept() {
    with_node("programs::fragments::options_and_extension_headers_are_kept", |node| {
        for protocol in [TCP, UDP] {
            node.serve_one(V4, protocol, V4.pod);
            for length in (4..=40).step_by(4) {
                let options = vec![1; length];
                let request = Frame { options: options.clone(), ..first(protocol, V4.client, V4.service) };
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &request.bytes());
                assert_eq!((code, read(&bytes).target), (NEXT, at(V4.pod)), "{length}");
                assert_eq!(&bytes[34..34 + length], &options[..]);
            }
            clear(node);
            node.serve_one(V6, protocol, V6.pod);
            let destination = (60, vec![0, 0, 1, 4, 0, 0, 0, 0]);
            let long = (60, [&[0, 1, 1, 12][..], &[0; 12]].concat());
            let auth = (51, [&[0, 4, 0, 0][..], &[7; 20]].concat());
            let spent = (43, vec![0, 0, 4, 0, 0, 0, 0, 0]);
            let hop = (0, vec![0, 0, 1, 4, 0, 0, 0, 0]);
            for extensions in [
                vec![hop.clone()],
                vec![hop.clone(), destination.clone()],
                vec![hop.clone(), long.clone(), spent.clone()],
                vec![auth.clone(), destination.clone()],
                vec![hop.clone(), destination.clone(), spent.clone(), auth.clone(), long.clone(), destination.clone()],
            ] {
                let count = extensions.len();
                let request = Frame { extensions, ..first(protocol, V6.client, V6.service) };
                let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &request.bytes());
                assert_eq!((code, read(&bytes).target), (NEXT, at(V6.pod)), "{count} extension headers");
            }
            let ignored = [
                ("seven extension headers", vec![destination.clone(); 7]),
                ("another destination first", vec![(43, vec![0, 0, 4, 1, 0, 0, 0, 0])]),
                ("an unknown extension header", vec![(253, vec![0; 8])]),
                ("an extension header beyond the packet", vec![(60, vec![0, 200, 0, 0, 0, 0, 0, 0])]),
            ];
            for (what, extensions) in ignored {
                let request = Frame { extensions, ..first(protocol, V6.client, V6.service) };
                node.ignores(what, &request.bytes());
            }
            clear(node);
        }
    });
}

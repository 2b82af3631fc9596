//! The maps under pressure: entries that are missing, invalid or do not fit, and what is counted.

use std::net::SocketAddr;

use libbpf_rs::{MapCore as _, MapFlags};
use nodelb_core::model::addr::Addr;
use nodelb_core::model::ipsec::{Policies, Policy, PolicyDirection, Selector};
use nodelb_core::model::source_range::SourceRange;
use nodelb_datapath::packets::{ConnectionEnds, ConnectionReader, MOST_POLICIES, Packet, PolicyWriter};

use super::frames::{ACK, SYN, TCP, UDP, first, frame, read};
use super::translation::{at, clear, source_port};
use super::{DIRECT, DROP, Lists, NEXT, PacketHook, REDIRECT, REVERSE, SERVICE, V4, V6, with_node};

/// Removes the entries for the backend's packets.
fn remove_reverse(node: &super::Node, map: &str) {
    let map = node.map(map);
    for key in map.keys().collect::<Vec<_>>() {
        let value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        if u32::from_ne_bytes(value[60..64].try_into().unwrap()) & REVERSE != 0 {
            map.delete(&key).unwrap();
        }
    }
}

#[test]
fn an_answer_entry_that_was_evicted_is_restored() {
    with_node("programs::entries::an_answer_entry_that_was_evicted_is_restored", |node| {
        for family in [V4, V6] {
            node.serve_one(family, TCP, family.remote);
            node.arrives(&first(TCP, family.client, family.service));
            let before = node.entries().1;
            remove_reverse(node, "half_open");
            assert_eq!(node.entries().1.len(), 1);
            let (code, sent) = node.arrives(&first(TCP, family.client, family.service));
            assert_eq!((code, sent.target), (REDIRECT, at(family.remote)));
            let after = node.entries().1;
            assert_eq!((after.len(), source_port(&after)), (2, source_port(&before)), "with the same port");
            let own = sent.source.to_string();
            let (code, back) = node.answered(&frame(TCP, family.remote, &own).flags(SYN | ACK));
            assert_eq!((code, back.source, back.target), (REDIRECT, at(family.service), at(family.client)));
            clear(node);
        }
    });
}

#[test]
fn an_entry_with_a_wrong_seal_is_no_entry() {
    with_node("programs::entries::an_entry_with_a_wrong_seal_is_no_entry", |node| {
        node.serve_one(V4, TCP, V4.pod);
        node.arrives(&first(TCP, V4.client, V4.service));
        node.leaves(&frame(TCP, V4.pod, V4.client).flags(SYN | ACK));
        node.arrives(&frame(TCP, V4.client, V4.service));
        assert_eq!(node.entries().0.len(), 2);
        // Each field that a program writes into a packet or decides by.
        for field in [0, 13, 16, 31, 32, 34, 36, 40, 48, 56, 64] {
            node.change("connections", |value| value[field] ^= 1);
            node.ignores(&format!("byte {field}"), &frame(TCP, V4.client, V4.service).bytes());
            let answer = frame(TCP, V4.pod, V4.client).bytes();
            assert_eq!(node.run(PacketHook::UplinkOut, node.uplink, &answer), (NEXT, answer), "byte {field}");
            node.change("connections", |value| value[field] ^= 1);
        }
        // The hint and the counts are not sealed.
        for field in [44, 52, 72] {
            node.change("connections", |value| value[field] ^= 1);
            assert_eq!(node.arrives(&frame(TCP, V4.client, V4.service)).1.target, at(V4.pod), "byte {field}");
        }
        let key = super::frontend_key(at(V4.service), TCP);
        let mut value = super::sealed(&key, 0);
        value[0] ^= 1;
        node.set("outside", &key, &value);
        node.ignores("a frontend with a wrong seal", &first(TCP, "203.0.113.9:1000", V4.service).bytes());
    });
}

/// 1,024 entries fit into `connections`: 512 connections.
#[test]
fn connections_that_do_not_fit_stay_half_open() {
    with_node("programs::entries::connections_that_do_not_fit_stay_half_open", |node| {
        node.serve_one(V4, TCP, V4.process);
        let mut served = 0;
        for port in 20_000..20_600 {
            let client = format!("203.0.113.2:{port}");
            node.arrives(&first(TCP, &client, V4.service));
            node.leaves(&frame(TCP, V4.process, &client).flags(SYN | ACK));
            served += u32::from(node.arrives(&frame(TCP, &client, V4.service)).1.target == at(V4.process));
        }
        assert_eq!(served, 600, "all are served");
        let (established, half_open) = node.entries();
        assert!((1000..=1024).contains(&established.len()), "{}", established.len());
        assert_eq!(established.len() % 2, 0, "whole connections");
        assert!(half_open.len() >= 100, "{}", half_open.len());
        assert!(node.passed(10) >= 88, "counted");
        let last = frame(TCP, "203.0.113.2:20599", V4.service);
        assert_eq!(node.arrives(&last).1.target, at(V4.process), "and go on");
    });
}

/// Clients with false addresses turn over `half_open`, and nothing else.
#[test]
fn a_flood_does_not_end_connections() {
    with_node("programs::entries::a_flood_does_not_end_connections", |node| {
        node.serve_one(V4, TCP, V4.pod);
        let establish = |client: &str| {
            node.arrives(&first(TCP, client, V4.service));
            node.leaves(&frame(TCP, V4.pod, client).flags(SYN | ACK));
            node.arrives(&frame(TCP, client, V4.service));
        };
        for port in 50_000..50_020 {
            establish(&format!("203.0.113.2:{port}"));
        }
        let before = node.entries().0;
        assert_eq!(before.len(), 40);
        for spoofed in 0..5000 {
            let client = format!("198.18.{}.{}:{}", spoofed / 200, spoofed % 200 + 1, 1000 + spoofed);
            assert_eq!(node.arrives(&first(TCP, &client, V4.service)).1.target, at(V4.pod), "{spoofed}");
        }
        assert_eq!(node.entries().0, before);
        establish("203.0.113.2:50020");
        assert_eq!(node.entries().0.len(), 42, "and new ones are served");
    });
}

/// `struct packet_counts` and `struct counter`, of all CPUs.
#[test]
fn packets_and_connections_are_counted() {
    with_node("programs::entries::packets_and_connections_are_counted", |node| {
        node.serve_one(V4, TCP, V4.remote);
        for _ in 0..3 {
            node.arrives(&first(TCP, V4.client, V4.service));
        }
        let own = format!("{}:{}", V4.node_at_remote, source_port(&node.entries().1));
        node.answered(&frame(TCP, V4.remote, &own).flags(SYN | ACK));
        node.serve(&Lists { has_backends: false, ..Lists::default() });
        node.arrives(&first(TCP, "203.0.113.2:40001", V4.service));
        let counts = [0, 1, 2, 3, 4].map(|index| node.counted(index));
        assert_eq!(counts, [3, 1, 1, 1, 1], "forward, reverse, begun, answered, ports tried");
        let map = node.map("outside_counters");
        let shards = map.max_entries() / 16;
        let mut service = [0; 2];
        for shard in 0..shards {
            let value = map.lookup(&(shard * 16 + SERVICE).to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            service[0] += u64::from_ne_bytes(value[..8].try_into().unwrap());
            service[1] += u64::from_ne_bytes(value[8..].try_into().unwrap());
        }
        assert_eq!(service, [1, 1], "translated, refused");
        let entries = node.entries().1;
        let bytes = |reverse: u32| entries.iter().find(|entry| entry.flags & REVERSE == reverse).unwrap().bytes;
        assert_eq!((bytes(0), bytes(REVERSE)), (3 * 40, 67), "bytes of IP packets");
    });
}

/// Another node has begun the connection, or this one has forgotten it.
#[test]
fn a_connection_that_is_taken_over_is_not_counted_as_a_new_one() {
    with_node("programs::entries::a_connection_that_is_taken_over_is_not_counted_as_a_new_one", |node| {
        let begun = || node.counted(2);
        let asked = |port: u16| frame(TCP, &format!("203.0.113.2:{port}"), V4.service);
        node.settings([0, 2, 1, 0]);
        node.serve_one(V4, TCP, V4.pod);
        assert_eq!(node.arrives(&asked(40_000)).1.target, at(V4.pod));
        node.serve_one(V4, TCP, V4.remote);
        node.forward(DIRECT);
        let (code, sent) = node.arrives(&asked(40_001));
        assert_eq!((code, sent.target), (REDIRECT, at(V4.service)));
        assert_eq!(begun(), 0);
        node.arrives(&first(TCP, "203.0.113.2:40002", V4.service));
        assert_eq!(begun(), 1);
    });
}

#[test]
fn large_packets_that_a_device_splits_pass() {
    with_node("programs::entries::large_packets_that_a_device_splits_pass", |node| {
        for family in [V4, V6] {
            node.serve_one(family, TCP, family.remote);
            node.arrives(&first(TCP, family.client, family.service));
            let large = frame(TCP, family.client, family.service).payload(3000);
            let run = |gso_size| {
                let packet = Packet { bytes: large.bytes(), ifindex: node.uplink, came_by: 0, gso_size };
                node.programs.run(PacketHook::UplinkIn, &packet).unwrap()
            };
            let sent = run(1400);
            assert_eq!((sent.code, read(&sent.bytes).target), (REDIRECT, at(family.remote)));
            // The segments would have 1,500 bytes without their headers.
            let back = run(1500);
            assert_eq!(back.code, REDIRECT);
            super::refusal::check_icmp(
                &large,
                &back.bytes,
                if family.service == V4.service { (3, 4) } else { (2, 0) },
                1500,
            );
            clear(node);
        }
        assert_eq!((node.dropped(2), node.dropped(14)), (1, 1), "IPv4 without DF has its own reason");
    });
}

#[test]
fn what_follows_the_ip_packet_is_no_part_of_it() {
    with_node("programs::entries::what_follows_the_ip_packet_is_no_part_of_it", |node| {
        node.serve_one(V4, TCP, V4.pod);
        let syn = first(TCP, V4.client, V4.service);
        let mut padded = syn.bytes();
        padded.extend([0x5a; 6]);
        let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &padded);
        assert_eq!((code, read(&bytes).target, &bytes[54..]), (NEXT, at(V4.pod), &[0x5a; 6][..]));
        node.serve(&Lists { has_backends: false, ..Lists::default() });
        let other = first(TCP, "203.0.113.2:40001", V4.service);
        let mut padded = other.bytes();
        padded.extend([0x5a; 6]);
        let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &padded);
        assert_eq!((code, read(&bytes).acknowledged), (REDIRECT, 1001), "the padding is no payload");
    });
}

#[test]
fn a_node_that_does_not_forward_only_counts() {
    with_node("programs::entries::a_node_that_does_not_forward_only_counts", |node| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        node.serve_one(V4, TCP, V4.remote);
        let (code, sent) = node.arrives(&first(TCP, V4.client, V4.service));
        assert_eq!((code, sent.target, sent.source), (NEXT, at(V4.remote), at(V4.client)), "the stack drops it");
        assert_eq!((node.passed(9), node.dropped(9)), (1, 0));
        clear(node);
        // A connection that began before: nothing is forwarded past the stack either.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        assert_eq!(node.arrives(&first(TCP, V4.client, V4.service)).0, REDIRECT);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        assert_eq!(node.arrives(&first(TCP, V4.client, V4.service)).0, DROP);
        assert_eq!((node.passed(9), node.dropped(9)), (1, 1));
    });
}

#[test]
fn connections_with_an_address_that_the_node_no_longer_has_end() {
    with_node("programs::entries::connections_with_an_address_that_the_node_no_longer_has_end", |node| {
        let reader = ConnectionReader::new(node.programs.maps()).unwrap();
        let end = |own: Option<Addr>| {
            let is_gone = |ends: &ConnectionEnds| ends.past_stack.is_some_and(|(source, _)| own != Some(source.addr));
            reader.end(&is_gone).unwrap()
        };
        for family in [V4, V6] {
            for protocol in [TCP, UDP] {
                node.serve_one(family, protocol, family.remote);
                let (_, sent) = node.arrives(&first(protocol, family.client, family.service));
                let (own, count) = (sent.source.ip().into(), node.entries().1.len());
                assert_eq!((end(Some(own)), node.entries().1.len()), (0, count));
                assert_eq!((end(None), node.entries().1.len()), (2, 0));
                // Backends here see the client's address.
                node.serve_one(family, protocol, family.pod);
                node.arrives(&first(protocol, family.client, family.service));
                assert_eq!(end(None), 0);
                clear(node);
            }
        }
    });
}

#[test]
fn what_ipsec_protects_is_not_begun_and_ends() {
    with_node("programs::entries::what_ipsec_protects_is_not_begun_and_ends", |node| {
        let reader = ConnectionReader::new(node.programs.maps()).unwrap();
        let writer = PolicyWriter::new(node.programs.maps()).unwrap();
        assert_eq!(node.map("ipsec_policies").max_entries() as usize, 2 * MOST_POLICIES);
        for family in [V4, V6] {
            node.serve_one(family, TCP, family.remote);
            let client = at(family.client).ip();
            let begin = |port| node.arrives(&first(TCP, &SocketAddr::new(client, port).to_string(), family.service)).0;
            assert_eq!(begin(40_001), REDIRECT);
            let remote = Addr::from(at(family.remote).ip());
            let (target, everything) = (SourceRange::new(remote, 128), Selector::everything(remote.family()));
            let selector = Selector { target, ..everything };
            let policy = Policy { direction: PolicyDirection::Out, priority: 0, selector, is_protected: true };
            // The list that a new one replaces is in the other half of the map.
            for is_protected in [true, false, true] {
                let policies = Policies::new(&[Policy { is_protected, ..policy }], MOST_POLICIES);
                writer.set(&policies).unwrap();
                assert_eq!(begin(if is_protected { 40_002 } else { 40_003 }) == DROP, is_protected, "{policies:?}");
            }
            let policies = Policies::new(&[policy], MOST_POLICIES);
            let covers = |ends: &ConnectionEnds| {
                ends.past_stack.is_some_and(|(source, backend)| policies.protect(source, backend))
            };
            assert_eq!((reader.end(&covers).unwrap(), node.entries().1.len()), (4, 0));
            writer.set(&Policies::default()).unwrap();
            assert_eq!(begin(40_001), REDIRECT);
            clear(node);
        }
        assert_eq!(node.dropped(20), 4);
    });
}

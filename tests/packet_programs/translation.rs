//! Packets of connections: from clients, from backends, and the entries that they leave.

use std::net::SocketAddr;

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_datapath::packets::{ForeignConnections, ForeignPorts};

use super::frames::{ACK, FIN, Frame, PEER_MAC, RST, SYN, Seen, TCP, UDP, first, frame};
use super::{
    DROP, Entry, Family, Lists, NEXT, NODE_MAC, Node, REDIRECT, REDIRECTED, REPLIED, REVERSE, V4, V6, all_kinds,
    backend_id, with_node,
};

pub(super) fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// What the packet should look like between these addresses, with a TTL that is lower by `hops`.
fn seen(frame: &Frame, source: SocketAddr, target: SocketAddr, hops: u8) -> Seen {
    Seen {
        source,
        target,
        protocol: frame.protocol,
        tcp_flags: if frame.protocol == TCP { frame.tcp_flags } else { ACK },
        sequence: if frame.protocol == TCP { frame.sequence } else { 1000 },
        acknowledged: if frame.protocol == TCP { frame.acknowledged } else { 7000 },
        ttl: frame.ttl - hops,
        payload: frame.payload.clone(),
        // The kernel replaces them when it redirects the packet.
        target_mac: NODE_MAC,
        source_mac: PEER_MAC,
    }
}

/// The port that the node uses towards the remote backend, from the entries.
pub(super) fn source_port(entries: &[Entry]) -> u16 {
    let reverse: Vec<_> = entries.iter().filter(|entry| entry.flags & REVERSE != 0).collect();
    let [reverse] = reverse[..] else { panic!("one connection: {entries:?}") };
    reverse.target.port()
}

/// A connection to a backend on this node, from the first packet until it is in `connections`.
fn local_connection(node: &Node, family: Family, protocol: u8, backend: &str) {
    let (client, service, backend) = (family.client, family.service, at(backend));
    let request = first(protocol, client, service);
    assert_eq!(node.arrives(&request), (NEXT, seen(&request, at(client), backend, 0)), "the first packet");
    let (established, half_open) = node.entries();
    assert_eq!((established.len(), half_open.len()), (0, 2), "only begun");
    let again = first(protocol, client, service);
    assert_eq!(node.arrives(&again), (NEXT, seen(&again, at(client), backend, 0)), "the same packet again");
    assert_eq!(node.entries().1.len(), 2, "no second connection");

    let answer = frame(protocol, &backend.to_string(), client).flags(SYN | ACK);
    assert_eq!(node.leaves(&answer), (NEXT, seen(&answer, at(service), at(client), 0)), "the answer");
    assert!(node.entries().1.iter().any(|entry| entry.flags == REVERSE | REPLIED), "the answer is noted");
    assert_eq!(node.entries().0.len(), 0);

    let next = frame(protocol, client, service);
    assert_eq!(node.arrives(&next), (NEXT, seen(&next, at(client), backend, 0)), "the client's next packet");
    let (established, half_open) = node.entries();
    assert_eq!((established.len(), half_open.len()), (2, 0), "moved: {established:?} {half_open:?}");
    let backend_id = backend_id(backend);
    assert!(established.iter().all(|entry| entry.backend == backend_id && entry.flags & REDIRECTED == 0));
    assert_eq!(node.arrives(&next), (NEXT, seen(&next, at(client), backend, 0)), "a known connection");
    let answer = frame(protocol, &backend.to_string(), client);
    assert_eq!(node.leaves(&answer), (NEXT, seen(&answer, at(service), at(client), 0)), "a known answer");
}

#[test]
fn local_backends_are_reached_by_the_stack() {
    with_node("programs::translation::local_backends_are_reached_by_the_stack", |node| {
        for (family, protocol) in all_kinds() {
            for backend in [family.pod, family.process] {
                node.serve_one(family, protocol, backend);
                local_connection(node, family, protocol, backend);
                clear(node);
            }
        }
    });
}

pub(super) fn clear(node: &Node) {
    for map in ["connections", "half_open"] {
        let map = node.map(map);
        for key in libbpf_rs::MapCore::keys(map).collect::<Vec<_>>() {
            libbpf_rs::MapCore::delete(map, &key).unwrap();
        }
    }
}

#[test]
fn remote_backends_see_the_node_and_packets_are_redirected() {
    with_node("programs::translation::remote_backends_see_the_node_and_packets_are_redirected", |node| {
        for (family, protocol) in all_kinds() {
            let (client, service, backend) = (family.client, family.service, at(family.remote));
            node.serve_one(family, protocol, family.remote);
            let request = first(protocol, client, service);
            let (code, sent) = node.arrives(&request);
            let port = source_port(&node.entries().1);
            assert!((10000..=10099).contains(&port), "{port}");
            let own = SocketAddr::new(family.node_at_remote.parse().unwrap(), port);
            assert_eq!((code, sent), (REDIRECT, seen(&request, own, backend, 1)), "the first packet");

            let answer = frame(protocol, family.remote, &own.to_string()).flags(SYN | ACK);
            assert_eq!(node.answered(&answer), (REDIRECT, seen(&answer, at(service), at(client), 1)), "the answer");
            let next = frame(protocol, client, service);
            assert_eq!(node.arrives(&next), (REDIRECT, seen(&next, own, backend, 1)), "the next packet");
            let (established, half_open) = node.entries();
            assert_eq!((established.len(), half_open.len()), (2, 0));
            assert!(established.iter().all(|entry| entry.flags & REDIRECTED != 0 && !entry.leaving));
            assert_eq!(node.arrives(&next), (REDIRECT, seen(&next, own, backend, 1)), "a known connection");
            let answer = frame(protocol, family.remote, &own.to_string());
            assert_eq!(node.answered(&answer), (REDIRECT, seen(&answer, at(service), at(client), 1)));
            clear(node);
        }
    });
}

#[test]
fn node_ports_are_served_on_addresses_of_the_node() {
    with_node("programs::translation::node_ports_are_served_on_addresses_of_the_node", |node| {
        for (family, protocol) in all_kinds() {
            node.serve(&Lists { cluster: &[family.pod], protocol, ..Lists::default() });
            let unspecified = if at(family.node).is_ipv4() { "0.0.0.0:30080" } else { "[::]:30080" };
            node.publish(unspecified, protocol, 0);
            let request = first(protocol, family.client, family.node);
            let expected = seen(&request, at(family.client), at(family.pod), 0);
            assert_eq!(node.arrives(&request), (NEXT, expected));
            clear(node);
            let elsewhere = at(family.service).ip();
            let other = first(protocol, family.client, &SocketAddr::new(elsewhere, 30080).to_string());
            node.ignores("an address that is not the node's", &other.bytes());
            let unspecified = first(protocol, family.client, unspecified);
            node.ignores("the unspecified address", &unspecified.bytes());
        }
    });
}

/// The second packet without an answer is only repeated; the third SYN comes after both sides have closed.
#[test]
fn a_syn_begins_again_only_after_the_end() {
    with_node("programs::translation::a_syn_begins_again_only_after_the_end", |node| {
        for family in [V4, V6] {
            let (client, service) = (family.client, family.service);
            let both = [family.pod, family.process];
            node.serve_one(family, TCP, family.pod);
            local_connection(node, family, TCP, family.pod);
            // The service has another backend now, but keeps the first one.
            node.serve(&Lists { cluster: &both, ..Lists::default() });
            let syn = first(TCP, client, service);
            for _ in 0..16 {
                assert_eq!(node.arrives(&syn).1.target, at(family.pod), "the connection is open");
            }
            node.arrives(&frame(TCP, client, service).flags(FIN | ACK));
            for _ in 0..16 {
                assert_eq!(node.arrives(&syn).1.target, at(family.pod), "only the client has closed");
            }
            node.leaves(&frame(TCP, family.pod, client).flags(FIN | ACK));
            let created = node.entries().0.len();
            node.serve_one(family, TCP, family.process);
            assert_eq!(node.arrives(&syn).1.target, at(family.process), "both have closed");
            let (established, half_open) = node.entries();
            assert_eq!((created, established.len(), half_open.len()), (2, 0, 2), "the old entries are gone");
            clear(node);
        }
    });
}

#[test]
fn a_syn_after_rst_begins_again() {
    with_node("programs::translation::a_syn_after_rst_begins_again", |node| {
        node.serve_one(V4, TCP, V4.remote);
        let syn = first(TCP, V4.client, V4.service);
        node.arrives(&syn);
        let port = source_port(&node.entries().1);
        let own = format!("{}:{port}", V4.node_at_remote);
        node.answered(&frame(TCP, V4.remote, &own).flags(RST | ACK));
        node.arrives(&syn);
        let entries = node.entries().1;
        assert_eq!(entries.len(), 2);
        assert_ne!(source_port(&entries), port, "another port");
    });
}

#[test]
fn tcp_stays_with_a_backend_that_left_the_list() {
    with_node("programs::translation::tcp_stays_with_a_backend_that_left_the_list", |node| {
        node.serve_one(V4, TCP, V4.pod);
        local_connection(node, V4, TCP, V4.pod);
        node.serve_one(V4, TCP, V4.process);
        let next = frame(TCP, V4.client, V4.service);
        assert_eq!(node.arrives(&next).1.target, at(V4.pod), "terminating");
        let syn = first(TCP, V4.client, V4.service);
        assert_eq!(node.arrives(&syn).1.target, at(V4.pod), "anyone can send a SYN; the backend answers it");
        assert_eq!(node.arrives(&next.flags(RST | ACK)).1.target, at(V4.pod), "the client has begun again");
        assert_eq!(node.arrives(&syn).1.target, at(V4.process), "a new connection by the same port");
        assert_eq!(node.entries().0.len(), 0);
    });
}

#[test]
fn udp_moves_when_its_backend_goes() {
    with_node("programs::translation::udp_moves_when_its_backend_goes", |node| {
        for family in [V4, V6] {
            node.serve_one(family, UDP, family.pod);
            local_connection(node, family, UDP, family.pod);
            let list = [family.process, family.pod];
            node.serve(&Lists { cluster: &list, protocol: UDP, ..Lists::default() });
            let next = frame(UDP, family.client, family.service);
            assert_eq!(node.arrives(&next).1.target, at(family.pod), "its place in the list changed");
            node.serve_one(family, UDP, family.remote);
            let (code, sent) = node.arrives(&next);
            assert_eq!((code, sent.target), (REDIRECT, at(family.remote)), "at the next datagram");
            let (established, half_open) = node.entries();
            assert_eq!((established.len(), half_open.len()), (0, 2), "the old entries are gone");
            clear(node);
        }
    });
}

#[test]
fn two_addresses_from_one_client_port_get_two_ports() {
    with_node("programs::translation::two_addresses_from_one_client_port_get_two_ports", |node| {
        node.serve_one(V4, TCP, V4.pod);
        local_connection(node, V4, TCP, V4.pod);
        node.publish("198.51.100.201:80", TCP, 0);
        let (code, second) = node.arrives(&first(TCP, V4.client, "198.51.100.201:80"));
        assert_eq!((code, second.target), (NEXT, at(V4.pod)));
        assert_eq!(second.source, at("203.0.113.2:40001"), "the first one has the client's own port");
        let answer = frame(TCP, V4.pod, "203.0.113.2:40001").flags(SYN | ACK);
        let (_, answer) = node.leaves(&answer);
        assert_eq!((answer.source, answer.target), (at("198.51.100.201:80"), at(V4.client)));
    });
}

#[test]
fn a_source_port_is_used_once_for_a_backend() {
    with_node("programs::translation::a_source_port_is_used_once_for_a_backend", |node| {
        node.serve_one(V4, TCP, V4.remote);
        let mut ports = Vec::new();
        for client in 0..60_u16 {
            let (code, sent) = node.arrives(&first(TCP, &format!("203.0.113.2:{}", 41000 + client), V4.service));
            assert_eq!(code, REDIRECT, "{client}");
            ports.push(sent.source.port());
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 60);
    });
}

/// 100 ports, all of open connections.
#[test]
fn without_a_free_port_a_client_is_refused() {
    with_node("programs::translation::without_a_free_port_a_client_is_refused", |node| {
        node.serve_one(V4, TCP, V4.remote);
        let syn = |port: u16| first(TCP, &format!("203.0.113.2:{port}"), V4.service);
        let mut ports = std::collections::BTreeSet::new();
        for client in 1000..1600 {
            let (_, sent) = node.arrives(&syn(client));
            if sent.tcp_flags == SYN {
                let own = format!("{}:{}", V4.node_at_remote, sent.source.port());
                node.answered(&frame(TCP, V4.remote, &own).flags(SYN | ACK));
                node.arrives(&frame(TCP, &format!("203.0.113.2:{client}"), V4.service));
                assert!(ports.insert(sent.source.port()), "an open connection keeps its port");
            }
        }
        assert_eq!((ports.len(), node.entries().0.len()), (100, 200), "all ports are in use");
        assert_eq!(node.dropped(7), 500);
        let (code, refused) = node.arrives(&syn(2000));
        assert_eq!((code, refused.tcp_flags), (REDIRECT, RST | ACK));
        node.serve_one(V4, UDP, V4.remote);
        assert_eq!(node.arrives(&first(UDP, V4.client, V4.service)).0, REDIRECT, "UDP has ports of its own");
    });
}

/// The search of each client begins at the same port, as after a restart of the backend.
#[test]
fn a_block_of_ports_in_use_stops_no_client() {
    with_node("programs::translation::a_block_of_ports_in_use_stops_no_client", |node| {
        let node = node.with_programs(10_000..=10_399);
        node.serve_one(V4, UDP, V4.remote);
        let cursor = backend_id(at(V4.remote)) % 4_096;
        let mut ports = std::collections::BTreeSet::new();
        for client in 0..200_u16 {
            node.set("snat_cursors", &cursor.to_ne_bytes(), &[0; 4]);
            let (code, sent) = node.arrives(&first(UDP, &format!("203.0.113.2:{}", 41_000 + client), V4.service));
            assert_eq!(code, REDIRECT, "{client}");
            ports.insert(sent.source.port());
        }
        assert_eq!(ports.len(), 200);
        assert!((10_000..10_008).all(|port| ports.contains(&port)), "near ports are tried first");
    });
}

/// The kernel's range of ports for sockets includes those of the programs; a socket has each of them but one.
#[test]
fn ports_of_sockets_are_not_used() {
    with_node("programs::translation::ports_of_sockets_are_not_used", |node| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 10063").unwrap();
        for (family, protocol) in all_kinds() {
            let node = node.with_programs(10_000..=10_063);
            let own: std::net::IpAddr = family.node_at_remote.parse().unwrap();
            let free = 10_040;
            let ports = (10_000..=10_063).filter(|port| *port != free);
            let sockets: Vec<Box<dyn std::any::Any>> = ports
                .map(|port| -> Box<dyn std::any::Any> {
                    if protocol == TCP {
                        Box::new(std::net::TcpListener::bind((own, port)).unwrap())
                    } else {
                        Box::new(std::net::UdpSocket::bind((own, port)).unwrap())
                    }
                })
                .collect();
            node.serve_one(family, protocol, family.remote);
            let (code, sent) = node.arrives(&first(protocol, family.client, family.service));
            assert_eq!((code, sent.source.port()), (REDIRECT, free));
            drop(sockets);
        }
    });
}

/// Connection tracking is a module here: the daemon lists what it knows.
#[test]
fn ports_of_listed_connections_are_not_used() {
    with_node("programs::translation::ports_of_listed_connections_are_not_used", |node| {
        for (family, protocol) in all_kinds() {
            let range = 10_000..=10_003;
            let node = node.with_listed(range.clone(), Some(ForeignConnections::new()));
            let foreign = ForeignPorts::new(node.programs.maps(), range.clone()).unwrap();
            let kind = if protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
            let end = |ip: std::net::IpAddr, port| L4Addr::new(ip.into(), port, kind);
            let (own, backend) = (family.node_at_remote.parse().unwrap(), at(family.remote));
            let all_but = |free: &[u16]| -> ForeignConnections {
                let taken = range.clone().filter(|port| !free.contains(port));
                taken.map(|port| (end(backend.ip(), backend.port()), end(own, port))).collect()
            };
            node.serve_one(family, protocol, family.remote);
            let ask = |client: u16| {
                let client = SocketAddr::new(at(family.client).ip(), client).to_string();
                let (code, sent) = node.arrives(&first(protocol, &client, family.service));
                (code == REDIRECT && sent.source.ip() == own).then_some(sent.source.port())
            };
            foreign.set(&all_but(&[10_002])).unwrap();
            assert_eq!(ask(41_000), Some(10_002));
            foreign.set(&all_but(&[10_001, 10_002])).unwrap();
            assert_eq!(ask(41_001), Some(10_001), "the list of now");
            let of_another = [(end(own, backend.port()), end(own, 10_003))].into();
            foreign.set(&of_another).unwrap();
            let rest = [ask(41_002), ask(41_003)];
            assert!(
                rest.contains(&Some(10_003)) && rest.contains(&Some(10_000)),
                "a port of another backend: {rest:?}"
            );
        }
    });
}

#[test]
fn an_unknown_tcp_packet_is_passed_on_or_reset() {
    with_node("programs::translation::an_unknown_tcp_packet_is_passed_on_or_reset", |node| {
        node.serve_one(V4, TCP, V4.pod);
        node.publish("0.0.0.0:30080", TCP, 0);
        let unknown = frame(TCP, V4.client, V4.service).payload(100);
        node.ignores("with unknown = \"pass\"", &unknown.bytes());
        node.settings([0, 1, 1, 0]);
        let (code, reset) = node.arrives(&unknown);
        assert_eq!((code, reset.tcp_flags, reset.sequence), (REDIRECT, RST, unknown.acknowledged));
        node.ignores("an address of the node", &frame(TCP, V4.client, V4.node).bytes());
        node.settings([0, 2, 1, 0]);
        assert_eq!(node.arrives(&unknown).1.target, at(V4.pod), "it continues at the only backend, which is here");
        let other = frame(TCP, "203.0.113.2:40001", V4.service).flags(RST);
        assert_eq!(node.arrives(&other).0, DROP, "a RST");
    });
}

#[test]
fn draining_leaves_new_connections_to_the_stack() {
    with_node("programs::translation::draining_leaves_new_connections_to_the_stack", |node| {
        node.serve_one(V4, TCP, V4.pod);
        local_connection(node, V4, TCP, V4.pod);
        node.settings([1, 0, 1, 0]);
        let next = frame(TCP, V4.client, V4.service);
        assert_eq!(node.arrives(&next).1.target, at(V4.pod), "a known connection");
        node.ignores("a new connection", &first(TCP, "203.0.113.2:40001", V4.service).bytes());
    });
}

#[test]
fn the_ring_decides_and_affinity_keeps() {
    with_node("programs::translation::the_ring_decides_and_affinity_keeps", |node| {
        let backends = [V4.pod, V4.process];
        // A ring that names only the second backend, then only the first one.
        for offset in [1_u16, 0] {
            node.serve(&Lists { cluster: &backends, ring: &[offset; 1021], ..Lists::default() });
            node.publish(V4.service, TCP, 0);
            for port in 0..20 {
                let syn = first(TCP, &format!("203.0.113.2:{}", 42000 + port), V4.service);
                assert_eq!(node.arrives(&syn).1.target, at(backends[usize::from(offset)]));
            }
            clear(node);
        }
        // With affinity, the client keeps the backend although the ring now names another one.
        for offset in [1, 0] {
            let ring = &[offset; 1021];
            node.serve(&Lists { cluster: &backends, ring, affinity_seconds: 60, ..Lists::default() });
            let syn = first(TCP, &format!("203.0.113.2:{}", 43000 + offset), V4.service);
            assert_eq!(node.arrives(&syn).1.target, at(V4.process));
        }
        let other = first(TCP, "203.0.113.3:40000", V4.service);
        assert_eq!(node.arrives(&other).1.target, at(V4.pod), "another client");
    });
}

#[test]
fn local_policy_uses_the_local_view() {
    with_node("programs::translation::local_policy_uses_the_local_view", |node| {
        node.serve(&Lists { cluster: &[V4.remote], local: &[V4.pod], ..Lists::default() });
        node.publish(V4.service, TCP, 1);
        let syn = first(TCP, V4.client, V4.service);
        assert_eq!(node.arrives(&syn).1.target, at(V4.pod));
        assert!(node.entries().1.iter().all(|entry| entry.flags & 32 != 0), "entries of the local view");
    });
}

#[test]
fn a_packet_that_ends_here_or_is_too_large_is_answered() {
    with_node("programs::translation::a_packet_that_ends_here_or_is_too_large_is_answered", |node| {
        for family in [V4, V6] {
            node.serve_one(family, UDP, family.remote);
            let last = first(UDP, family.client, family.service).ttl(1);
            let (code, bytes) = node.run(super::PacketHook::UplinkIn, node.uplink, &last.bytes());
            assert_eq!(code, REDIRECT);
            let is_v4 = at(family.client).is_ipv4();
            super::refusal::check_icmp(&last, &bytes, if is_v4 { (11, 0) } else { (3, 0) }, 0);
            let large = first(UDP, family.client, family.service).payload(1490);
            let (code, bytes) = node.run(super::PacketHook::UplinkIn, node.uplink, &large.bytes());
            assert_eq!(code, REDIRECT);
            super::refusal::check_icmp(&large, &bytes, if is_v4 { (3, 4) } else { (2, 0) }, 1500);
            clear(node);
        }
        assert_eq!(
            (node.dropped(1), node.dropped(2), node.dropped(14)),
            (2, 1, 1),
            "IPv4 without DF has its own reason"
        );
    });
}

#[test]
fn without_a_route_a_packet_is_dropped() {
    with_node("programs::translation::without_a_route_a_packet_is_dropped", |node| {
        super::ip("route add blackhole 198.18.0.0/15");
        node.serve_one(V4, TCP, "198.18.0.1:80");
        assert_eq!(node.arrives(&first(TCP, V4.client, V4.service)).0, DROP);
        assert_eq!((node.dropped(8), node.entries().1.len()), (1, 0));
    });
}

#[test]
fn wrong_and_missing_checksums_stay_as_they_are() {
    with_node("programs::translation::wrong_and_missing_checksums_stay_as_they_are", |node| {
        node.serve_one(V4, UDP, V4.remote);
        let without = Frame { without_sum: true, ..first(UDP, V4.client, V4.service) };
        let (code, bytes) = node.run(super::PacketHook::UplinkIn, node.uplink, &without.bytes());
        assert_eq!((code, &bytes[40..42]), (REDIRECT, &[0, 0][..]), "no checksum");
        let mut wrong = first(UDP, V4.client, V4.service).bytes();
        wrong[60] ^= 0x40;
        let (_, bytes) = node.run(super::PacketHook::UplinkIn, node.uplink, &wrong);
        let (source, target, _, _, content) = super::frames::read_ip(&bytes[14..]);
        assert_ne!(super::frames::transport_sum(source, target, UDP, content), 0, "still wrong");
        let mut wrong = first(UDP, V4.client, V4.service).bytes();
        wrong[24] ^= 1;
        let (_, bytes) = node.run(super::PacketHook::UplinkIn, node.uplink, &wrong);
        assert_ne!(super::frames::ones_sum(&bytes[14..34]), 0xffff, "the header's, too");
    });
}

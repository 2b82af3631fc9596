//! Packets from senders with false addresses, packets of one connection on two CPUs, and packets that do not fit.

use libbpf_rs::{MapCore as _, MapFlags};

use super::frames::{ACK, Frame, RST, SYN, TCP, UDP, first, frame};
use super::translation::at;
use super::{NEXT, Node, REDIRECT, REVERSE, V4, V6, ip, with_node};

fn establish_local(node: &Node, backend: &str) {
    node.arrives(&first(TCP, V4.client, V4.service));
    node.leaves(&frame(TCP, backend, V4.client).flags(SYN | ACK));
    node.arrives(&frame(TCP, V4.client, V4.service));
    assert_eq!(node.entries().0.len(), 2);
}

#[test]
fn a_large_first_datagram_goes_to_the_remote_backend_like_others() {
    with_node("programs::hostile::a_large_first_datagram_goes_to_the_remote_backend_like_others", |node| {
        ip("link set inner0 mtu 1300");
        for family in [V4, V6] {
            node.serve_one(family, UDP, family.remote);
            let large = first(UDP, family.client, family.service).payload(1400);
            node.run(super::PacketHook::UplinkIn, node.uplink, &large.bytes());
            let next = first(UDP, family.client, family.service).payload(10);
            let (code, sent) = node.arrives(&next);
            assert_eq!((code, sent.source.ip()), (REDIRECT, family.node_at_remote.parse().unwrap()));
        }
    });
}

#[test]
fn a_connection_lives_through_two_cpus_that_move_it() {
    with_node("programs::hostile::a_connection_lives_through_two_cpus_that_move_it", |node| {
        node.serve_one(V4, TCP, V4.pod);
        establish_local(node, V4.pod);
        // What a CPU sees that has missed `connections` and found `half_open` before another one moved the entries:
        // its own key only in `half_open`, the partner only in `connections`.
        let map = node.map("connections");
        for key in map.keys().collect::<Vec<_>>() {
            let value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            if u32::from_ne_bytes(value[60..64].try_into().unwrap()) & REVERSE == 0 {
                node.set("half_open", &key, &value);
                map.delete(&key).unwrap();
            }
        }
        let next = frame(TCP, V4.client, V4.service);
        let (code, sent) = node.arrives(&next);
        assert_eq!((code, sent.target), (NEXT, at(V4.pod)), "{:?}", node.entries());
    });
}

#[test]
fn a_blind_rst_and_syn_do_not_end_a_connection() {
    with_node("programs::hostile::a_blind_rst_and_syn_do_not_end_a_connection", |node| {
        node.serve_one(V4, TCP, V4.remote);
        let syn = first(TCP, V4.client, V4.service);
        let before = node.arrives(&syn).1.source;
        node.answered(&frame(TCP, V4.remote, &before.to_string()).flags(SYN | ACK));
        let next = frame(TCP, V4.client, V4.service);
        assert_eq!(node.arrives(&next).1.source, before);
        assert_eq!(node.entries().0.len(), 2);
        // From somewhere else, with a false source address and numbers that neither side accepts.
        let rst = Frame { sequence: 0x7777_7777, ..frame(TCP, V4.client, V4.service).flags(RST) };
        node.arrives(&rst);
        node.arrives(&syn);
        let (code, sent) = node.arrives(&next);
        assert_eq!((code, sent.source), (REDIRECT, before), "{:?}", node.entries());
    });
}

#[test]
fn udp_follows_an_address_to_another_service() {
    with_node("programs::hostile::udp_follows_an_address_to_another_service", |node| {
        node.serve_one(V4, UDP, V4.pod);
        let request = frame(UDP, V4.client, V4.service);
        node.arrives(&request);
        node.leaves(&frame(UDP, V4.pod, V4.client));
        assert_eq!(node.arrives(&request).1.target, at(V4.pod));
        // The address is no longer the service's; the service itself stays, with its backend.
        node.map("outside").delete(&super::frontend_key(at(V4.service), UDP)).unwrap();
        let (_, sent) = node.arrives(&request);
        assert_eq!(sent.target, at(V4.service), "left to the stack");
    });
}

#[test]
fn a_fragment_that_does_not_fit_is_not_lost_silently() {
    with_node("programs::hostile::a_fragment_that_does_not_fit_is_not_lost_silently", |node| {
        node.serve_one(V4, UDP, V4.remote);
        node.arrives(&first(UDP, V4.client, V4.service));
        ip("link set inner0 mtu 1300");
        let mut bytes = frame(UDP, V4.client, V4.service).payload(1400).bytes();
        // More fragments, and the header's sum.
        bytes[20] = 0x20;
        bytes[24..26].copy_from_slice(&[0, 0]);
        let sum = bytes[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        let (code, _) = node.run(super::PacketHook::UplinkIn, node.uplink, &bytes);
        assert_eq!(code, REDIRECT, "an ICMP error, or fragments; dropped by reason 2: {}", node.dropped(2));
    });
}

#[test]
fn answered_handshakes_of_silent_clients_lose_their_port() {
    with_node("programs::hostile::answered_handshakes_of_silent_clients_lose_their_port", |node| {
        node.serve_one(V4, TCP, V4.remote);
        let syn = |port: u16| first(TCP, &format!("203.0.113.2:{port}"), V4.service);
        for client in 0..400 {
            let (_, sent) = node.arrives(&syn(1000 + client));
            if sent.tcp_flags == SYN {
                node.answered(&frame(TCP, V4.remote, &sent.source.to_string()).flags(SYN | ACK));
            }
        }
        std::thread::sleep(std::time::Duration::from_secs(8));
        let served = (0..20).filter(|n| node.arrives(&syn(3000 + n)).1.tcp_flags == SYN).count();
        assert_eq!(served, 20, "new clients 8 s after a flood from false addresses that the backend answered");
    });
}

#[test]
fn a_client_that_has_not_seen_the_answer_does_not_get_into_connections() {
    with_node("programs::hostile::a_client_that_has_not_seen_the_answer_does_not_get_into_connections", |node| {
        node.serve_one(V4, TCP, V4.pod);
        node.arrives(&first(TCP, V4.client, V4.service));
        node.leaves(&frame(TCP, V4.pod, V4.client).flags(SYN | ACK));
        // From a false address: no ACK, and numbers that the sender cannot know.
        let blind = Frame { sequence: 1, acknowledged: 1, ..frame(TCP, V4.client, V4.service).flags(0) };
        node.arrives(&blind);
        // With an ACK, and a number that is no answer to the backend's SYN.
        let guessed = frame(TCP, V4.client, V4.service);
        node.arrives(&Frame { acknowledged: guessed.acknowledged.wrapping_add(1 << 30), ..guessed });
        assert_eq!(node.entries().0.len(), 0, "connections, which evicts nothing and keeps TCP for a day");
    });
}

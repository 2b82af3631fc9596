//! Connections while a start replaces the maps by maps of another size: the old programs still run at some devices, the
//! new ones at others.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore as _, MapFlags};
use nodelb_datapath::packets::PacketHook;

use super::frames::{ACK, Frame, SYN, TCP, UDP, first, frame, read};
use super::translation::at;
use super::{NEXT, Node, REDIRECT, TUNNEL, V4, V6, all_kinds, with_node};

const MAPS: [&str; 2] = ["connections", "half_open"];

/// New programs with empty maps, which look into the maps of the old ones.
fn successor(old: &Node) -> Node {
    let new = old.with_programs(10_000..=10_099);
    for map in MAPS {
        let descriptor = old.map(map).as_fd().as_raw_fd().to_ne_bytes();
        new.set(&format!("former_{map}"), &[0; 4], &descriptor);
    }
    new
}

/// Ends the look into the old maps.
fn end(new: &Node) {
    for map in MAPS {
        new.map(&format!("former_{map}")).delete(&[0; 4]).unwrap();
    }
}

fn count(node: &Node) -> (usize, usize) {
    let (connections, half_open) = node.entries();
    (connections.len(), half_open.len())
}

#[test]
fn a_connection_that_begins_after_the_last_copy_goes_on() {
    with_node("programs::former::a_connection_that_begins_after_the_last_copy_goes_on", |old| {
        for (family, protocol) in all_kinds() {
            let new = successor(old);
            [old, &new].iter().for_each(|node| node.serve_one(family, protocol, family.pod));
            let (code, sent) = old.arrives(&first(protocol, family.client, family.service));
            assert_eq!((code, sent.target), (NEXT, at(family.pod)));
            assert_eq!(count(&new), (0, 0));
            let answer = frame(protocol, family.pod, family.client).flags(SYN | ACK);
            assert_eq!(new.leaves(&answer).1.source, at(family.service), "the answer");
            let next = frame(protocol, family.client, family.service);
            assert_eq!(new.arrives(&next).1.target, at(family.pod), "the next packet of the client");
            assert_eq!(count(&new), (2, 0), "{:?}", new.entries());
            end(&new);
            assert_eq!(new.arrives(&next).1.target, at(family.pod));
        }
    });
}

#[test]
fn an_established_connection_is_found_by_both_of_its_sides() {
    with_node("programs::former::an_established_connection_is_found_by_both_of_its_sides", |old| {
        for (family, protocol) in all_kinds() {
            let news = [(); 2].map(|()| successor(old));
            [old, &news[0], &news[1]].iter().for_each(|node| node.serve_one(family, protocol, family.remote));
            let source = old.arrives(&first(protocol, family.client, family.service)).1.source;
            let answer = frame(protocol, family.remote, &source.to_string()).flags(SYN | ACK);
            old.answered(&answer);
            let next = frame(protocol, family.client, family.service);
            old.arrives(&next);
            let (code, seen) = news[0].arrives(&next);
            assert_eq!((code, seen.source, seen.target), (REDIRECT, source, at(family.remote)));
            let (code, seen) = news[1].answered(&answer);
            assert_eq!((code, seen.source, seen.target), (REDIRECT, at(family.service), at(family.client)));
            for new in &news {
                assert_eq!(count(new), (2, 0), "{:?}", new.entries());
            }
        }
    });
}

/// The client's packets arrive at a device with the new programs, the answers at one with the old ones.
#[test]
fn the_old_programs_find_what_the_new_ones_begin() {
    with_node("programs::former::the_old_programs_find_what_the_new_ones_begin", |old| {
        for (family, protocol) in all_kinds() {
            let new = successor(old);
            [old, &new].iter().for_each(|node| node.serve_one(family, protocol, family.remote));
            let source = new.arrives(&first(protocol, family.client, family.service)).1.source;
            let answer = frame(protocol, family.remote, &source.to_string()).flags(SYN | ACK);
            let (code, seen) = old.answered(&answer);
            assert_eq!((code, seen.source, seen.target), (REDIRECT, at(family.service), at(family.client)));
        }
    });
}

#[test]
fn without_the_old_maps_the_connection_is_unknown() {
    with_node("programs::former::without_the_old_maps_the_connection_is_unknown", |old| {
        let new = successor(old);
        end(&new);
        [old, &new].iter().for_each(|node| node.serve_one(V4, UDP, V4.pod));
        old.arrives(&first(UDP, V4.client, V4.service));
        let answer = frame(UDP, V4.pod, V4.client);
        assert_eq!(new.leaves(&answer).1.source, at(V4.pod), "unchanged");
    });
}

/// The old map contains the connection to the backend that was removed.
#[test]
fn a_connection_that_has_begun_again_is_not_found_in_the_old_maps() {
    with_node("programs::former::a_connection_that_has_begun_again_is_not_found_in_the_old_maps", |old| {
        for family in [V4, V6] {
            let new = successor(old);
            old.serve_one(family, UDP, family.remote);
            let source = old.arrives(&first(UDP, family.client, family.service)).1.source;
            old.answered(&frame(UDP, family.remote, &source.to_string()));
            old.arrives(&first(UDP, family.client, family.service));
            new.serve_one(family, UDP, family.pod);
            for _ in 0..2 {
                let (code, sent) = new.arrives(&first(UDP, family.client, family.service));
                assert_eq!((code, sent.source, sent.target), (NEXT, at(family.client), at(family.pod)));
            }
            let of_pod = |entry: &&super::Entry| entry.new_target == at(family.pod);
            let entries = new.entries().1;
            assert_eq!(entries.iter().filter(of_pod).count(), 1, "{entries:?}");
            new.map("former_half_open").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        }
    });
}

/// The backend is removed before the new programs see a packet: only the entry shows that the tunnel is nodelb's.
#[test]
fn a_connection_in_a_tunnel_goes_on_without_its_backend_in_the_list() {
    with_node("programs::former::a_connection_in_a_tunnel_goes_on_without_its_backend_in_the_list", |old| {
        let new = successor(old);
        let in_tunnel = |packet: &Frame| {
            let outer = frame(4, "198.51.100.10:0", V4.pod);
            outer.packet(&packet.bytes()[14..], None)
        };
        let arrives = |node: &Node, packet: &Frame| {
            let (code, bytes) = node.run(PacketHook::UplinkIn, node.inner, &in_tunnel(packet));
            (code, read(&bytes).target)
        };
        for (node, backend) in [(old, V4.pod), (&new, V4.remote)] {
            node.serve_one(V4, TCP, backend);
            node.forward(TUNNEL);
        }
        let next = frame(TCP, V4.client, V4.service);
        assert_eq!(arrives(old, &first(TCP, V4.client, V4.service)), (NEXT, at(V4.pod)));
        old.leaves(&frame(TCP, V4.pod, V4.client).flags(SYN | ACK));
        assert_eq!(arrives(&new, &next), (NEXT, at(V4.pod)));
        end(&new);
        assert_eq!(arrives(&new, &next), (NEXT, at(V4.pod)));
        let other = frame(TCP, "203.0.113.2:40001", V4.service);
        let (code, bytes) = new.run(PacketHook::UplinkIn, new.inner, &in_tunnel(&other));
        assert_eq!((code, bytes), (NEXT, in_tunnel(&other)), "no connection of this node");
    });
}

//! Devices of pods, and devices without a link-layer header.

use libbpf_rs::{MapCore as _, MapFlags};
use nodelb_datapath::packets::{LinkLayer, Packet};

use super::frames::{ACK, Frame, SYN, TCP, UDP, first, frame, read, read_l3};
use super::translation::{at, clear, source_port};
use super::{Family, Lists, NEXT, Node, PacketHook, REDIRECT, V4, V6, all_kinds, frontend_key, sealed, with_node};

/// The service for pods, which are clients on this node; flags are those of `enum frontend_flags`.
fn publish_inside(node: &Node, address: &str, protocol: u8, flags: u32) {
    let key = frontend_key(at(address), protocol);
    node.map("frontends").update(&key, &sealed(&key, flags), MapFlags::ANY).unwrap();
}

fn client_in_pod(family: Family) -> String {
    std::net::SocketAddr::new(at(family.pod).ip(), 40000).to_string()
}

#[test]
fn a_pod_reaches_every_service() {
    with_node("programs::pods::a_pod_reaches_every_service", |node| {
        for (family, protocol) in all_kinds() {
            let client = client_in_pod(family);
            node.serve(&Lists { cluster: &[family.remote], local: &[family.process], protocol, ..Lists::default() });
            for (flags, backend) in [(0, family.remote), (1, family.process)] {
                publish_inside(node, family.service, protocol, flags);
                let request = first(protocol, &client, family.service);
                node.ignores("an uplink does not serve it", &request.bytes());
                let (code, bytes) = node.run(PacketHook::PodIn, node.pod, &request.bytes());
                let sent = read(&bytes);
                assert_eq!((code, sent.source, sent.target), (NEXT, at(&client), at(backend)));
                let answer = frame(protocol, backend, &client).flags(SYN | ACK);
                let (code, bytes) = node.run(PacketHook::PodOut, node.pod, &answer.bytes());
                let back = read(&bytes);
                assert_eq!((code, back.source, back.target), (NEXT, at(family.service), at(&client)));
                let next = frame(protocol, &client, family.service);
                assert_eq!(node.run(PacketHook::PodIn, node.pod, &next.bytes()).0, NEXT);
                assert_eq!((node.entries().0.len(), node.entries().1.len()), (2, 0), "moved");
                clear(node);
            }
        }
    });
}

/// The pod would otherwise answer itself, from an address that its connection does not have.
#[test]
fn a_pod_that_is_its_own_backend_reaches_itself_through_the_node() {
    with_node("programs::pods::a_pod_that_is_its_own_backend_reaches_itself_through_the_node", |node| {
        for (family, protocol) in all_kinds() {
            let client = client_in_pod(family);
            super::ip(&format!(
                "neighbour replace {} lladdr 02:00:00:00:00:02 dev pod0 nud permanent",
                at(&client).ip()
            ));
            node.serve(&Lists { cluster: &[family.pod], protocol, ..Lists::default() });
            publish_inside(node, family.service, protocol, 0);
            let request = first(protocol, &client, family.service);
            let (code, bytes) = node.run(PacketHook::PodIn, node.pod, &request.bytes());
            let sent = read(&bytes);
            let own = if at(&client).is_ipv4() { "203.0.113.129" } else { "2001:db8:3::1" };
            let own = std::net::SocketAddr::new(own.parse().unwrap(), source_port(&node.entries().1));
            assert_eq!((code, sent.source, sent.target), (REDIRECT, own, at(family.pod)));
            let answer = frame(protocol, family.pod, &own.to_string()).flags(SYN | ACK);
            let (code, bytes) = node.run(PacketHook::PodIn, node.pod, &answer.bytes());
            let back = read(&bytes);
            assert_eq!((code, back.source, back.target), (REDIRECT, at(family.service), at(&client)));
            clear(node);
        }
    });
}

/// A packet as the program of a tunnel receives it. A test run takes 14 bytes for a link-layer header in any case: the
/// protocol from bytes 12 and 13, which here are a part of the source address, 8.0 or 86dd; and the link-layer address
/// of this machine, which the device gets for the moment, from the first six. IPv4 has options, because a first byte of
/// 0x45 would be a group's.
fn run_l3(node: &Node, hook: PacketHook, frame: &Frame) -> (i32, Vec<u8>) {
    let options = if frame.source.is_ipv4() { vec![1; 4] } else { Vec::new() };
    let bytes = Frame { has_ethernet: false, options, ..frame.clone() }.bytes();
    let mac: Vec<String> = bytes[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    super::ip(&format!("link set up0 address {}", mac.join(":")));
    let packet = Packet { bytes, ifindex: node.uplink, came_by: 0, gso_size: 0 };
    node.programs.set_link_layer(node.uplink, LinkLayer::None).unwrap();
    let verdict = node.programs.run(hook, &packet).unwrap();
    node.programs.set_link_layer(node.uplink, LinkLayer::Ethernet).unwrap();
    (verdict.code, verdict.bytes)
}

#[test]
fn devices_without_a_link_layer_header_are_served() {
    with_node("programs::pods::devices_without_a_link_layer_header_are_served", |node| {
        let clients = [(V4, "8.0.0.9:40000"), (V6, "[2001:db8:86dd::9]:40000")];
        super::ip("route add 8.0.0.0/24 via 203.0.113.2");
        super::ip("route add 2001:db8:86dd::/64 via 2001:db8:1::2");
        for (family, client) in clients {
            for protocol in [TCP, UDP] {
                let request = first(protocol, client, family.service);
                node.serve_one(family, protocol, family.process);
                let (code, bytes) = run_l3(node, PacketHook::UplinkIn, &request);
                let sent = read_l3(&bytes);
                assert_eq!((code, sent.source, sent.target), (NEXT, at(client), at(family.process)));
                clear(node);

                // To a device with Ethernet: space for the header is made, which bpf_redirect_neigh() fills.
                node.serve_one(family, protocol, family.remote);
                let (code, bytes) = run_l3(node, PacketHook::UplinkIn, &request);
                let sent = read(&bytes);
                assert_eq!((code, sent.target, sent.ttl), (REDIRECT, at(family.remote), 63));
                assert_eq!(sent.source.ip().to_string(), family.node_at_remote);
                clear(node);
            }
        }
    });
}

/// The answer of a backend on this node leaves by a tunnel with the backend as its source.
#[test]
fn answers_leave_by_devices_without_a_link_layer_header() {
    with_node("programs::pods::answers_leave_by_devices_without_a_link_layer_header", |node| {
        let backends = [(V4, "8.0.0.7:8080"), (V6, "[2001:db8:86dd::7]:8080")];
        for (family, backend) in backends {
            for protocol in [TCP, UDP] {
                node.serve_one(family, protocol, backend);
                assert_eq!(node.arrives(&first(protocol, family.client, family.service)).1.target, at(backend));
                let answer = frame(protocol, backend, family.client).flags(SYN | ACK);
                let (code, bytes) = run_l3(node, PacketHook::UplinkOut, &answer);
                let sent = read_l3(&bytes);
                assert_eq!((code, sent.source, sent.target), (NEXT, at(family.service), at(family.client)));
                super::ip("link set up0 address 02:00:00:00:00:01");
                clear(node);
            }
        }
    });
}

/// The programs remember only the number of a device modulo 64, and look up the rest.
#[test]
fn a_device_whose_number_ends_like_that_of_a_tunnel_keeps_its_header() {
    with_node("programs::pods::a_device_whose_number_ends_like_that_of_a_tunnel_keeps_its_header", |node| {
        for number in [node.uplink + 64, node.uplink] {
            node.programs.set_link_layer(number, LinkLayer::None).unwrap();
        }
        node.programs.set_link_layer(node.uplink, LinkLayer::Ethernet).unwrap();
        node.serve_one(V4, TCP, V4.process);
        let (code, bytes) = node.run(PacketHook::UplinkIn, node.uplink, &first(TCP, V4.client, V4.service).bytes());
        assert_eq!((code, read(&bytes).target), (NEXT, at(V4.process)));
    });
}

/// `connection_seal()`.
fn seal(key: &[u8], entry: &[u8]) -> [u8; 4] {
    const FACTORS: [u64; 12] = [
        0x9e37_79b9_7f4a_7c15,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
        0xd6e8_feb8_6659_fd93,
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
        0x8ebc_6af0_9c88_c6e3,
        0x5899_65cc_7537_4cc3,
        0x1d8e_4e27_c47d_124f,
        0xeb44_acca_b455_d165,
    ];
    let word = |at: usize| u64::from(u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap()));
    let words = [key, &entry[..40]]
        .concat()
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect::<Vec<_>>();
    let words = words.into_iter().chain([word(40) << 32 | word(48), word(56)]);
    let sum = words.zip(FACTORS).fold(0_u64, |sum, (word, factor)| sum.wrapping_add(word.wrapping_mul(factor)));
    u32::try_from((sum ^ sum >> 32) & 0xffff_ffff).unwrap().to_ne_bytes()
}

/// Makes the entries those that an older nodelb has made: the packets of pods had the side of other clients.
fn as_of_an_older_nodelb(node: &Node) {
    const OF_POD: u32 = 2_048;
    for name in ["connections", "half_open"] {
        let map = node.map(name);
        for mut key in map.keys().collect::<Vec<_>>() {
            let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            let flags = u32::from_ne_bytes(value[60..64].try_into().unwrap());
            let is_of_client = key[37] == 2;
            assert_eq!(flags & OF_POD == 0, is_of_client, "only the entry for answers shows the pod");
            value[60..64].copy_from_slice(&(flags ^ OF_POD).to_ne_bytes());
            map.delete(&key).unwrap();
            if is_of_client {
                key[37] = 0;
            }
            let seal = seal(&key, &value);
            value[64..68].copy_from_slice(&seal);
            map.update(&key, &value, MapFlags::ANY).unwrap();
        }
    }
}

#[test]
fn a_pod_keeps_the_connection_of_an_older_nodelb() {
    with_node("programs::pods::a_pod_keeps_the_connection_of_an_older_nodelb", |node| {
        for (family, protocol) in all_kinds() {
            let client = client_in_pod(family);
            node.serve(&Lists { cluster: &[family.remote], protocol, ..Lists::default() });
            publish_inside(node, family.service, protocol, 0);
            node.run(PacketHook::PodIn, node.pod, &first(protocol, &client, family.service).bytes());
            let next = frame(protocol, &client, family.service).bytes();
            let answer = frame(protocol, family.remote, &client).flags(SYN | ACK).bytes();
            for is_established in [false, true] {
                as_of_an_older_nodelb(node);
                let (code, bytes) = node.run(PacketHook::PodOut, node.pod, &answer);
                assert_eq!((code, read(&bytes).source), (NEXT, at(family.service)), "{is_established}");
                let (code, bytes) = node.run(PacketHook::PodIn, node.pod, &next);
                assert_eq!((code, read(&bytes).target), (NEXT, at(family.remote)), "{is_established}");
                let (connections, half_open) = node.entries();
                assert_eq!((connections.len(), half_open.len()), (2, 0), "{is_established}");
                if !is_established {
                    // As a pod's own again.
                    clear(node);
                    node.run(PacketHook::PodIn, node.pod, &first(protocol, &client, family.service).bytes());
                    node.run(PacketHook::PodOut, node.pod, &answer);
                    node.run(PacketHook::PodIn, node.pod, &next);
                }
            }
            clear(node);
        }
    });
}

//! Backends with kernel routes other than by a device or to this node.

use std::net::{TcpListener, TcpStream};

use super::frames::{ACK, SYN, TCP, UDP, first, frame};
use super::translation::at;
use super::{DROP, NEXT, Node, PacketHook, REDIRECT, V4, V6, ip, with_node};

/// The reason `no-route`.
const ENCAPSULATION: usize = 21;

/// The kernel's lookup does not support such a route. If the backend counted as one on this node, the client's packets
/// would leave with the client's address, and the answers would go past this node.
#[test]
fn a_backend_behind_an_encapsulation_does_not_count_as_one_on_this_node() {
    with_node("programs::routes::a_backend_behind_an_encapsulation_does_not_count_as_one_on_this_node", |node| {
        ip("route add 198.51.100.12/32 encap ip id 7 dst 192.0.2.99 dev inner0");
        ip("route add 2001:db8:2::12/128 encap ip6 id 7 dst 2001:db8:b::99 dev inner0");
        for (family, backend) in [(V4, "198.51.100.12:8080"), (V6, "[2001:db8:2::12]:8080")] {
            for protocol in [TCP, UDP] {
                node.serve_one(family, protocol, backend);
                let before = node.dropped(ENCAPSULATION);
                let packet = first(protocol, family.client, family.service);
                let (code, _) = node.run(PacketHook::UplinkIn, node.uplink, &packet.bytes());
                assert_eq!((code, node.dropped(ENCAPSULATION)), (DROP, before + 1), "{family:?}");
                assert_eq!(node.entries(), (Vec::new(), Vec::new()));
            }
        }
    });
}

#[test]
fn without_a_source_address_the_route_is_looked_up_again() {
    with_node("programs::routes::without_a_source_address_the_route_is_looked_up_again", |node| {
        for device in ["lo", "up0", "inner0", "pod0", "up0-peer", "inner0-peer", "pod0-peer"] {
            ip(&format!("-6 address flush dev {device}"));
        }
        ip("-6 route add 2001:db8:2::/64 dev inner0");
        ip("-6 route add 2001:db8:1::/64 dev up0");
        for protocol in [TCP, UDP] {
            node.serve_one(V6, protocol, V6.remote);
            let (code, sent) = node.arrives(&first(protocol, V6.client, V6.service));
            assert_eq!((code, sent.target), (REDIRECT, at(V6.remote)));
            // The address of the uplink, as the daemon has stored it.
            assert_eq!(sent.source.ip(), V6.node_at_remote.parse::<std::net::IpAddr>().unwrap());
        }
    });
}

/// The answers on the direct connection would get the source of the service.
#[test]
fn a_client_with_a_direct_connection_to_a_process_gets_another_port() {
    with_node("programs::routes::a_client_with_a_direct_connection_to_a_process_gets_another_port", |node| {
        ip("address add 203.0.113.2/32 dev lo");
        let listener = TcpListener::bind(V4.process).unwrap();
        node.serve_one(V4, TCP, V4.process);
        let syn = |client: &str| node.arrives(&first(TCP, client, V4.service)).1;
        assert_eq!(syn("203.0.113.2:50000").source, at("203.0.113.2:50000"), "only a listener");
        let client = connect_from("203.0.113.2:40000", V4.process);
        let (server, _) = listener.accept().unwrap();
        let sent = syn(V4.client);
        assert_eq!((sent.source, sent.target), (at("203.0.113.2:40001"), at(V4.process)));
        let direct = frame(TCP, V4.process, V4.client);
        assert_eq!(node.leaves(&direct).1.source, at(V4.process), "the direct connection's packets");
        let (code, answer) = node.leaves(&frame(TCP, V4.process, "203.0.113.2:40001").flags(SYN | ACK));
        assert_eq!((code, answer.source, answer.target), (NEXT, at(V4.service), at(V4.client)));
        drop((client, server));
    });
}

fn connect_from(source: &str, target: &str) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &source.parse::<SockaddrIn>().unwrap()).unwrap();
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &target.parse::<SockaddrIn>().unwrap()).unwrap();
    TcpStream::from(fd)
}

/// Several CPUs receive the first datagrams of one client, as with fragments among whole datagrams.
#[test]
fn first_datagrams_on_two_cpus_begin_one_connection() {
    with_node("programs::routes::first_datagrams_on_two_cpus_begin_one_connection", |node| {
        node.serve_one(V4, UDP, V4.remote);
        let barrier = std::sync::Barrier::new(2);
        let source = |client: &str| {
            barrier.wait();
            node.arrives(&first(UDP, client, V4.service)).1.source
        };
        for port in 20_000..21_000 {
            let client = format!("203.0.113.2:{port}");
            let [one, other] = std::thread::scope(|scope| {
                [scope.spawn(|| source(&client)), scope.spawn(|| source(&client))].map(|thread| thread.join().unwrap())
            });
            assert_eq!(one, other, "the backend sees one client, at round {port}");
            let (_, half_open) = node.entries();
            assert_eq!(half_open.iter().filter(|entry| entry.new_target == at(&client)).count(), 1);
            for key in entry_keys(node) {
                libbpf_rs::MapCore::delete(node.map("half_open"), &key).unwrap();
            }
        }
    });
}

fn entry_keys(node: &Node) -> Vec<Vec<u8>> {
    libbpf_rs::MapCore::keys(node.map("half_open")).collect()
}

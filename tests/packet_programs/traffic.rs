//! Real connections through real devices, with all that a test run cannot show: checksums that devices compute, packets
//! that are larger than a device's MTU until it sends them, and redirects.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nodelb_datapath::packets::PacketHook;

use super::frames::{TCP, UDP};
use super::translation::at;
use super::{Lists, Node, index_of, ip};
use crate::pod::Pod;
use crate::sandbox::{self, Sandbox, command};

/// Bytes that a client sends and receives.
const SIZE: usize = 300_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The addresses of one family. The client and the remote backend are in network namespaces of their own.
#[derive(Clone, Copy)]
struct Family {
    service: &'static str,
    /// A process of the node.
    process: &'static str,
    remote: &'static str,
    /// What a backend on this node and one on another machine take for the client.
    client: &'static str,
    node: &'static str,
}

const V4: Family = Family {
    service: "198.51.100.200:80",
    process: "192.0.2.7:8080",
    remote: "203.0.113.134:8080",
    client: "203.0.113.130",
    node: "203.0.113.133",
};

const V6: Family = Family {
    service: "[2001:db8:f::1]:80",
    process: "[2001:db8:b::7]:8080",
    remote: "[2001:db8:a:1::134]:8080",
    client: "2001:db8:a::130",
    node: "2001:db8:a:1::133",
};

/// A node between a client and another machine, with the programs attached.
struct Net {
    node: Node,
    client: Pod,
    machine: Pod,
}

impl Net {
    fn new(env: &Sandbox) -> Self {
        let [client, machine] = [0, 1].map(Pod::new);
        let net = Self { node: Node::without_devices(), client, machine };
        for (hook, direction) in [(PacketHook::UplinkIn, "ingress"), (PacketHook::UplinkOut, "egress")] {
            let path = env.bpffs.join(direction);
            net.node.programs.pin(hook, &path).unwrap();
            for device in ["pod0", "pod1"] {
                if direction == "ingress" {
                    command("tc", &["qdisc", "add", "dev", device, "clsact"]);
                }
                let path = path.to_str().unwrap();
                command("tc", &["filter", "add", "dev", device, direction, "bpf", "da", "object-pinned", path]);
            }
        }
        net.node.set_uplink(index_of("pod0"), "203.0.113.129", "2001:db8:a::129");
        net.node.set_uplink(index_of("pod1"), "203.0.113.133", "2001:db8:a:1::133");
        net.client.run(|| {
            ip("route add default via 203.0.113.129");
            ip("-6 route add default via 2001:db8:a::129");
        });
        net
    }

    fn serve(&self, family: Family, protocol: u8, backends: &[&str]) {
        let has_backends = !backends.is_empty();
        self.node.serve(&Lists { cluster: backends, protocol, has_backends, ..Lists::default() });
        self.node.publish(family.service, protocol, 0);
    }
}

fn run(test: &str, body: impl FnOnce(&Net)) {
    sandbox::run(test, |env| body(&Net::new(env)));
}

/// Accepts one connection at a time; reports the client's address and returns what it sends.
fn serve_tcp(address: &str) -> mpsc::Receiver<IpAddr> {
    let listener = TcpListener::bind(at(address)).unwrap();
    let (clients, seen) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = vec![0; SIZE];
            let whole = stream.read_exact(&mut bytes).and_then(|()| stream.write_all(&bytes));
            if whole.is_ok() && clients.send(stream.peer_addr().unwrap().ip()).is_err() {
                return;
            }
        }
    });
    seen
}

fn serve_udp(address: &str) -> mpsc::Receiver<IpAddr> {
    let socket = UdpSocket::bind(at(address)).unwrap();
    let (clients, seen) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = vec![0; 10_000];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..length], from);
            if clients.send(from.ip()).is_err() {
                return;
            }
        }
    });
    seen
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

/// Sends bytes and receives them again.
fn exchange_tcp(service: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&service, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (sent, mut received) = (pattern(SIZE), vec![0; SIZE]);
    stream.write_all(&sent)?;
    stream.read_exact(&mut received)?;
    assert!(sent == received, "the bytes come back unchanged");
    Ok(())
}

fn exchange_udp(service: SocketAddr, size: usize) -> io::Result<()> {
    let any: IpAddr = if service.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    // Answers from other addresses are not received.
    socket.connect(service)?;
    let (sent, mut received) = (pattern(size), vec![0; size]);
    for _ in 0..3 {
        socket.send(&sent)?;
        assert_eq!(socket.recv(&mut received)?, size);
        assert!(sent == received, "the bytes come back unchanged");
    }
    Ok(())
}

#[test]
fn clients_reach_backends_on_this_node_and_elsewhere() {
    run("programs::traffic::clients_reach_backends_on_this_node_and_elsewhere", |net| {
        for family in [V4, V6] {
            let service = at(family.service);
            let client: IpAddr = family.client.parse().unwrap();
            let node: IpAddr = family.node.parse().unwrap();
            let here = (serve_tcp(family.process), serve_udp(family.process));
            let there = net.machine.run(|| (serve_tcp(family.remote), serve_udp(family.remote)));
            for ((tcp, udp), backend, seen_as) in [(here, family.process, client), (there, family.remote, node)] {
                net.serve(family, TCP, &[backend]);
                net.client.run(|| exchange_tcp(service)).unwrap_or_else(|error| panic!("TCP to {backend}: {error}"));
                assert_eq!(tcp.recv_timeout(TIMEOUT), Ok(seen_as), "{backend}");
                net.serve(family, UDP, &[backend]);
                for size in [100, 3000, 9001] {
                    let result = net.client.run(|| exchange_udp(service, size));
                    result.unwrap_or_else(|error| panic!("UDP to {backend}, {size} bytes: {error}"));
                    assert_eq!(udp.recv_timeout(TIMEOUT), Ok(seen_as), "{backend}");
                }
            }
        }
    });
}

/// The checksums of the refused packets are those that a device would have to compute.
#[test]
fn a_service_without_backends_refuses_at_once() {
    run("programs::traffic::a_service_without_backends_refuses_at_once", |net| {
        for family in [V4, V6] {
            let service = at(family.service);
            net.serve(family, TCP, &[]);
            let begun = Instant::now();
            let refused = net.client.run(|| exchange_tcp(service)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "TCP to {service}: {refused}");
            net.serve(family, UDP, &[]);
            let refused = net.client.run(|| exchange_udp(service, 100)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "UDP to {service}: {refused}");
            assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        }
    });
}

/// The way to the backend has a smaller MTU than the client's device, in both directions.
#[test]
fn clients_find_the_mtu_of_the_way() {
    run("programs::traffic::clients_find_the_mtu_of_the_way", |net| {
        ip("link set pod1 mtu 1300");
        net.machine.run(|| ip("link set eth0 mtu 1300"));
        for family in [V4, V6] {
            let service = at(family.service);
            let tcp = net.machine.run(|| serve_tcp(family.remote));
            net.serve(family, TCP, &[family.remote]);
            net.client.run(|| exchange_tcp(service)).unwrap_or_else(|error| panic!("TCP: {error}"));
            assert_eq!(tcp.recv_timeout(TIMEOUT), Ok(family.node.parse().unwrap()));
        }
    });
}

#[test]
fn a_closed_port_of_a_backend_is_reported_to_the_client() {
    run("programs::traffic::a_closed_port_of_a_backend_is_reported_to_the_client", |net| {
        for family in [V4, V6] {
            let service = at(family.service);
            for backend in [family.process, family.remote] {
                for protocol in [TCP, UDP] {
                    net.serve(family, protocol, &[backend]);
                    let refused = net.client.run(|| {
                        if protocol == TCP { exchange_tcp(service) } else { exchange_udp(service, 100) }.unwrap_err()
                    });
                    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{protocol} to {backend}: {refused}");
                }
            }
        }
    });
}

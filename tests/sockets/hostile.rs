//! Programs that misuse sockets: threads that share one and connect it in turn, disconnect it, or close it meanwhile.

use std::net::{SocketAddr, UdpSocket};
use std::thread;

use rustix::net::connect_unspec;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Kernel, Random, backends, cases, in_sandbox, l4, options, parse, target};

/// Services, each with the backend of the same position. No service has the last backend.
const SERVICES: [&str; 2] = ["198.51.100.1:80", "198.51.100.2:80"];
const BACKENDS: [&str; 3] = ["192.0.2.10:80", "192.0.2.11:80", "192.0.2.12:80"];

fn serve(kernel: &mut Kernel, protocol: &str) {
    let named = |addr: &&str| format!("{addr}/{protocol}");
    let all: Vec<String> = BACKENDS.iter().map(named).collect();
    backends(&all.iter().map(String::as_str).collect::<Vec<_>>());
    for (id, (service, backend)) in (1..).zip(SERVICES.iter().zip(&all)) {
        kernel.serve(id, &named(service), &[backend]);
    }
}

/// The addresses that a program connects to: the services, and the backend without a service. The position in
/// `BACKENDS` of what answers is that of the address.
fn destinations(protocol: &str, mapped: bool) -> Vec<SocketAddr> {
    let all = SERVICES.iter().chain(&BACKENDS[2..]);
    all.map(|addr| target(l4(&format!("{addr}/{protocol}")), mapped)).collect()
}

fn socket(protocol: Protocol, mapped: bool) -> Socket {
    let domain = if mapped { Domain::IPV6 } else { Domain::IPV4 };
    let kind = if protocol == Protocol::UDP { Type::DGRAM } else { Type::STREAM };
    let socket = Socket::new(domain, kind.nonblocking(), Some(protocol)).unwrap();
    if mapped {
        socket.set_only_v6(false).unwrap();
    }
    socket
}

/// One thread of several that use the same socket: a peer is a destination, and never the backend of a service.
fn misuse(socket: &Socket, to: &[SocketAddr], seed: u64) {
    let mut random = Random(seed);
    let is_datagram = socket.r#type().unwrap() == Type::DGRAM;
    for _ in 0..cases(4_000) {
        match random.below(8) {
            // The socket may be connecting, connected, or closing.
            0..=2 => drop(socket.connect(&(*random.pick(to)).into())),
            3 => drop(connect_unspec(socket)),
            4 if is_datagram => drop(socket.send_to(b"?", &(*random.pick(to)).into())),
            // On an IPv4-mapped socket, the kernel does not say that this datagram is for the peer that the socket had.
            5 if is_datagram && to[0].is_ipv4() => drop(socket.send(b"?")),
            6 if is_datagram => receive(socket, to),
            _ => {
                if let Some(peer) = socket.peer_addr().ok().and_then(|peer| peer.as_socket()) {
                    assert!(to.contains(&peer), "connected to {peer}");
                }
            }
        }
    }
}

fn receive(socket: &Socket, to: &[SocketAddr]) {
    let mut buffer = [0; 64];
    let datagrams: UdpSocket = socket.try_clone().unwrap().into();
    if let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
        let backend = parse(&buffer[..len]);
        let sent = BACKENDS.iter().position(|addr| *addr == format!("{}:{}", backend.addr, backend.port)).unwrap();
        assert_eq!(from, to[sent], "an answer of {backend}");
    }
}

fn share(protocol: Protocol, name: &str, mapped: bool) {
    let to = destinations(name, mapped);
    for turn in 0..8 {
        let socket = socket(protocol, mapped);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (socket, to) = (&socket, &to);
                scope.spawn(move || misuse(socket, to, 1 + turn * 4 + thread));
            }
        });
    }
}

#[test]
fn threads_that_share_a_socket_see_no_false_peer() {
    in_sandbox("sockets::hostile::threads_that_share_a_socket_see_no_false_peer", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, "UDP");
        share(Protocol::UDP, "UDP", false);
        share(Protocol::UDP, "UDP", true);
        drop(kernel);
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, "TCP");
        share(Protocol::TCP, "TCP", false);
        share(Protocol::TCP, "TCP", true);
    });
}

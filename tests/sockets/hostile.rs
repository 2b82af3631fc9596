//! Programs that misuse sockets: that connect one again and again, or from several threads at the same time.

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
    let first = if protocol == "UDP" { 1 } else { 3 };
    for (id, (service, backend)) in (first..).zip(SERVICES.iter().zip(&all)) {
        kernel.serve(id, &named(service), &[backend]);
    }
}

/// The addresses that a program connects to: the services, and the backend without a service. The position in
/// `BACKENDS` of what answers is that of the address.
fn destinations(protocol: &str, mapped: bool) -> Vec<SocketAddr> {
    let all = SERVICES.iter().chain(&BACKENDS[2..]);
    all.map(|addr| target(l4(&format!("{addr}/{protocol}")), mapped)).collect()
}

/// A socket; `None` if the kernel does not have the protocol.
fn socket(protocol: Protocol, mapped: bool) -> Option<Socket> {
    let domain = if mapped { Domain::IPV6 } else { Domain::IPV4 };
    let kind = if protocol == Protocol::UDP { Type::DGRAM } else { Type::STREAM };
    let socket = Socket::new(domain, kind, Some(protocol)).ok()?;
    if mapped {
        socket.set_only_v6(false).unwrap();
    }
    Some(socket)
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
        let Some(socket) = socket(protocol, mapped) else { return };
        socket.set_nonblocking(true).unwrap();
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
        serve(&mut kernel, "TCP");
        share(Protocol::TCP, "TCP", false);
        share(Protocol::TCP, "TCP", true);
        share(Protocol::MPTCP, "TCP", false);
    });
}

/// A socket that connects to services, and to their backends directly, which its state has as backends of services.
fn reconnect(protocol: Protocol, name: &str, mapped: bool) {
    let mut random = Random::seeded(7);
    let to = SERVICES.iter().chain(&BACKENDS).map(|addr| target(l4(&format!("{addr}/{name}")), mapped));
    let to: Vec<SocketAddr> = to.collect();
    let Some(socket) = socket(protocol, mapped) else { return };
    for turn in 0..cases(300) {
        let peer = *random.pick(&to);
        if protocol != Protocol::UDP || random.below(4) == 0 {
            connect_unspec(&socket).unwrap();
        }
        if let Err(error) = socket.connect(&peer.into()) {
            // The port of the last connection is still in use.
            assert_eq!(error.raw_os_error(), Some(nix::libc::EADDRNOTAVAIL), "{protocol:?}, turn {turn}: {error}");
            continue;
        }
        assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(peer), "{protocol:?}, turn {turn}");
    }
}

#[test]
fn a_socket_that_connects_again_shows_its_last_peer() {
    in_sandbox("sockets::hostile::a_socket_that_connects_again_shows_its_last_peer", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, "UDP");
        [false, true].into_iter().for_each(|mapped| reconnect(Protocol::UDP, "UDP", mapped));
        serve(&mut kernel, "TCP");
        for protocol in [Protocol::TCP, Protocol::MPTCP] {
            [false, true].into_iter().for_each(|mapped| reconnect(protocol, "TCP", mapped));
        }
    });
}

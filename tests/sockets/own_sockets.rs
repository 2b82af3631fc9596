//! nodelb's own sockets are never translated, and operation after the start needs no capability.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use nodelb_core::datapath::Datapath as _;
use nodelb_datapath::{Options, OwnSockets, drop_privileges, drop_thread_privileges};

use super::{Kernel, SocketMode, backends, entry, exchange, in_sandbox, l4, options, point, put};
use crate::sandbox;

/// Connects with a registered socket. The service's address has no route, so that an untranslated
/// connection is unreachable.
fn own_exchange(own: &OwnSockets, kind: SockType, to: &str) -> Result<(), Errno> {
    let to: SocketAddr = to.parse().unwrap();
    let family = if matches!(to.ip(), IpAddr::V4(_)) { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    own.register(socket.as_fd()).unwrap();
    if kind == SockType::Datagram {
        let udp = UdpSocket::from(socket.try_clone().unwrap());
        let sent = udp.send_to(b"?", to).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()));
        assert_eq!(sent.is_ok(), own_connect(&socket, to).is_ok(), "sendmsg and connect agree");
    }
    own_connect(&socket, to)
}

fn own_connect(socket: &std::os::fd::OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))
}

fn services(kernel: &mut Kernel) {
    backends(&["192.0.2.10:80/TCP", "192.0.2.10:80/UDP", "[2001:db8:b::10]:80/TCP", "[2001:db8:b::10]:80/UDP"]);
    kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
    kernel.serve(2, "198.51.100.1:80/UDP", &["192.0.2.10:80/UDP"]);
    kernel.serve(3, "[2001:db8:f::1]:80/TCP", &["[2001:db8:b::10]:80/TCP"]);
    kernel.serve(4, "[2001:db8:f::1]:80/UDP", &["[2001:db8:b::10]:80/UDP"]);
    // A service at the address of a backend, and an empty service: neither affects an own socket.
    kernel.serve(5, "192.0.2.10:80/TCP", &[]);
}

fn own_sockets_are_left_alone(own: &OwnSockets) {
    for kind in [SockType::Stream, SockType::Datagram] {
        for to in ["198.51.100.1:80", "[2001:db8:f::1]:80"] {
            assert_eq!(own_exchange(own, kind, to), Err(Errno::ENETUNREACH), "{kind:?} {to}");
        }
    }
    assert_eq!(own_exchange(own, SockType::Stream, "192.0.2.10:80"), Ok(()));
}

#[test]
fn own_sockets_reach_the_address_they_connect_to() {
    in_sandbox("sockets::own_sockets::own_sockets_reach_the_address_they_connect_to", |env| {
        let mut kernel = Kernel::open(&options(env));
        services(&mut kernel);
        own_sockets_are_left_alone(&kernel.datapath.own_sockets());
        for mode in [SocketMode::Tcp, SocketMode::UdpConnected, SocketMode::UdpUnconnected] {
            for to in ["198.51.100.1:80", "[2001:db8:f::1]:80"] {
                exchange(mode, to.parse().unwrap()).unwrap_or_else(|error| panic!("any other socket: {to}: {error}"));
            }
        }
        assert_eq!(exchange(SocketMode::Tcp, "192.0.2.10:80".parse().unwrap()).unwrap_err().raw_os_error(), Some(111));
    });
}

#[test]
fn a_host_without_127_0_0_1_is_no_reason_not_to_start() {
    in_sandbox("sockets::own_sockets::a_host_without_127_0_0_1_is_no_reason_not_to_start", |env| {
        sandbox::command("ip", &["address", "delete", "127.0.0.1/8", "dev", "lo"]);
        let kernel = Kernel::open(&options(env));
        nodelb_host::sock_diag::try_destroy().unwrap();
        drop_thread_privileges(&kernel.datapath).unwrap();
    });
}

#[test]
fn everything_works_without_capabilities() {
    in_sandbox("sockets::own_sockets::everything_works_without_capabilities", |env| {
        let mut kernel = Kernel::open(&options(env));
        services(&mut kernel);
        let refusal = drop_privileges(&kernel.datapath).unwrap_err().to_string();
        assert!(refusal.contains("before threads start"), "{refusal}");

        let kept = drop_thread_privileges(&kernel.datapath).unwrap();
        assert_eq!((kept.capabilities.as_slice(), kept.bounding_set), ([].as_slice(), false));
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");

        own_sockets_are_left_alone(&kernel.datapath.own_sockets());
        let frontends: Vec<_> = (1..=100).map(|i| point(&format!("203.0.113.{i}:80/TCP"), 1)).collect();
        kernel.apply(&frontends);
        kernel.apply(&[put(1, entry(&["192.0.2.10:80/TCP"])), put(5, entry(&["192.0.2.10:80/TCP"]))]);
        assert_eq!(
            exchange(SocketMode::Tcp, "203.0.113.7:80".parse().unwrap()).unwrap().backend,
            l4("192.0.2.10:80/TCP")
        );
        assert_eq!(kernel.datapath.dump().unwrap().frontends.len(), 105);
        assert_eq!(kernel.datapath.verify_links(), []);
        // A link whose pin was removed is pinned again, and one that was detached is attached
        // again.
        let pin = env.bpffs.join("nodelb/v1/links/connect4");
        std::fs::remove_file(&pin).unwrap();
        let repairs = kernel.datapath.ensure_attached().unwrap();
        assert!(repairs.len() == 1 && repairs[0].lasted, "{repairs:?}");
        let detached = sandbox::program("bpftool").args(["link", "detach", "pinned"]).arg(&pin).status();
        assert!(detached.expect("bpftool (package bpftool)").success());
        let repairs = kernel.datapath.ensure_attached().unwrap();
        assert!(repairs.len() == 1 && !repairs[0].lasted, "{repairs:?}");
        assert_eq!(kernel.datapath.verify_links(), []);
    });
}

/// connect() of an ordinary UDP socket and of a registered one, each with the mark that the program
/// of `own` left.
fn try_canary(own: &OwnSockets) -> [(Result<(), Errno>, bool); 2] {
    [OwnSockets::observe, OwnSockets::register].map(|prepare: fn(&OwnSockets, BorrowedFd<'_>) -> io::Result<()>| {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
        prepare(own, socket.as_fd()).unwrap();
        assert!(!own.was_observed(socket.as_fd()).unwrap(), "not yet");
        let answer = own_connect(&socket, "198.51.100.9:9".parse().unwrap());
        (answer, own.was_observed(socket.as_fd()).unwrap())
    })
}

/// The basis of the self-test: programs pinned in another directory refuse the same sockets but do
/// not leave the mark.
#[test]
fn the_own_program_is_distinguished_from_one_with_other_maps() {
    in_sandbox("sockets::own_sockets::the_own_program_is_distinguished_from_one_with_other_maps", |env| {
        const REFUSED: Result<(), Errno> = Err(Errno::ECONNREFUSED);
        const LEFT_ALONE: Result<(), Errno> = Err(Errno::ENETUNREACH);
        let mut kernel = Kernel::open(&options(env));
        let own = kernel.datapath.own_sockets();
        assert_eq!(try_canary(&own), [(LEFT_ALONE, false), (LEFT_ALONE, true)], "no frontend");
        kernel.serve(1, "198.51.100.9:9/UDP", &[]);
        assert_eq!(try_canary(&own), [(REFUSED, true), (LEFT_ALONE, true)], "alone");

        let mut other = Kernel::open(&Options { pin_directory: env.bpffs.join("other"), ..options(env) });
        let own = other.datapath.own_sockets();
        assert_eq!(try_canary(&own), [(REFUSED, false), (REFUSED, true)], "the one in front refuses");
        other.serve(1, "198.51.100.9:9/UDP", &[]);
        assert_eq!(try_canary(&own), [(REFUSED, true), (REFUSED, true)], "both refuse");
        let unknown = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(own.was_observed(unknown.as_fd()).is_err(), "neither registered nor observed");
    });
}

//! Binding a served NodePort fails with EADDRINUSE in the node's network namespace; every other
//! bind succeeds.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt};
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::state::entries::{MapOp, MapState, ServiceEntry};
use nodelb_core::trace::taken_nodeports;
use nodelb_datapath::{CrashPoint, Options, OwnSockets, cleanup, hidden_links};
use nodelb_programs::sockets::refuses_bind;

use super::{Kernel, Random, cases, entry, in_sandbox, l4, options, point, put};
use crate::pod::Pod;

/// The properties of a server's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wish {
    /// An IPv4-mapped address in an IPv6 socket.
    mapped: bool,
    reuse_port: bool,
    reuse_addr: bool,
    only_v6: bool,
}

const PLAIN: Wish = Wish { mapped: false, reuse_port: false, reuse_addr: false, only_v6: false };

/// Binds and, over TCP, listens; then closes the socket.
fn try_bind(at: L4Addr, port: u16, wish: Wish) -> Result<(), Errno> {
    try_bind_as(None, at, port, wish)
}

/// [`try_bind`], optionally with a socket that is registered as nodelb's own.
fn try_bind_as(own: Option<&OwnSockets>, at: L4Addr, port: u16, wish: Wish) -> Result<(), Errno> {
    let ip = match at.addr.ip() {
        IpAddr::V4(v4) if wish.mapped => IpAddr::V6(v4.to_ipv6_mapped()),
        ip => ip,
    };
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = if at.protocol == Protocol::Tcp { SockType::Stream } else { SockType::Datagram };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(own) = own {
        own.register(socket.as_fd()).unwrap();
    }
    setsockopt(&socket, sockopt::ReusePort, &wish.reuse_port)?;
    setsockopt(&socket, sockopt::ReuseAddr, &wish.reuse_addr)?;
    if family == AddressFamily::Inet6 {
        setsockopt(&socket, sockopt::Ipv6V6Only, &wish.only_v6)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(ip, port)))?;
    if at.protocol == Protocol::Tcp {
        listen(&socket.as_fd(), nix::sys::socket::Backlog::new(1)?)?;
    }
    Ok(())
}

fn bound(at: &str, wish: Wish) -> Result<(), Errno> {
    let at = l4(at);
    try_bind(at, at.port, wish)
}

/// Node addresses in both families, and a service with these NodePorts.
fn serve(kernel: &mut Kernel, nodeports: &[&str]) {
    kernel.apply(&["192.0.2.1:1/TCP", "[2001:db8:b::1]:1/TCP"].map(|addr| MapOp::PutNodeAddr(l4(addr).addr)));
    kernel.apply(&[put(1, entry(&["192.0.2.10:8080/TCP"]))]);
    nodeports.iter().for_each(|nodeport| kernel.apply(&[point(nodeport, 1)]));
}

#[test]
fn a_served_nodeport_cannot_be_bound() {
    in_sandbox("sockets::bind::a_served_nodeport_cannot_be_bound", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "[::]:30080/TCP", "0.0.0.0:30081/UDP"]);
        let wishes = [
            PLAIN,
            Wish { mapped: true, ..PLAIN },
            Wish { reuse_port: true, ..PLAIN },
            Wish { reuse_addr: true, ..PLAIN },
            Wish { mapped: true, reuse_port: true, reuse_addr: true, ..PLAIN },
        ];
        for wish in wishes {
            for taken in [
                "0.0.0.0:30080/TCP",
                "192.0.2.1:30080/TCP",
                "[::]:30080/TCP",
                "[2001:db8:b::1]:30080/TCP",
                "0.0.0.0:30081/UDP",
                "192.0.2.1:30081/UDP",
                "[::]:30081/UDP",
            ] {
                assert_eq!(bound(taken, wish), Err(Errno::EADDRINUSE), "{taken} {wish:?}");
            }
            for free in [
                "127.0.0.1:30080/TCP",
                "192.0.2.2:30080/TCP",
                "[2001:db8:b::2]:30080/TCP",
                "[::1]:30080/TCP",
                "0.0.0.0:30080/UDP",
                "0.0.0.0:30081/TCP",
                "[2001:db8:b::1]:30081/UDP",
                "0.0.0.0:30082/TCP",
                "[::]:30082/TCP",
                "0.0.0.0:29999/TCP",
                "0.0.0.0:32768/UDP",
            ] {
                assert_eq!(bound(free, wish), Ok(()), "{free} {wish:?}");
            }
        }
        let only_v6 = Wish { only_v6: true, ..PLAIN };
        assert_eq!(bound("[::]:30080/TCP", only_v6), Err(Errno::EADDRINUSE));
        assert_eq!(bound("[::]:30082/TCP", only_v6), Ok(()));
        assert_eq!(bound("[::]:30081/UDP", only_v6), Ok(()), "the NodePort is IPv4's alone");
    });
}

#[test]
fn a_refused_socket_and_a_port_that_is_free_again_can_be_bound() {
    in_sandbox("sockets::bind::a_refused_socket_and_a_port_that_is_free_again_can_be_bound", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "0.0.0.0:30080/UDP"]);
        for kind in [SockType::Stream, SockType::Datagram] {
            let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
            let bind = |at: &str| bind(socket.as_raw_fd(), &SockaddrStorage::from(at.parse::<SocketAddr>().unwrap()));
            assert_eq!(bind("0.0.0.0:30080"), Err(Errno::EADDRINUSE));
            assert_eq!(bind("0.0.0.0:30080"), Err(Errno::EADDRINUSE), "again");
            assert_eq!(bind("0.0.0.0:30081"), Ok(()), "the same socket elsewhere");
        }
        kernel.apply(&[MapOp::DeleteNodeAddr(l4("192.0.2.1:1/TCP").addr)]);
        assert_eq!(bound("192.0.2.1:30080/TCP", PLAIN), Ok(()), "no node address any more");
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Err(Errno::EADDRINUSE));
        kernel.apply(&["TCP", "UDP"].map(|protocol| MapOp::DeleteFrontend(l4(&format!("0.0.0.0:30080/{protocol}")))));
        let listener = TcpListener::bind("0.0.0.0:30080").unwrap();
        let server = UdpSocket::bind("0.0.0.0:30080").unwrap();
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "0.0.0.0:30080/UDP"]);
        assert_eq!(listener.local_addr().unwrap(), server.local_addr().unwrap(), "who has it keeps it");
        drop((listener, server));
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Err(Errno::EADDRINUSE), "and does not get it back");
        assert_eq!(bound("0.0.0.0:30080/UDP", PLAIN), Err(Errno::EADDRINUSE), "and does not get it back");
    });
}

/// Even if every port of the automatic range is a served NodePort.
#[test]
fn a_bind_to_port_0_is_never_refused() {
    in_sandbox("sockets::bind::a_bind_to_port_0_is_never_refused", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, &["0.0.0.0:30080/TCP"]);
        for at in ["0.0.0.0:30080/TCP", "[::]:30080/TCP", "192.0.2.1:30080/TCP"] {
            for _ in 0..100 {
                assert_eq!(try_bind(l4(at), 0, PLAIN), Ok(()));
            }
        }
        serve(&mut kernel, &["[::]:30080/TCP", "0.0.0.0:30080/UDP", "[::]:30080/UDP"]);
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "30080 30080").unwrap();
        for at in ["0.0.0.0:1/TCP", "[::]:1/TCP", "192.0.2.1:1/TCP", "0.0.0.0:1/UDP", "[::]:1/UDP"] {
            for wish in [PLAIN, Wish { reuse_addr: true, reuse_port: true, ..PLAIN }] {
                assert_eq!(try_bind(l4(at), 0, wish), Ok(()), "{at} {wish:?}");
            }
            let named = L4Addr { port: 30_080, ..l4(at) };
            assert_eq!(try_bind(named, 30_080, PLAIN), Err(Errno::EADDRINUSE), "{named} by its number");
        }
    });
}

#[test]
fn a_hostnetwork_backend_can_bind_the_nodeport_of_its_service() {
    in_sandbox("sockets::bind::a_hostnetwork_backend_can_bind_the_nodeport_of_its_service", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "[::]:30080/TCP"]);
        let all = ["0.0.0.0:30080/TCP", "192.0.2.1:30080/TCP", "[::]:30080/TCP", "[2001:db8:b::1]:30080/TCP"];
        let all = || all.map(|at| bound(at, PLAIN));
        for may_be_bound in [true, false, true] {
            kernel.apply(&[put(1, ServiceEntry { may_be_bound, ..entry(&["192.0.2.10:8080/TCP"]) })]);
            assert_eq!(all(), [if may_be_bound { Ok(()) } else { Err(Errno::EADDRINUSE) }; 4]);
        }
        drop(kernel);
        let _kernel = Kernel::open(&options(env));
        assert_eq!(all(), [Ok(()); 4], "after a restart");
    });
}

#[test]
fn nodelbs_own_sockets_can_be_bound_whatever_the_maps_say() {
    in_sandbox("sockets::bind::nodelbs_own_sockets_can_be_bound_whatever_the_maps_say", |env| {
        let mut kernel = Kernel::open(&options(env));
        let own = kernel.datapath.own_sockets();
        for protocol in ["TCP", "UDP"] {
            serve(&mut kernel, &[format!("0.0.0.0:30080/{protocol}").as_str(), &format!("[::]:30080/{protocol}")]);
            for host in ["0.0.0.0", "192.0.2.1", "[::]", "[2001:db8:b::1]"] {
                let at = l4(&format!("{host}:30080/{protocol}"));
                assert_eq!(try_bind(at, at.port, PLAIN), Err(Errno::EADDRINUSE), "{at}");
                assert_eq!(try_bind_as(Some(&own), at, at.port, PLAIN), Ok(()), "{at}");
            }
        }
    });
}

#[test]
fn another_network_namespace_is_left_alone() {
    in_sandbox("sockets::bind::another_network_namespace_is_left_alone", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "[::]:30080/TCP"]);
        let pod = Pod::new(0);
        for at in ["0.0.0.0:30080/TCP", "[::]:30080/TCP"] {
            assert_eq!(pod.run(|| bound(at, PLAIN)), Ok(()), "{at} in a pod");
            assert_eq!(bound(at, PLAIN), Err(Errno::EADDRINUSE), "{at} on the host");
        }
    });
}

#[test]
fn everything_can_be_bound_where_it_is_switched_off() {
    in_sandbox("sockets::bind::everything_can_be_bound_where_it_is_switched_off", |env| {
        let off = Options { protect_nodeports: false, ..options(env) };
        let mut kernel = Kernel::open(&off);
        serve(&mut kernel, &["0.0.0.0:30080/TCP", "[::]:30080/TCP"]);
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Ok(()));
        assert_eq!(bound("[::]:30080/TCP", PLAIN), Ok(()));
        assert_eq!(kernel.datapath.verify_links(), []);
        drop(kernel);
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Ok(()), "no daemon runs");
        let kernel = Kernel::open(&options(env));
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Err(Errno::EADDRINUSE));
        drop(kernel);
        assert_eq!(
            bound("0.0.0.0:30080/TCP", PLAIN),
            Err(Errno::EADDRINUSE),
            "no daemon, but the programs are attached"
        );
    });
}

#[test]
fn a_link_that_is_not_there_yet_is_made() {
    in_sandbox("sockets::bind::a_link_that_is_not_there_yet_is_made", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        serve(&mut kernel, &["0.0.0.0:30080/TCP"]);
        drop(kernel);
        // The state after a version of nodelb without these hooks.
        for hook in ["bind4", "bind6"] {
            std::fs::remove_file(options.pin_directory.join("v1/links").join(hook)).unwrap();
        }
        // The kernel detaches in the background.
        while bound("0.0.0.0:30080/TCP", PLAIN).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        let kernel = Kernel::open(&options);
        let made = kernel.report.links.iter().filter(|(_, state)| *state == nodelb_datapath::LinkState::Created);
        assert_eq!(made.map(|(hook, _)| *hook).collect::<Vec<_>>(), ["bind4", "bind6"]);
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Err(Errno::EADDRINUSE));
    });
}

/// An older nodelb had its programs at post_bind, where an automatic bind cannot be distinguished
/// from any other.
#[test]
fn links_that_only_an_older_nodelb_has_are_removed() {
    in_sandbox("sockets::bind::links_that_only_an_older_nodelb_has_are_removed", |env| {
        let options = options(env);
        let links = options.pin_directory.join("v1/links");
        let mut kernel = Kernel::open(&options);
        serve(&mut kernel, &["0.0.0.0:30080/TCP"]);
        drop(kernel);
        for version in ["4", "6"] {
            std::fs::rename(links.join(format!("bind{version}")), links.join(format!("post_bind{version}"))).unwrap();
        }
        let kernel = Kernel::open(&options);
        let names = std::fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.contains("bind")).collect();
        names.sort_unstable();
        assert_eq!(names, ["bind4", "bind6"]);
        assert_eq!(kernel.datapath.verify_links(), []);
        assert_eq!(bound("0.0.0.0:30080/TCP", PLAIN), Err(Errno::EADDRINUSE));
    });
}

/// The pins of these links still exist if no newer daemon was attached since.
#[test]
fn cleanup_removes_links_that_only_an_older_nodelb_has() {
    in_sandbox("sockets::bind::cleanup_removes_links_that_only_an_older_nodelb_has", |env| {
        let options = options(env);
        let links = options.pin_directory.join("v1/links");
        drop(Kernel::open(&options));
        for version in ["4", "6"] {
            std::fs::rename(links.join(format!("bind{version}")), links.join(format!("post_bind{version}"))).unwrap();
        }
        assert_eq!(hidden_links(options.cgroup.as_deref()).unwrap(), [], "their pins can be reached");
        let report = cleanup(&options.pin_directory, &|| (), &CrashPoint::default()).unwrap();
        assert_eq!((report.links, report.left), (10, Vec::new()));
        assert!(!options.pin_directory.exists());
    });
}

#[test]
fn random_binds_do_what_the_maps_say() {
    in_sandbox("sockets::bind::random_binds_do_what_the_maps_say", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        let random = &mut Random::seeded(0x6269_6e64);
        let mut state = MapState::default();
        let change = |kernel: &mut Kernel, state: &mut MapState, op: MapOp| {
            state.apply(&op);
            kernel.apply(&[op]);
        };
        for id in [1, 2] {
            change(&mut kernel, &mut state, put(id, entry(&["192.0.2.10:8080/TCP"])));
        }
        // Most of the automatic range consists of NodePorts.
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "30000 30003").unwrap();
        let own = kernel.datapath.own_sockets();
        let addrs =
            ["0.0.0.0", "192.0.2.1", "192.0.2.2", "127.0.0.1", "[::]", "[2001:db8:b::1]", "[2001:db8:b::2]", "[::1]"];
        let (mut refused, mut allowed) = (0, 0);
        for _ in 0..cases(4_000) {
            let port = random.pick(&[29_999_u16, 30_000, 30_001, 31_000, 32_767, 32_768]);
            let protocol = random.pick(&["TCP", "UDP"]);
            let frontend = format!("{}:{port}/{protocol}", random.pick(&["0.0.0.0", "[::]"]));
            let node = l4(&format!("{}:1", random.pick(&addrs[1..]).replace("[::]", "[::1]"))).addr;
            let id = *random.pick(&[1, 2]);
            let may_be_bound = random.below(4) == 0;
            match random.below(12) {
                0..3 => change(&mut kernel, &mut state, point(&frontend, id)),
                6 => {
                    let entry = ServiceEntry { may_be_bound, ..entry(&["192.0.2.10:8080/TCP"]) };
                    change(&mut kernel, &mut state, put(id, entry));
                }
                3..5 => change(&mut kernel, &mut state, MapOp::DeleteFrontend(l4(&frontend))),
                5 => change(&mut kernel, &mut state, MapOp::PutNodeAddr(node)),
                7 => change(&mut kernel, &mut state, MapOp::DeleteNodeAddr(node)),
                _ => {}
            }
            let at = l4(&format!("{}:{port}/{protocol}", random.pick(&addrs)));
            let mut coin = || random.below(2) == 0;
            let mapped = coin();
            // The kernel accepts no IPv4-mapped address on a socket that is IPv6-only.
            let wish = Wish { mapped, reuse_port: coin(), reuse_addr: coin(), only_v6: coin() && !mapped };
            let (is_own, is_automatic) = (random.below(8) == 0, random.below(8) == 0);
            let only_v6 = wish.only_v6 && at.addr.ip().is_ipv6();
            let takes = taken_nodeports(&state, at, only_v6).next().is_some();
            let is_refused = takes && refuses_bind(&state, &options.nodeport_range, at) && !is_own && !is_automatic;
            let expected = if is_refused { Err(Errno::EADDRINUSE) } else { Ok(()) };
            let number = if is_automatic { 0 } else { at.port };
            let met = try_bind_as(is_own.then_some(&own), at, number, wish);
            assert_eq!(met, expected, "{at} {wish:?} own: {is_own} automatic: {is_automatic} with {state:?}");
            *(if expected.is_ok() { &mut allowed } else { &mut refused }) += 1;
        }
        assert!(refused > 500 && allowed > 500, "{refused} refused, {allowed} allowed");
    });
}

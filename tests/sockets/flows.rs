//! What is read reports every connection through a service, of every network namespace, and no
//! others.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;
use std::{fs, thread};

use nix::sched::{CloneFlags, unshare};
use nodelb_core::stale::Flow;
use nodelb_datapath::{FlowReader, drop_thread_privileges};

use super::{Kernel, in_sandbox, l4, options, target, udp_socket};
use crate::sandbox;

const SERVICE: &str = "198.51.100.1:53/UDP";
const BACKEND: &str = "192.0.2.10:53/UDP";

fn reader(kernel: &Kernel) -> FlowReader {
    assert_eq!(kernel.report.flows, Ok(()));
    kernel.datapath.flows().unwrap()
}

fn udp(flows: &FlowReader) -> Vec<Flow> {
    let mut found = Vec::new();
    flows.udp(&mut |flow| found.push(flow)).unwrap();
    found
}

fn tcp(flows: &FlowReader) -> Vec<Flow> {
    let mut found = Vec::new();
    flows.tcp(&mut |flow| found.push(flow)).unwrap();
    found
}

fn connected(to: SocketAddr) -> UdpSocket {
    let socket = udp_socket(&to);
    socket.connect(to).unwrap();
    socket
}

/// Each flow as `namespace source family frontend backend`.
fn texts(flows: &[Flow]) -> BTreeSet<String> {
    let text = |flow: &Flow| {
        let Flow { socket, frontend, backend } = flow;
        format!("{} {} {} {frontend} {backend}", socket.netns, socket.source, socket.family)
    };
    flows.iter().map(text).collect()
}

fn netns() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").unwrap().ino()
}

/// Runs a client in a new network namespace.
fn in_another_netns<T: Send + 'static>(client: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        for command in ["link set lo up", "address add 192.0.2.0/24 dev lo"] {
            let status = sandbox::program("ip").args(command.split(' ')).status().unwrap();
            assert!(status.success(), "ip {command}");
        }
        client()
    });
    thread.join().unwrap()
}

#[test]
fn every_connection_through_a_service_is_reported() {
    in_sandbox("sockets::flows::every_connection_through_a_service_is_reported", |env| {
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, SERVICE, &[BACKEND]);
        kernel.serve(2, "[2001:db8:f::1]:53/UDP", &["[2001:db8:b::10]:53/UDP"]);
        let flows = reader(&kernel);
        assert_eq!(udp(&flows), []);

        let (v4, v6) = (target(l4(SERVICE), false), target(l4("[2001:db8:f::1]:53/UDP"), false));
        let here = [connected(v4), connected(v6), connected(target(l4(SERVICE), true))];
        let (there, there_netns) = in_another_netns(move || (connected(v4), netns()));
        let families = ["IPv4", "IPv6", "IPv6", "IPv4"];
        let through = |socket: &UdpSocket| match socket.peer_addr().unwrap() == v6 {
            true => "[2001:db8:f::1]:53/UDP [2001:db8:b::10]:53/UDP".to_owned(),
            false => format!("{SERVICE} {BACKEND}"),
        };
        let each = here.iter().map(|socket| (netns(), socket)).chain([(there_netns, &there)]);
        let expected = each.zip(families).map(|((netns, socket), family)| {
            let local = socket.local_addr().unwrap();
            let source = SocketAddr::new(local.ip().to_canonical(), local.port());
            format!("{netns} {source}/UDP {family} {}", through(socket))
        });
        assert_eq!(texts(&udp(&flows)), expected.collect());
        assert_ne!(netns(), there_netns);
        let cookies: BTreeSet<u64> = udp(&flows).iter().map(|flow| flow.socket.cookie).collect();
        assert_eq!(cookies.len(), 4);
        drop((here, there));
        assert_eq!(udp(&flows), [], "closed");
    });
}

#[test]
fn other_sockets_are_not_reported() {
    in_sandbox("sockets::flows::other_sockets_are_not_reported", |env| {
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, SERVICE, &[BACKEND]);
        let flows = reader(&kernel);
        let (service, backend) = (target(l4(SERVICE), false), target(l4(BACKEND), false));

        let unconnected = udp_socket(&service);
        unconnected.send_to(b"?", service).unwrap();
        let direct = connected(backend);
        let own = udp_socket(&service);
        kernel.datapath.own_sockets().register(own.as_fd()).unwrap();
        assert!(own.connect(service).is_err(), "it connects to the untranslated address, which has no route");
        assert_eq!(udp(&flows), []);

        let moved = connected(service);
        assert_eq!(udp(&flows).len(), 1);
        moved.connect(backend).unwrap();
        assert_eq!(udp(&flows), [], "it connected to the backend directly");
        drop((unconnected, direct));
    });
}

#[test]
fn a_backend_of_two_services_is_reported_twice() {
    in_sandbox("sockets::flows::a_backend_of_two_services_is_reported_twice", |env| {
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, SERVICE, &[BACKEND]);
        kernel.serve(2, "198.51.100.2:53/UDP", &[BACKEND]);
        let socket = connected(target(l4(SERVICE), false));
        socket.send_to(b"?", target(l4("198.51.100.2:53/UDP"), false)).unwrap();
        let flows = udp(&reader(&kernel));
        let mut frontends: Vec<String> = flows.iter().map(|flow| flow.frontend.to_string()).collect();
        frontends.sort_unstable();
        assert_eq!(frontends, [SERVICE, "198.51.100.2:53/UDP"]);
        assert_eq!(flows[0].socket, flows[1].socket);
    });
}

/// A socket talks to more services than fit into its own state; the one that it is connected to is never evicted.
#[test]
fn a_connected_socket_that_talks_to_many_services_is_reported() {
    in_sandbox("sockets::flows::a_connected_socket_that_talks_to_many_services_is_reported", |env| {
        let mut kernel = Kernel::open(&options(env));
        let (v4, v6) = (|id: u32| format!("198.51.100.{id}:53/UDP"), |id: u32| format!("[2001:db8:f::{id}]:53/UDP"));
        for id in 1..=20 {
            kernel.serve(id, &v4(id), &[&format!("192.0.2.{id}:53/UDP")]);
            kernel.serve(id + 20, &v6(id), &[&format!("[2001:db8:b::{id}]:53/UDP")]);
        }
        let flows = reader(&kernel);
        for (is_v6, mapped) in [(false, false), (false, true), (true, false)] {
            let address = |id: u32| target(l4(&if is_v6 { v6(id) } else { v4(id) }), mapped);
            let socket = connected(address(1));
            for id in (2..=20).chain(2..=20) {
                socket.send_to(b"?", address(id)).unwrap();
            }
            let found = udp(&flows);
            let frontends: Vec<SocketAddr> = found.iter().map(|flow| target(flow.frontend, mapped)).collect();
            assert_eq!((frontends, socket.peer_addr().unwrap()), (vec![address(1)], address(1)));
        }
    });
}

#[test]
fn tcp_connections_are_reported_until_they_close() {
    in_sandbox("sockets::flows::tcp_connections_are_reported_until_they_close", |env| {
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:8080/TCP"]);
        let listener = TcpListener::bind("192.0.2.10:8080").unwrap();
        let flows = reader(&kernel);
        let client = TcpStream::connect("198.51.100.1:80").unwrap();
        let (server, _) = listener.accept().unwrap();
        let local = client.local_addr().unwrap();
        let expected = format!("{} {local}/TCP IPv4 198.51.100.1:80/TCP 192.0.2.10:8080/TCP", netns());
        assert_eq!(texts(&tcp(&flows)), BTreeSet::from([expected]));
        assert_eq!(udp(&flows), []);
        drop((client, server));
        assert_eq!(tcp(&flows), []);
    });
}

#[test]
fn ten_thousand_connections_are_read_without_capabilities() {
    in_sandbox("sockets::flows::ten_thousand_connections_are_read_without_capabilities", |env| {
        const SOCKETS: usize = 10_000;
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, SERVICE, &[BACKEND]);
        let service = target(l4(SERVICE), false);
        rustix::process::setrlimit(
            rustix::process::Resource::Nofile,
            rustix::process::Rlimit { current: Some(SOCKETS as u64 + 1_000), maximum: Some(SOCKETS as u64 + 1_000) },
        )
        .unwrap();
        let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| connected(service)).collect();
        // The kernel may fail to allocate the state of a socket: such a socket shows its backend.
        let known = sockets.iter().filter(|socket| socket.peer_addr().unwrap() == service).count();
        assert!(known > SOCKETS - 10, "{known}");
        let flows = reader(&kernel);
        drop_thread_privileges(&kernel.datapath).unwrap();
        let read = || {
            let start = Instant::now();
            let found = udp(&flows);
            let cookies: BTreeSet<u64> = found.iter().map(|flow| flow.socket.cookie).collect();
            (found.len() == known && cookies.len() == known).then(|| start.elapsed())
        };
        // The kernel resumes at a position in a list, so that a socket that is closed meanwhile
        // hides another one until the next reading.
        let best = (0..20).filter_map(|_| read()).min().expect("a reading that is complete");
        drop(writeln!(io::stdout(), "{SOCKETS} UDP connections are read in {best:?}"));
        drop(sockets);
    });
}

//! The backend that a connection reaches, and the address that the client sees.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nix::errno::Errno;
use nodelb_core::datapath::Datapath as _;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::packets::admission::Refusal;
use nodelb_core::state::entries::{FrontendEntry, MapOp, MapState, ServiceEntry, ServiceId};
use nodelb_core::trace::{Verdict, destination, trace};

use crate::pod::Pod;

use super::{
    Kernel, Random, SocketMode, backend, backends, cases, exchange, in_sandbox, l4, list, options, point, put, slot,
    target,
};

const SOCKET_MODES: [SocketMode; 3] = [SocketMode::Tcp, SocketMode::UdpConnected, SocketMode::UdpUnconnected];

fn protocol(mode: SocketMode) -> Protocol {
    if mode == SocketMode::Tcp { Protocol::Tcp } else { Protocol::Udp }
}

/// All backends: six addresses in each family, TCP and UDP.
fn pool() -> Vec<L4Addr> {
    let addr = |i: u32| [format!("192.0.2.{}:8080", 10 + i), format!("[2001:db8:b::{}]:8081", 10 + i)];
    let texts = (0..6).flat_map(addr).flat_map(|addr| [format!("{addr}/TCP"), format!("{addr}/UDP")]);
    texts.map(|text| l4(&text)).collect()
}

/// A service entry with up to four backends of the frontend's family and protocol.
fn random_entry(random: &mut Random, pool: &[L4Addr], frontend: L4Addr) -> ServiceEntry {
    let fits: Vec<L4Addr> = pool
        .iter()
        .copied()
        .filter(|addr| addr.protocol == frontend.protocol && addr.addr.family() == frontend.addr.family())
        .collect();
    let mut some = |most| (0..random.below(most)).map(|_| slot(*random.pick(&fits))).collect::<Vec<_>>();
    let (cluster, local) = (some(5), some(3));
    let has_backends = !cluster.is_empty() || !local.is_empty();
    ServiceEntry { cluster: cluster.into(), local: local.into(), has_backends, ..ServiceEntry::default() }
}

/// One frontend for each service id; one in eight is a NodePort.
fn random_frontend(random: &mut Random, id: usize) -> L4Addr {
    let v4 = random.below(2) == 0;
    let addr = match (random.below(8), v4) {
        (0, true) => format!("0.0.0.0:{}", 30_000 + id),
        (0, false) => format!("[::]:{}", 30_000 + id),
        (_, true) => format!("198.51.100.{id}:80"),
        (_, false) => format!("[2001:db8:f::{id:x}]:80"),
    };
    l4(&format!("{addr}/{}", random.pick(&["TCP", "UDP"])))
}

/// Addresses where clients use the port of a NodePort: node addresses, among them sometimes
/// loopback, another address of this host, and the unspecified address.
const NODE_SIDE: [[&str; 4]; 2] =
    [["192.0.2.1", "192.0.2.2", "127.0.0.1", "0.0.0.0"], ["2001:db8:b::1", "2001:db8:b::2", "::1", "::"]];

/// A destination: a frontend, an address of this host with its port, a backend itself, or one without a listener.
fn random_destination(random: &mut Random, frontends: &[L4Addr], pool: &[L4Addr], protocol: Protocol) -> L4Addr {
    let frontend = *random.pick(frontends);
    let nowhere = *random.pick(&[l4("198.51.100.250:80/TCP"), l4("[2001:db8:f::ffff]:80/TCP")]);
    let addr = match random.below(10) {
        0 => nowhere,
        1 => *random.pick(pool),
        _ if frontend.addr.is_unspecified() => {
            let host = random.pick(&NODE_SIDE[usize::from(frontend.addr.ip().is_ipv6())]);
            L4Addr { addr: host.parse().unwrap(), ..frontend }
        }
        _ => frontend,
    };
    L4Addr { protocol, ..addr }
}

#[test]
fn random_flows_do_what_the_maps_say() {
    in_sandbox("sockets::translation::random_flows_do_what_the_maps_say", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        let pool = pool();
        pool.iter().copied().for_each(backend);
        let random = &mut Random::seeded(0x6e6f_6465_6c62);
        let frontends: Vec<L4Addr> = (1..100).map(|id| random_frontend(random, id)).collect();
        let mut state = MapState::default();
        let change = |kernel: &mut Kernel, state: &mut MapState, op: MapOp| {
            state.apply(&op);
            kernel.apply(&[op]);
        };
        for addr in ["192.0.2.1:1/TCP", "[2001:db8:b::1]:1/TCP"] {
            change(&mut kernel, &mut state, MapOp::PutNodeAddr(l4(addr).addr));
        }
        for (id, frontend) in (1..).zip(&frontends) {
            change(&mut kernel, &mut state, put(id, random_entry(random, &pool, *frontend)));
            let inside_local = random.below(3) == 0;
            let entry = FrontendEntry { service: ServiceId(id), inside_local, outside_local: false };
            change(&mut kernel, &mut state, MapOp::PutFrontend(*frontend, entry));
        }
        for round in 0..cases(3_000) {
            if round % 10 == 0 {
                let at = random.below(frontends.len());
                let id = u32::try_from(at).unwrap() + 1;
                let loopback = random.pick(&["127.0.0.1", "::1"]).parse().unwrap();
                let op = match random.below(10) {
                    0 => MapOp::DeleteFrontend(frontends[at]),
                    1 => MapOp::PutNodeAddr(loopback),
                    2 => MapOp::DeleteNodeAddr(loopback),
                    _ => put(id, random_entry(random, &pool, frontends[at])),
                };
                change(&mut kernel, &mut state, op);
            }
            let mode = *random.pick(&SOCKET_MODES);
            let to = random_destination(random, &frontends, &pool, protocol(mode));
            let mapped = random.below(2) == 0;
            if mode == SocketMode::UdpUnconnected && is_here(to) && !pool.contains(&to) {
                // An unconnected socket does not get an error if nothing listens.
                if trace(&state, &options.nodeport_range, to) == Verdict::PassedThrough {
                    continue;
                }
            }
            check(&trace(&state, &options.nodeport_range, to), mode, to, target(to, mapped));
        }
        assert_eq!(kernel.datapath.dump().unwrap(), state);
    });
}

/// Whether the address is local in the sandbox.
fn is_here(to: L4Addr) -> bool {
    let addr = to.addr.to_string();
    to.addr.is_unspecified() || to.addr.is_loopback() || addr.starts_with("192.0.2.") || addr.starts_with("2001:db8:b:")
}

fn check(expected: &Verdict<'_>, mode: SocketMode, to: L4Addr, destination_addr: SocketAddr) {
    let got = exchange(mode, destination_addr);
    match (expected, &got) {
        (Verdict::Forwarded(_, slots), Ok(reached)) => {
            let fits = slots.iter().any(|slot| slot.addr == reached.backend);
            assert!(fits, "{mode:?} to {destination_addr}: {reached:?}, not in {slots:?}");
            let named = target(destination(to), destination_addr.is_ipv6());
            assert_eq!(reached.shown, named, "{mode:?}: the client sees the address that it connected to");
        }
        (Verdict::PassedThrough, Ok(reached)) => assert_eq!((reached.backend, reached.shown), (to, destination_addr)),
        (Verdict::PassedThrough, Err(error)) => {
            let errno_without_listener = if is_here(to) { Errno::ECONNREFUSED } else { Errno::ENETUNREACH };
            assert_eq!(
                error.raw_os_error(),
                Some(errno_without_listener as i32),
                "{mode:?} to {destination_addr}: {error}"
            );
        }
        (Verdict::Refused(_, why), Err(error)) => {
            let number = match why {
                Refusal::NoBackend => Errno::ECONNREFUSED,
                Refusal::NoLocalBackend | Refusal::NotAdmitted => Errno::EHOSTUNREACH,
            };
            assert_eq!(error.raw_os_error(), Some(number as i32), "{mode:?} {destination_addr}");
        }
        _ => panic!("{mode:?} to {destination_addr}: expected {expected:?}, got {got:?}"),
    }
}

#[test]
fn weights_are_shares() {
    in_sandbox("sockets::translation::weights_are_shares", |env| {
        let mut kernel = Kernel::open(&options(env));
        let (heavy, light) = ("192.0.2.10:8080/TCP", "192.0.2.11:8080/TCP");
        backends(&[heavy, light]);
        let mut entry = super::entry(&[heavy]);
        entry.cluster = list(&[heavy, heavy, heavy, light]);
        kernel.apply(&[put(1, entry), point("198.51.100.1:80/TCP", 1)]);
        let mut seen: BTreeMap<L4Addr, u32> = BTreeMap::new();
        for _ in 0..2_000 {
            let reached = exchange(SocketMode::Tcp, "198.51.100.1:80".parse().unwrap()).unwrap();
            *seen.entry(reached.backend).or_default() += 1;
        }
        // 1500 expected; the standard deviation is 19.
        assert!((1_380..1_620).contains(&seen[&l4(heavy)]), "{seen:?}");
    });
}

#[test]
fn a_nodeport_is_answered_on_node_addresses_only() {
    in_sandbox("sockets::translation::a_nodeport_is_answered_on_node_addresses_only", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:8080/TCP", "[2001:db8:b::10]:8080/TCP"]);
        kernel.serve(1, "0.0.0.0:30080/TCP", &["192.0.2.10:8080/TCP"]);
        kernel.serve(2, "[::]:30080/TCP", &["[2001:db8:b::10]:8080/TCP"]);
        let refused = |to: &str| exchange(SocketMode::Tcp, to.parse().unwrap()).unwrap_err().kind();
        let reached = |to: &str| exchange(SocketMode::Tcp, to.parse().unwrap()).unwrap().backend;
        assert_eq!(refused("192.0.2.1:30080"), std::io::ErrorKind::ConnectionRefused, "no node address yet");
        kernel.apply(&["192.0.2.1:1/TCP", "[2001:db8:b::1]:1/TCP"].map(|addr| MapOp::PutNodeAddr(l4(addr).addr)));
        assert_eq!(reached("192.0.2.1:30080"), l4("192.0.2.10:8080/TCP"));
        assert_eq!(reached("[::ffff:192.0.2.1]:30080"), l4("192.0.2.10:8080/TCP"));
        assert_eq!(reached("[2001:db8:b::1]:30080"), l4("[2001:db8:b::10]:8080/TCP"));
        assert_eq!(refused("192.0.2.2:30080"), std::io::ErrorKind::ConnectionRefused, "another address");
        assert_eq!(refused("192.0.2.1:29999"), std::io::ErrorKind::ConnectionRefused, "outside the range");
        kernel.apply(&[MapOp::DeleteNodeAddr(l4("192.0.2.1:1/TCP").addr)]);
        assert_eq!(refused("192.0.2.1:30080"), std::io::ErrorKind::ConnectionRefused, "no longer");
    });
}

/// Every network namespace has its own 127.0.0.1: a pod's loopback is not the node's.
#[test]
fn a_nodeport_on_loopback_is_for_the_node_alone() {
    in_sandbox("sockets::translation::a_nodeport_on_loopback_is_for_the_node_alone", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:8080/TCP", "192.0.2.10:8080/UDP", "[2001:db8:b::10]:8080/TCP"]);
        kernel.serve(1, "0.0.0.0:30080/TCP", &["192.0.2.10:8080/TCP"]);
        kernel.serve(2, "[::]:30080/TCP", &["[2001:db8:b::10]:8080/TCP"]);
        kernel.serve(3, "0.0.0.0:30080/UDP", &["192.0.2.10:8080/UDP"]);
        let loopback = ["127.0.0.1:1/TCP", "[::1]:1/TCP", "192.0.2.1:1/TCP"];
        kernel.apply(&loopback.map(|addr| MapOp::PutNodeAddr(l4(addr).addr)));
        let exchange = |mode, to: &str| exchange(mode, to.parse().unwrap());
        let ways = [
            (SocketMode::Tcp, "127.0.0.1:30080"),
            (SocketMode::Tcp, "[::1]:30080"),
            (SocketMode::UdpConnected, "127.0.0.1:30080"),
        ];
        for (mode, to) in ways {
            assert_eq!(exchange(mode, to).unwrap().backend.port, 8080, "{to}");
        }
        assert_eq!(exchange(SocketMode::Tcp, "[::ffff:127.0.0.1]:30080").unwrap().backend, l4("192.0.2.10:8080/TCP"));
        Pod::new(0).run(|| {
            for (mode, to) in ways {
                assert!(exchange(mode, to).is_err(), "{to}");
            }
            assert_eq!(exchange(SocketMode::Tcp, "192.0.2.1:30080").unwrap().backend, l4("192.0.2.10:8080/TCP"));
        });
    });
}

/// 0.0.0.0 and :: are the loopback of the process's network namespace, never the entry of a
/// NodePort, which has the same address as its key.
#[test]
fn the_unspecified_address_is_the_loopback_of_the_process() {
    in_sandbox("sockets::translation::the_unspecified_address_is_the_loopback_of_the_process", |env| {
        let mut kernel = Kernel::open(&options(env));
        let backend_v4 = ["192.0.2.10:8080/TCP", "192.0.2.10:8080/UDP"];
        backends(&backend_v4);
        backends(&["[2001:db8:b::10]:8080/TCP"]);
        kernel.serve(1, "0.0.0.0:30080/TCP", &backend_v4[..1]);
        kernel.serve(2, "0.0.0.0:30080/UDP", &backend_v4[1..]);
        kernel.serve(3, "[::]:30080/TCP", &["[2001:db8:b::10]:8080/TCP"]);
        kernel.apply(&[MapOp::PutNodeAddr("192.0.2.1".parse().unwrap())]);
        let ways = [
            (SocketMode::Tcp, "0.0.0.0:30080", "127.0.0.1:30080"),
            (SocketMode::Tcp, "[::ffff:0.0.0.0]:30080", "[::ffff:127.0.0.1]:30080"),
            (SocketMode::Tcp, "[::]:30080", "[::1]:30080"),
            (SocketMode::UdpConnected, "0.0.0.0:30080", "127.0.0.1:30080"),
            (SocketMode::UdpUnconnected, "0.0.0.0:30080", "127.0.0.1:30080"),
            (SocketMode::UdpUnconnected, "[::ffff:0.0.0.0]:30080", "[::ffff:127.0.0.1]:30080"),
        ];
        // Servers in the pod itself.
        let own = ["127.0.0.1:30080/TCP", "[::1]:30080/TCP", "127.0.0.1:30080/UDP"];
        let reach =
            || ways.map(|(mode, to, _)| exchange(mode, to.parse().unwrap()).map(|reached| reached.backend.port));
        let pod = Pod::new(0);
        pod.run(|| own.into_iter().for_each(|addr| backend(l4(addr))));
        for loopback in [false, true] {
            if loopback {
                kernel.apply(&["127.0.0.1", "::1"].map(|addr| MapOp::PutNodeAddr(addr.parse().unwrap())));
            }
            assert!(
                pod.run(reach).into_iter().all(|port| port.unwrap() == 30_080),
                "with NodePorts on loopback: {loopback}"
            );
        }
        for (mode, to, shown) in ways {
            let reached = exchange(mode, to.parse().unwrap()).unwrap();
            assert_eq!((reached.backend.port, reached.shown), (8_080, shown.parse().unwrap()), "{mode:?} {to}");
        }
        kernel.apply(&["127.0.0.1", "::1"].map(|addr| MapOp::DeleteNodeAddr(addr.parse().unwrap())));
        own.into_iter().for_each(|addr| backend(l4(addr)));
        assert!(reach().into_iter().all(|port| port.unwrap() == 30_080), "not answered on loopback");
    });
}

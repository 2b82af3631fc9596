//! Session affinity: a client, identified by its network namespace, keeps its backend.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::state::entries::{FrontendEntry, MapOp, ServiceEntry, ServiceId};
use nodelb_datapath::Options;
use nodelb_prober::{Backend, Transport, exchange};

use super::atomic::show_backends;
use super::crash::survived;
use super::{Kernel, Random, SocketMode, backends, entry, in_sandbox, l4, options, part, part_command, point, put};
use crate::crash_points::crash_points;
use crate::pod::Pod;
use crate::sandbox::Sandbox;

const ALL: [&str; 5] =
    ["192.0.2.10:80/TCP", "192.0.2.11:80/TCP", "192.0.2.12:80/TCP", "192.0.2.13:80/TCP", "192.0.2.14:80/TCP"];

fn with(backends: &[&str], affinity_seconds: u32) -> ServiceEntry {
    ServiceEntry { affinity_seconds, ..entry(backends) }
}

fn reached() -> L4Addr {
    super::exchange(SocketMode::Tcp, "198.51.100.1:80".parse().unwrap()).unwrap().backend
}

#[test]
fn a_client_keeps_its_backend_while_others_come_and_go() {
    in_sandbox("sockets::affinity::a_client_keeps_its_backend_while_others_come_and_go", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 3600)), point("198.51.100.1:80/TCP", 1)]);
        let first = reached();
        let others: Vec<&str> = ALL.into_iter().filter(|addr| l4(addr) != first).collect();
        for gone in 0..=others.len() {
            let mut left: Vec<&str> = others[gone..].to_vec();
            let name = first.to_string();
            left.push(&name);
            left.sort_unstable();
            kernel.apply(&[put(1, with(&left, 3600))]);
            assert_eq!(reached(), first, "{gone} others gone");
        }
        kernel.apply(&[put(1, with(&ALL, 3600))]);
        for _ in 0..20 {
            assert_eq!(reached(), first, "all others back");
        }
        drop(kernel);
        let mut kernel = Kernel::open(&options);
        assert_eq!(reached(), first, "after a restart");

        kernel.apply(&[put(1, with(&others, 3600))]);
        let second = reached();
        assert_ne!(second, first, "its backend is gone");
        kernel.apply(&[put(1, with(&ALL, 3600))]);
        for _ in 0..20 {
            assert_eq!(reached(), second, "the first backend's return changes nothing");
        }
    });
}

/// Number of connections of each client over each protocol.
const CONNECTS: usize = 10_000;

/// The addresses of one service port: ClusterIP, NodePort, LoadBalancer address.
const FRONTENDS: [&str; 3] = ["198.51.100.1:80", "203.0.113.1:30080", "198.51.100.101:80"];

/// A service port with all three addresses and the backends in `hosts`, each one to three times, as
/// with weights.
struct Port {
    id: u32,
    protocol: &'static str,
}

impl Port {
    fn frontends(&self) -> Vec<MapOp> {
        let own = |index: usize| point(&format!("{}/{}", FRONTENDS[index], self.protocol), self.id);
        let nodeport = FrontendEntry { service: ServiceId(self.id), inside_local: false, outside_local: false };
        let any = l4(&format!("0.0.0.0:30080/{}", self.protocol));
        let node: Addr = "203.0.113.1".parse().unwrap();
        vec![own(0), MapOp::PutFrontend(any, nodeport), own(2), MapOp::PutNodeAddr(node)]
    }

    fn put(&self, hosts: &[u32], affinity_seconds: u32, random: &mut Random) -> MapOp {
        let mut list = Vec::new();
        for host in hosts {
            let addr = format!("192.0.2.{host}:8080/{}", self.protocol);
            list.extend(std::iter::repeat_n(addr, 1 + random.below(3)));
        }
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        put(self.id, with(&list, affinity_seconds))
    }
}

/// Backends that listen on both protocols, identified by the last byte of their address.
fn listen(hosts: impl Iterator<Item = u32>) -> Vec<Backend> {
    let start = |host: u32| {
        let at = SocketAddr::from(([192, 0, 2, u8::try_from(host).unwrap()], 8080));
        Backend::start(&host.to_string(), &[(Transport::Tcp, at), (Transport::Udp, at)]).unwrap()
    };
    hosts.map(start).collect()
}

fn answering(to: &str, transport: Transport) -> u32 {
    let name = exchange(to.parse().unwrap(), transport, Duration::from_secs(5));
    name.unwrap_or_else(|failure| panic!("{to}: {failure}")).parse().unwrap()
}

/// The backends of a hundred connections.
fn spread(transport: Transport) -> BTreeSet<u32> {
    (0..100).map(|_| answering(FRONTENDS[0], transport)).collect()
}

/// Connects to each address in turn; the backend must be `own` every time. Counts in `done`.
fn keep(own: u32, done: &AtomicUsize) {
    for index in 0..CONNECTS {
        let to = FRONTENDS[index % FRONTENDS.len()];
        let udp = if index % 2 == 0 { Transport::Udp } else { Transport::UdpUnconnected };
        for transport in [Transport::Tcp, udp] {
            assert_eq!(answering(to, transport), own, "connection {index} to {to} over {transport:?}");
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The backend of the host, the one of the pod, and all backends.
const OWN: [u32; 2] = [20, 21];
const HOSTS: RangeInclusive<u32> = 10..=40;

#[test]
fn ten_thousand_connections_keep_their_backend_while_others_come_and_go() {
    in_sandbox("sockets::affinity::ten_thousand_connections_keep_their_backend_while_others_come_and_go", |env| {
        // Each change takes a new run of slots, and the old one rests for a second.
        let limits = Limits { slots: 200_000, ..options(env).limits };
        let mut kernel = Kernel::open(&Options { limits, ..options(env) });
        let pod = Pod::new(0);
        let _backends = listen(HOSTS);
        let ports = [Port { id: 1, protocol: "TCP" }, Port { id: 2, protocol: "UDP" }];
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for port in &ports {
            kernel.apply(&[port.put(&OWN, 3600, &mut random)]);
            kernel.apply(&port.frontends());
        }
        // Each client gets its own backend first and has to keep it from then on.
        for (client, own) in OWN.into_iter().enumerate() {
            let ops = ports.each_ref().map(|port| port.put(&[own], 3600, &mut random));
            kernel.apply(&ops);
            let first = || [Transport::Tcp, Transport::Udp].map(|transport| answering(FRONTENDS[0], transport));
            assert_eq!(if client == 0 { first() } else { pod.run(first) }, [own, own]);
        }
        kernel.apply(&ports.each_ref().map(|port| port.put(&OWN, 3600, &mut random)));
        let done = AtomicUsize::new(0);
        let mut changes = 0;
        thread::scope(|scope| {
            let clients = [scope.spawn(|| keep(OWN[0], &done)), scope.spawn(|| pod.run(|| keep(OWN[1], &done)))];
            while clients.iter().any(|client| !client.is_finished()) {
                let mut hosts: Vec<u32> = HOSTS.filter(|host| OWN.contains(host) || random.below(3) == 0).collect();
                if random.below(10) == 0 {
                    hosts = OWN.into();
                }
                kernel.apply(&ports.each_ref().map(|port| port.put(&hosts, 3600, &mut random)));
                changes += 1;
                sleep(Duration::from_millis(2));
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        assert_eq!(done.load(Ordering::Relaxed), 2 * CONNECTS);
        assert!(changes > 100, "only {changes} changes while they connected");
    });
}

#[test]
fn affinity_breaks_when_it_should() {
    in_sandbox("sockets::affinity::affinity_breaks_when_it_should", |env| {
        let mut kernel = Kernel::open(&options(env));
        let pod = Pod::new(0);
        let _backends = listen(HOSTS);
        let mut random = Random(7);
        for (port, transport) in [
            (Port { id: 1, protocol: "TCP" }, Transport::Tcp),
            (Port { id: 2, protocol: "UDP" }, Transport::Udp),
            (Port { id: 3, protocol: "UDP" }, Transport::UdpUnconnected),
        ] {
            let mut put = |kernel: &mut Kernel, hosts: &[u32], seconds| {
                kernel.apply(&[port.put(hosts, seconds, &mut random)]);
            };
            let all = || FRONTENDS.map(|to| answering(to, transport));
            put(&mut kernel, &[10], 3600);
            kernel.apply(&port.frontends());
            assert_eq!(all(), [10; 3]);

            put(&mut kernel, &[11, 12], 3600);
            let second = all();
            assert!(second[0] != 10 && second == [second[0]; 3], "its backend has gone: {second:?}, by all addresses");
            put(&mut kernel, &[10, 11, 12], 3600);
            assert_eq!(all(), second, "the return of the first changes nothing");

            put(&mut kernel, &[13], 3600);
            assert_eq!(pod.run(all), [13; 3]);
            put(&mut kernel, &[10, 11, 12, 13], 3600);
            assert_eq!((all(), pod.run(all)), (second, [13; 3]), "a pod's backend is not the host's");

            put(&mut kernel, &[10, 11, 12, 13], 0);
            for (who, seen) in [("host", spread(transport)), ("pod", pod.run(|| spread(transport)))] {
                assert_eq!(seen.len(), 4, "switched off, and the {who} goes only to {seen:?}");
            }
            put(&mut kernel, &[10, 11, 12, 13], 3600);
            let again = all();
            assert_eq!(again, [again[0]; 3], "switched on");
        }
    });
}

#[test]
fn affinity_ends_when_the_client_stays_away() {
    in_sandbox("sockets::affinity::affinity_ends_when_the_client_stays_away", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 2)), point("198.51.100.1:80/TCP", 1)]);
        let mut last = Instant::now();
        let mut kept = reached();
        for _ in 0..8 {
            sleep(Duration::from_millis(600));
            let (began, backend) = (Instant::now(), reached());
            // A busy machine may have delayed the client for two seconds.
            assert!(backend == kept || last.elapsed() >= Duration::from_secs(2), "each connection renews it");
            (last, kept) = (began, backend);
        }
        // Five free choices among five backends are the same once in 3125 tries.
        let moved = (0..6).any(|_| {
            sleep(Duration::from_millis(2_100));
            reached() != kept
        });
        assert!(moved, "still {kept} after six times longer than two seconds away");
    });
}

#[test]
fn without_affinity_connections_spread() {
    in_sandbox("sockets::affinity::without_affinity_connections_spread", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 0)), point("198.51.100.1:80/TCP", 1)]);
        let mut seen: Vec<L4Addr> = (0..200).map(|_| reached()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), ALL.len());
    });
}

#[test]
fn each_service_port_has_an_affinity_of_its_own() {
    in_sandbox("sockets::affinity::each_service_port_has_an_affinity_of_its_own", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL[..3], 3600)), put(2, with(&ALL[1..], 3600))]);
        kernel.apply(&[point("198.51.100.1:80/TCP", 1), point("198.51.100.1:81/TCP", 2)]);
        let both = || {
            ["198.51.100.1:80", "198.51.100.1:81"]
                .map(|to| super::exchange(SocketMode::Tcp, to.parse().unwrap()).unwrap().backend)
        };
        let first = both();
        for _ in 0..50 {
            assert_eq!(both(), first);
        }
        let left: Vec<&str> = ALL[..3].iter().copied().filter(|addr| l4(addr) != first[0]).collect();
        kernel.apply(&[put(1, with(&left, 3600))]);
        let second = both();
        assert_ne!(second[0], first[0], "the backend of the first port has gone");
        assert_eq!(second[1], first[1], "which is nothing to the second");
    });
}

/// The services of the tests that restart, each of which a client meets for the first time at some moment.
const SERVICES: RangeInclusive<u32> = 1..=200;

fn serve_all(kernel: &mut Kernel) {
    for id in SERVICES {
        kernel.apply(&[put(id, with(&ALL, 3600)), point(&format!("198.51.100.1:{}/TCP", 1000 + id), id)]);
    }
}

/// The backend of a new connection to this service.
fn reached_at(id: u32) -> L4Addr {
    super::exchange(SocketMode::Tcp, format!("198.51.100.1:{}", 1000 + id).parse().unwrap()).unwrap().backend
}

#[test]
fn a_backend_that_a_client_gets_while_maps_are_replaced_is_kept() {
    in_sandbox("sockets::affinity::a_backend_that_a_client_gets_while_maps_are_replaced_is_kept", |env| {
        let mut options = options(env);
        serve_all(&mut Kernel::open(&options));
        backends(&ALL);
        let mut services = SERVICES;
        for what in ["slots", "affinity"] {
            let limit = if what == "slots" { &mut options.limits.slots } else { &mut options.limits.affinity };
            *limit += 1;
            let is_open = AtomicBool::new(false);
            let first = thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let mut first = Vec::new();
                    while !is_open.load(Ordering::Relaxed) {
                        first.extend(services.by_ref().take(1).map(|id| (id, reached_at(id))));
                        sleep(Duration::from_millis(4));
                    }
                    first
                });
                drop(Kernel::open(&options));
                is_open.store(true, Ordering::Relaxed);
                client.join().unwrap()
            });
            for (id, backend) in first {
                assert_eq!(reached_at(id), backend, "service {id}, max-{what}");
            }
        }
    });
}

/// After the crash, some hooks may run the programs of the start that has ended, and their maps are given up.
#[test]
fn a_crash_while_maps_are_replaced_moves_no_client() {
    const TEST: &str = "sockets::affinity::a_crash_while_maps_are_replaced_moves_no_client";
    in_sandbox(TEST, |env| {
        let usual = options(env);
        if let Some(after) = part() {
            let mut other = Options { crash_after: Some(after.parse().unwrap()), ..usual };
            other.limits.slots += 1;
            drop(Kernel::open(&other));
            return;
        }
        Kernel::open(&usual).apply(&[put(1, with(&ALL, 3600)), point("198.51.100.1:80/TCP", 1)]);
        backends(&ALL);
        let end = crash_points(200).find(|after| {
            let status = part_command(TEST, &after.to_string()).status().unwrap();
            let first = reached();
            let generation = Kernel::open(&usual).report.generation;
            assert_eq!(reached(), first, "a crash after operation {after}");
            let map = usual.pin_directory.join(format!("v1/g{generation}/affinity"));
            forget_clients(&MapHandle::from_pinned_path(map).unwrap());
            survived(status, *after)
        });
        assert!(end.is_some_and(|after| after > 25), "a start has more operations: {end:?}");
    });
}

/// The kernel's affinity entry of the only client of the only service.
struct Kept {
    map: MapHandle,
}

impl Kept {
    fn open(env: &Sandbox) -> Self {
        Self { map: MapHandle::from_pinned_path(env.bpffs.join("nodelb/v1/g1/affinity")).unwrap() }
    }

    fn key(&self) -> Vec<u8> {
        let mut keys = self.map.keys();
        let key = keys.next().expect("a client is known");
        assert_eq!(keys.next(), None, "one client of one service");
        key
    }

    fn forget(&self) {
        forget_clients(&self.map);
    }

    /// Sets the time of last use, relative to now.
    fn set_last_used(&self, seconds: f64) {
        let key = self.key();
        let mut value = self.map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap());
        let at = if seconds < 0.0 {
            now - Duration::from_secs_f64(-seconds)
        } else {
            now + Duration::from_secs_f64(seconds)
        };
        value[..8].copy_from_slice(&u64::try_from(at.as_nanos()).unwrap().to_ne_bytes());
        self.map.update(&key, &value, MapFlags::ANY).unwrap();
    }

    /// Sets a backend that is not in any list.
    fn set_gone(&self) {
        let key = self.key();
        let mut value = self.map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        value[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        self.map.update(&key, &value, MapFlags::ANY).unwrap();
    }
}

fn forget_clients(affinity: &MapHandle) {
    for key in affinity.keys().collect::<Vec<_>>() {
        affinity.delete(&key).unwrap();
    }
}

/// Fifty backends, so that two free choices are almost never the same.
fn serve_fifty(kernel: &mut Kernel, affinity_seconds: u32) {
    let list: Vec<String> = (1..=50).map(|host| format!("192.0.2.{host}:53/UDP")).collect();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    kernel.apply(&[put(1, with(&list, affinity_seconds)), point("198.51.100.1:53/UDP", 1)]);
}

/// The backend of a new socket, found without a datagram; requires [`show_backends`].
fn connected(socket: &UdpSocket) -> SocketAddr {
    socket.connect("198.51.100.1:53").unwrap();
    socket.peer_addr().unwrap()
}

fn new_socket() -> UdpSocket {
    UdpSocket::bind("0.0.0.0:0").unwrap()
}

/// Another CPU has stored a time slightly later than the clock of this one.
#[test]
fn a_clock_that_is_behind_is_no_expiry() {
    in_sandbox("sockets::affinity::a_clock_that_is_behind_is_no_expiry", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_fifty(&mut kernel, 10);
        show_backends(env);
        let kept = Kept::open(env);
        let random = &mut Random(11);
        let first = connected(&new_socket());
        for _ in 0..50 {
            let ahead = *random.pick(&[0.000_001, 0.004, 0.02, 1.0, -1.0, -8.0]);
            kept.set_last_used(ahead);
            assert_eq!(connected(&new_socket()), first, "last used {ahead} seconds from now");
        }
        kept.set_last_used(-11.0);
        let moved = (0..5).any(|_| {
            kept.set_last_used(-11.0);
            connected(&new_socket()) != first
        });
        assert!(moved, "eleven seconds are longer than ten");
    });
}

/// Number of connections of each client in a race.
const RACES: usize = 6_000;

/// A spin barrier: both threads continue at the same moment.
#[derive(Default)]
struct Line(AtomicUsize);

impl Line {
    fn cross(&self) {
        let number = self.0.fetch_add(1, Ordering::SeqCst);
        let mut turns = 0;
        while self.0.load(Ordering::SeqCst) < (number / 2 + 1) * 2 {
            turns += 1;
            if turns % 2_000 == 0 {
                thread::yield_now();
            }
        }
    }
}

/// Two threads connect at the same time, repeatedly, each time after `before`; returns how often
/// they got different backends, and whether a later connection got a third one.
fn race(before: impl Fn()) -> (usize, usize) {
    let (start, end) = (Line::default(), Line::default());
    let (mut split, mut moved) = (0, 0);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut got = Vec::with_capacity(RACES);
            for _ in 0..RACES {
                let socket = new_socket();
                start.cross();
                got.push(connected(&socket));
                end.cross();
            }
            got
        });
        let mut got = Vec::with_capacity(RACES);
        for _ in 0..RACES {
            let socket = new_socket();
            before();
            start.cross();
            let own = connected(&socket);
            end.cross();
            got.push((own, connected(&new_socket())));
        }
        for (other, (own, third)) in other.join().unwrap().into_iter().zip(got) {
            split += usize::from(other != own);
            moved += usize::from(third != own && third != other);
        }
    });
    (split, moved)
}

#[test]
fn connections_at_once_reach_the_same_backend() {
    in_sandbox("sockets::affinity::connections_at_once_reach_the_same_backend", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_fifty(&mut kernel, 100);
        show_backends(env);
        let kept = Kept::open(env);
        assert_eq!(race(|| kept.forget()), (0, 0), "the first connections of a client");
        assert_eq!(race(|| kept.set_last_used(-200.0)), (0, 0), "the first connections after the timeout");
        assert_eq!(race(|| kept.set_gone()), (0, 0), "the first connections after the backend has gone");
        let random = std::cell::RefCell::new(Random(3));
        let any = || match random.borrow_mut().below(5) {
            0 => kept.forget(),
            1 => kept.set_last_used(-200.0),
            2 => kept.set_gone(),
            3 => kept.set_last_used(0.02),
            _ => {}
        };
        assert_eq!(race(any), (0, 0), "any of these");
    });
}

//! Long-lived UDP sockets that use many services: each service keeps its backend, and each answer
//! comes from the requested address, whatever the number of services.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;

use libbpf_rs::{MapCore as _, MapHandle, MapInfo};
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::state::entries::{BackendId, MapOp, MapState, ServiceEntry, ServiceId, Slot};
use nodelb_core::trace::{Verdict, trace};
use nodelb_datapath::Options;
use nodelb_programs::rendezvous;

use super::socket_table::{UdpStates, cookie, pinned};
use super::{
    Kernel, Random, ask, backend, backends, cases, entry, in_sandbox, l4, list, options, parse, point, put, slot,
    target, udp_socket,
};

/// Number of services in the state of a socket: `MAX_FLOWS` of `bpf/shared.h`.
const FLOWS: usize = 8;

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Sets the clock of the socket to a few datagrams before it wraps, as if it had sent four billion
/// datagrams.
fn wind_clock(states: &UdpStates, socket: &UdpSocket) {
    const CLOCK: usize = 4;
    let (used, protocol) = (|flow: usize| 16 + 64 * flow + 48, |flow: usize| 16 + 64 * flow + 18);
    let mut state = states.of(socket);
    assert_eq!(state.len(), used(FLOWS) - 48, "struct udp_socket");
    let read = |state: &[u8], at: usize| u32::from_ne_bytes(*state[at..].first_chunk().unwrap());
    let wound = (u32::MAX - 4).wrapping_sub(read(&state, CLOCK));
    let in_use: Vec<usize> = (0..FLOWS).filter(|flow| state[protocol(*flow)] != 0).map(used).collect();
    for at in in_use.into_iter().chain([CLOCK]) {
        let number = read(&state, at).wrapping_add(wound);
        state[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    states.set(socket, &state);
}

/// Services 1 to `count` at 198.51.100.N:53, each with these backends, which listen at a port of
/// their own.
fn serve_many(kernel: &mut Kernel, count: u32, hosts: &[u32]) {
    for id in 1..=count {
        let own = backends_of(id, hosts);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        backends(&own);
        kernel.serve(id, &format!("198.51.100.{id}:53/UDP"), &own);
    }
}

fn backends_of(id: u32, hosts: &[u32]) -> Vec<String> {
    hosts.iter().map(|host| format!("192.0.2.{host}:{}/UDP", 6_000 + id)).collect()
}

fn service(id: u32) -> SocketAddr {
    to(&format!("198.51.100.{id}:53"))
}

/// Sends a query to all of them before it reads the first answer; returns the answers by source
/// address.
fn ask_all(socket: &UdpSocket, services: &[SocketAddr]) -> BTreeMap<SocketAddr, L4Addr> {
    for service in services {
        socket.send_to(b"?", service).unwrap();
    }
    let mut buffer = [0; 64];
    let mut answer = || {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        (from, parse(&buffer[..len]))
    };
    services.iter().map(|_| answer()).collect()
}

#[test]
fn nine_services_on_one_socket_keep_their_backends() {
    in_sandbox("sockets::many_services::nine_services_on_one_socket_keep_their_backends", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 20, &[10, 11, 12]);
        for count in [7, 8, 9, 20] {
            let services: Vec<SocketAddr> = (1..=count).map(service).collect();
            let socket = udp_socket(&services[0]);
            let first = ask_all(&socket, &services);
            assert_eq!(first.len(), services.len(), "each answer comes from the address that was asked");
            for _ in 0..20 {
                assert_eq!(ask_all(&socket, &services), first, "{count} services");
            }
        }
    });
}

/// The choice does not depend on stored state: it is a function of the socket and the service.
#[test]
fn the_first_backend_of_a_socket_is_the_one_that_rendezvous_hashing_names() {
    const TEST: &str = "sockets::many_services::the_first_backend_of_a_socket_is_the_one_that_rendezvous_hashing_names";
    in_sandbox(TEST, |env| {
        let mut kernel = Kernel::open(&options(env));
        let all = ["192.0.2.10:53/UDP", "192.0.2.11:53/UDP", "192.0.2.11:53/UDP", "192.0.2.12:53/UDP"];
        backends(&[all[0], all[1], all[3]]);
        kernel.serve(1, "198.51.100.1:53/UDP", &all);
        kernel.serve(2, "198.51.100.2:53/UDP", &all);
        let slots = list(&all);
        for count in 0..200 {
            let socket = udp_socket(&service(1));
            for id in [1, 2] {
                let expected = slots[rendezvous::choose(cookie(&socket), ServiceId(id), &slots).unwrap()].addr;
                if count % 2 == 0 {
                    socket.connect(service(id)).unwrap();
                }
                assert_eq!(ask(&socket, service(id)).unwrap().backend, expected, "socket {count}, service {id}");
            }
        }
    });
}

/// More slots than are scored for one choice.
#[test]
fn a_long_list_is_chosen_from_as_the_model_says() {
    in_sandbox("sockets::many_services::a_long_list_is_chosen_from_as_the_model_says", |env| {
        let limits = Limits { slots: 40_000, ..options(env).limits };
        let mut kernel = Kernel::open(&Options { limits, ..options(env) });
        let addrs = (1..=200).flat_map(|host| (0..50).map(move |port| (host, 7_000 + port)));
        let long: Vec<String> = addrs.map(|(host, port)| format!("192.0.2.{host}:{port}/UDP")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        kernel.serve(1, "198.51.100.1:53/UDP", &long);
        let slots = list(&long);
        assert!(slots.len() > 2 * rendezvous::MOST_SCORED);
        for _ in 0..50 {
            let socket = udp_socket(&service(1));
            socket.connect(service(1)).unwrap();
            let expected = slots[rendezvous::choose(cookie(&socket), ServiceId(1), &slots).unwrap()].addr;
            // A connected socket that has sent nothing: its state contains the backend.
            let state = UdpStates::open(env).of(&socket);
            let reached = (&state[16 + 20..16 + 36], &state[16 + 36..16 + 38]);
            assert_eq!(reached, (&expected.addr.octets()[..], &expected.port.to_be_bytes()[..]), "{expected}");
        }
    });
}

/// A forgotten flow keeps its backend, also after other backends were added, removed and reordered.
#[test]
fn a_forgotten_flow_stays_while_its_backend_does() {
    in_sandbox("sockets::many_services::a_forgotten_flow_stays_while_its_backend_does", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 10, &[10, 11, 12, 13]);
        backends(&backends_of(1, &[14]).iter().map(String::as_str).collect::<Vec<_>>());
        let services: Vec<SocketAddr> = (1..=10).map(service).collect();
        for round in 0..40 {
            let socket = udp_socket(&services[0]);
            let first = ask_all(&socket, &services)[&service(1)];
            let mut names = backends_of(1, &[10, 11, 12, 13]);
            match round % 4 {
                0 => names.reverse(),
                1 => names.retain(|name| l4(name) == first),
                2 => names.insert(1, backends_of(1, &[14]).remove(0)),
                _ => names.retain(|name| l4(name) != first),
            }
            kernel.apply(&[put(1, entry(&names.iter().map(String::as_str).collect::<Vec<_>>()))]);
            let second = ask_all(&socket, &services)[&service(1)];
            assert_eq!(second == first, round % 4 != 3, "round {round}: from {first} to {second}");
            assert_eq!(ask_all(&socket, &services)[&service(1)], second);
            let names = backends_of(1, &[10, 11, 12, 13]);
            kernel.apply(&[put(1, entry(&names.iter().map(String::as_str).collect::<Vec<_>>()))]);
        }
    });
}

#[test]
fn a_clock_that_wraps_forgets_no_service_in_use() {
    in_sandbox("sockets::many_services::a_clock_that_wraps_forgets_no_service_in_use", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 11, &[10]);
        let states = UdpStates::open(env);
        let socket = udp_socket(&service(1));
        ask_all(&socket, &(1..=8).map(service).collect::<Vec<_>>());
        wind_clock(&states, &socket);
        let used = |count: u32| -> Vec<SocketAddr> { (12 - count..=11).map(service).collect() };
        for count in [2, 3, 5, 7] {
            for round in 0..20 {
                let answers = ask_all(&socket, &used(count));
                assert_eq!(answers.into_keys().collect::<Vec<_>>(), used(count), "{count} in turn, round {round}");
                let kept = remembered(&states, &socket);
                assert!(round == 0 || used(count).iter().all(|service| kept.contains(service)), "{kept:?}");
            }
        }
    });
}

/// The services in the state of the socket.
fn remembered(states: &UdpStates, socket: &UdpSocket) -> Vec<SocketAddr> {
    let state = states.of(socket);
    let flow = |index: usize| {
        let frontend = &state[16 + 64 * index..][..20];
        let host: [u8; 4] = *frontend[12..].first_chunk().unwrap();
        SocketAddr::from((host, u16::from_be_bytes(*frontend[16..].first_chunk().unwrap())))
    };
    (0..FLOWS).map(flow).collect()
}

#[test]
fn a_datagram_to_the_backend_itself_leaves_the_service_its_backend() {
    in_sandbox("sockets::many_services::a_datagram_to_the_backend_itself_leaves_the_service_its_backend", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 10, &[10, 11, 12]);
        backends(&backends_of(1, &[13]).iter().map(String::as_str).collect::<Vec<_>>());
        let set = |kernel: &mut Kernel, hosts: &[u32]| {
            let names = backends_of(1, hosts);
            kernel.apply(&[put(1, entry(&names.iter().map(String::as_str).collect::<Vec<_>>()))]);
        };
        for (count, connects) in [(1, false), (1, true), (10, false), (10, true)] {
            for round in 0..30 {
                let what = format!("{count} services, connects: {connects}, round {round}");
                set(&mut kernel, &[10, 11, 12]);
                let socket = udp_socket(&service(1));
                let first = ask(&socket, service(1)).unwrap();
                assert_eq!(first.shown, service(1), "{what}");
                ask_all(&socket, &(1..=count).map(service).collect::<Vec<_>>());
                // A different list: a socket without a backend would choose another one from it.
                set(&mut kernel, &[12, 13, 11, 10]);
                let itself = target(first.backend, false);
                if connects {
                    socket.connect(itself).unwrap();
                    assert_eq!(socket.peer_addr().unwrap(), itself, "{what}");
                }
                assert_eq!(ask(&socket, itself).unwrap().shown, itself, "{what}: asked itself, it answers as itself");
                if connects {
                    rustix::net::connect_unspec(&socket).unwrap();
                }
                let second = ask(&socket, service(1)).unwrap();
                assert_eq!((second.backend, second.shown), (first.backend, service(1)), "{what}");
            }
        }
    });
}

/// The map of forgotten flows drops entries when it is full. The choice does not depend on it.
#[test]
fn a_flow_that_is_nowhere_any_more_returns_to_its_backend() {
    in_sandbox("sockets::many_services::a_flow_that_is_nowhere_any_more_returns_to_its_backend", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 10, &[10, 11, 12]);
        let services: Vec<SocketAddr> = (1..=10).map(service).collect();
        let socket = udp_socket(&services[0]);
        let first = ask_all(&socket, &services);
        let overflow = pinned(env, "udp_overflow");
        let keys: Vec<Vec<u8>> = overflow.keys().collect();
        assert!(keys.len() >= 4, "two flows are set aside, each in both directions: {}", keys.len());
        for key in keys {
            overflow.delete(&key).unwrap();
        }
        for (service, backend) in &first {
            assert_eq!(ask(&socket, *service).unwrap().backend, *backend);
        }
    });
}

/// A socket and its expected behaviour.
struct Client {
    socket: UdpSocket,
    is_v6: bool,
    /// The backend of each service's datagrams.
    choices: BTreeMap<L4Addr, BackendId>,
    /// The address that each backend was reached through last.
    shown: BTreeMap<L4Addr, SocketAddr>,
}

impl Client {
    fn new(random: &mut Random) -> Self {
        let is_v6 = random.below(2) == 0;
        let any = if is_v6 { to("[::]:0") } else { to("0.0.0.0:0") };
        Self { socket: udp_socket(&any), is_v6, choices: BTreeMap::new(), shown: BTreeMap::new() }
    }

    /// The backend that a datagram to this address must reach; `None` if it is refused.
    fn backend(&mut self, state: &MapState, asked: L4Addr) -> Option<L4Addr> {
        match trace(state, &(30_000..=32_767), asked) {
            Verdict::PassedThrough => Some(asked),
            Verdict::Refused(..) => None,
            Verdict::Forwarded(service, slots) => {
                let kept = self.choices.get(&asked);
                let kept = slots.iter().find(|slot| Some(&slot.backend) == kept);
                let slot = match kept {
                    Some(slot) => slot,
                    None => &slots[rendezvous::choose(cookie(&self.socket), service, slots).unwrap()],
                };
                self.choices.insert(asked, slot.backend);
                Some(slot.addr)
            }
        }
    }

    /// Sends a datagram to each address, then reads the answers.
    fn exchange(&mut self, state: &MapState, asked: &[L4Addr]) {
        let mut expected = Vec::new();
        let is_v6 = self.is_v6;
        for to in asked.iter().filter(|to| is_v6 || to.addr.family() == Family::Ipv4) {
            let address = target(*to, is_v6);
            let sent = self.socket.send_to(b"?", address);
            let Some(backend) = self.backend(state, *to) else {
                assert!(sent.is_err(), "{to} has no backend");
                continue;
            };
            sent.unwrap_or_else(|error| panic!("{to}: {error}"));
            self.shown.insert(backend, address);
            expected.push(backend);
        }
        let mut expected: Vec<_> = expected.into_iter().map(|backend| (backend, self.shown[&backend])).collect();
        let mut buffer = [0; 64];
        let mut read = || {
            let (len, from) = self.socket.recv_from(&mut buffer).unwrap();
            (parse(&buffer[..len]), from)
        };
        let mut answers: Vec<_> = expected.iter().map(|_| read()).collect();
        answers.sort_unstable();
        expected.sort_unstable();
        assert_eq!(answers, expected, "backends, and the addresses they answer from");
    }
}

/// A list of up to six of these backends in any order, each with up to three slots.
fn random_list(random: &mut Random, pool: &[L4Addr]) -> Vec<Slot> {
    let mut left = pool.to_vec();
    let mut slots = Vec::new();
    for _ in 0..random.below(pool.len() + 1) {
        let one = slot(left.swap_remove(random.below(left.len())));
        slots.extend(std::iter::repeat_n(one, 1 + random.below(3)));
    }
    slots
}

/// Long-lived sockets, many services, several datagrams in flight, changing lists, clocks that
/// wrap: every datagram reaches the backend that the model predicts, and every answer comes from
/// the requested address.
#[test]
fn random_sockets_with_many_services_do_what_the_model_says() {
    in_sandbox("sockets::many_services::random_sockets_with_many_services_do_what_the_model_says", |env| {
        const SERVICES: u32 = 24;
        // Each change takes a new run of slots, and the old one rests for a second.
        let limits = Limits { slots: 200_000, ..options(env).limits };
        let mut kernel = Kernel::open(&Options { limits, ..options(env) });
        let states = UdpStates::open(env);
        let pool = |net: &str| -> Vec<L4Addr> { (10..16).map(|i| l4(&format!("{net}{i}]:53/UDP"))).collect() };
        let v4: Vec<L4Addr> = (10..16).map(|i| l4(&format!("192.0.2.{i}:53/UDP"))).collect();
        let v6 = pool("[2001:db8:b::");
        v4.iter().chain(&v6).copied().for_each(backend);
        let frontend = |id: u32| match id % 3 {
            0 => format!("[2001:db8:f::{id}]:53/UDP"),
            _ => format!("198.51.100.{id}:53/UDP"),
        };
        let random = &mut Random::seeded(0x6d61_6e79_2121);
        let mut state = MapState::default();
        let change = |kernel: &mut Kernel, state: &mut MapState, op: MapOp| {
            state.apply(&op);
            kernel.apply(&[op]);
        };
        let list = |random: &mut Random, id: u32| {
            let cluster = random_list(random, if id.is_multiple_of(3) { &v6 } else { &v4 });
            let has_backends = !cluster.is_empty();
            put(
                id,
                ServiceEntry {
                    cluster: cluster.into(),
                    local: [].into(),
                    has_backends,
                    affinity_seconds: 0,
                    ..ServiceEntry::default()
                },
            )
        };
        for id in 1..=SERVICES {
            change(&mut kernel, &mut state, list(random, id));
            change(&mut kernel, &mut state, point(&frontend(id), id));
        }
        let mut clients: Vec<Client> = (0..12).map(|_| Client::new(random)).collect();
        for _ in 0..cases(4_000) {
            let at = random.below(clients.len());
            match random.below(12) {
                0 => clients[at] = Client::new(random),
                1 if !clients[at].choices.is_empty() => wind_clock(&states, &clients[at].socket),
                2 | 3 => {
                    let id = 1 + u32::try_from(random.below(SERVICES as usize)).unwrap();
                    change(&mut kernel, &mut state, list(random, id));
                }
                _ => {}
            }
            // Some clients use few services, some use all.
            let known = [4, 10, SERVICES as usize][at % 3];
            let asked = |random: &mut Random| match random.below(16) {
                0 => *random.pick(&v4),
                1 => *random.pick(&v6),
                _ => l4(&frontend(1 + u32::try_from(random.below(known)).unwrap())),
            };
            let asked: Vec<L4Addr> = (0..1 + random.below(10)).map(|_| asked(random)).collect();
            clients[at].exchange(&state, &asked);
        }
    });
}

/// A version of nodelb without the map of forgotten flows ran before: its pins are reused, and the
/// map is created.
#[test]
fn the_map_of_forgotten_flows_comes_with_an_upgrade() {
    in_sandbox("sockets::many_services::the_map_of_forgotten_flows_comes_with_an_upgrade", |env| {
        let mut kernel = Kernel::open(&options(env));
        serve_many(&mut kernel, 10, &[10, 11, 12]);
        let services: Vec<SocketAddr> = (1..=10).map(service).collect();
        let socket = udp_socket(&services[0]);
        let first = ask_all(&socket, &services);
        drop(kernel);
        let overflow = env.bpffs.join("nodelb/v1/udp_overflow");
        let before = map_id(&overflow);
        let kernel = Kernel::open(&options(env));
        assert_eq!((ask_all(&socket, &services), map_id(&overflow)), (first.clone(), before), "a restart keeps it");
        drop(kernel);

        std::fs::remove_file(&overflow).unwrap();
        let kernel = Kernel::open(&options(env));
        assert_ne!(map_id(&overflow), before);
        assert_eq!(kernel.report.origin, nodelb_datapath::Origin::Reused);
        assert_eq!(ask_all(&socket, &services), first);
    });
}

fn map_id(pin: &Path) -> u32 {
    MapInfo::new(MapHandle::from_pinned_path(pin).unwrap().as_fd()).unwrap().info.id
}

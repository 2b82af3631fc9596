//! The tables for the state of sockets: a place belongs to one socket as long as it exists, and to no other afterwards.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapInfo};

use super::{Kernel, SocketMode, ask, backends, cases, exchange, in_sandbox, l4, options, target, udp_socket};
use crate::sandbox::Sandbox;

/// `PLACES` of `bpf/socket_maps.h`.
const PLACES: usize = 4;
/// `PLACE_BUSY`.
const BUSY: u64 = 1 << 63;
/// Size of `struct places`.
const HEAD: usize = 64;
/// Size of `struct udp_socket`.
const UDP_STATE: usize = 528;

const SERVICES: [&str; 2] = ["198.51.100.1:80/TCP", "198.51.100.1:80/UDP"];
const BACKENDS: [&str; 2] = ["192.0.2.10:80/TCP", "192.0.2.10:80/UDP"];

pub(super) fn pinned(env: &Sandbox, name: &str) -> MapHandle {
    MapHandle::from_pinned_path(env.bpffs.join("nodelb/v1").join(name)).unwrap()
}

pub(super) fn cookie(socket: impl AsFd) -> u64 {
    rustix::net::sockopt::socket_cookie(socket).unwrap()
}

/// Every entry of a table with its key.
fn entries(table: &MapHandle) -> impl Iterator<Item = ([u8; 4], Vec<u8>)> + '_ {
    let count = MapInfo::new(table.as_fd()).unwrap().info.max_entries;
    (0..count).map(|index| {
        let key = index.to_ne_bytes();
        (key, table.lookup(&key, MapFlags::ANY).unwrap().unwrap())
    })
}

/// The key of the entry with the socket's place, the entry, and the place.
fn place_of(table: &MapHandle, cookie: u64) -> Option<([u8; 4], Vec<u8>, usize)> {
    entries(table).find_map(|(key, entry)| {
        let place = entry[..8 * PLACES].chunks(8).position(|found| found == cookie.to_ne_bytes())?;
        Some((key, entry, place))
    })
}

/// The states of UDP sockets, wherever they are.
pub(super) struct UdpStates {
    storage: MapHandle,
    table: MapHandle,
}

impl UdpStates {
    pub(super) fn open(env: &Sandbox) -> Self {
        Self { storage: pinned(env, "udp_sockets"), table: pinned(env, "udp_table") }
    }

    /// The bytes of the socket's `struct udp_socket`.
    pub(super) fn of(&self, socket: &UdpSocket) -> Vec<u8> {
        let stored = self.storage.lookup(&socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY).unwrap();
        stored.unwrap_or_else(|| {
            let (_, entry, place) = place_of(&self.table, cookie(socket)).expect("the socket has state");
            entry[HEAD + UDP_STATE * place..][..UDP_STATE].to_vec()
        })
    }

    pub(super) fn set(&self, socket: &UdpSocket, state: &[u8]) {
        let fd = socket.as_raw_fd().to_ne_bytes();
        if self.storage.lookup(&fd, MapFlags::ANY).unwrap().is_some() {
            return self.storage.update(&fd, state, MapFlags::ANY).unwrap();
        }
        let (key, mut entry, place) = place_of(&self.table, cookie(socket)).expect("the socket has state");
        entry[HEAD + UDP_STATE * place..][..UDP_STATE].copy_from_slice(state);
        self.table.update(&key, &entry, MapFlags::ANY).unwrap();
    }
}

fn serve(env: &Sandbox) -> Kernel {
    let mut kernel = Kernel::open(&options(env));
    backends(&BACKENDS);
    for (id, (service, backend)) in (1..).zip(SERVICES.iter().zip(BACKENDS)) {
        kernel.serve(id, service, &[backend]);
    }
    kernel
}

fn addr(text: &str) -> SocketAddr {
    target(l4(text), false)
}

/// Writes the same cookie into all places.
fn fill(table: &MapHandle, cookie: u64) {
    for (key, mut entry) in entries(table) {
        entry[..8 * PLACES].chunks_mut(8).for_each(|place| place.copy_from_slice(&cookie.to_ne_bytes()));
        table.update(&key, &entry, MapFlags::ANY).unwrap();
    }
}

/// Sockets of several threads get the memory of sockets that have just been closed, and were connected otherwise.
#[test]
fn a_socket_has_no_name_of_an_earlier_one() {
    in_sandbox("sockets::socket_table::a_socket_has_no_name_of_an_earlier_one", |env| {
        let _kernel = serve(env);
        let tcp = [addr(SERVICES[0]), addr(BACKENDS[0])];
        let udp = [addr(SERVICES[1]), addr(BACKENDS[1])];
        let connect = |turn: u32| {
            let way = usize::from(turn.is_multiple_of(3));
            let socket = udp_socket(&udp[way]);
            socket.connect(udp[way]).unwrap();
            assert_eq!(socket.peer_addr().unwrap(), udp[way], "turn {turn}");
            let socket = TcpStream::connect(tcp[way]).unwrap();
            assert_eq!(socket.peer_addr().unwrap(), tcp[way], "turn {turn}");
            // A reset, so that the kernel frees the socket at once.
            socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        };
        let turns = cases(1_500);
        thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || (0..turns).for_each(|turn| connect(turn + thread)));
            }
        });
    });
}

/// State of closed sockets fills no place for long: a new socket gets one after many times as many sockets as there are
/// places.
#[test]
fn places_of_closed_sockets_are_taken() {
    in_sandbox("sockets::socket_table::places_of_closed_sockets_are_taken", |env| {
        let _kernel = serve(env);
        let table = pinned(env, "udp_table");
        let connected = || {
            let socket = udp_socket(&addr(SERVICES[1]));
            socket.connect(addr(SERVICES[1])).unwrap();
            socket
        };
        let has_place = |socket: &UdpSocket| place_of(&table, cookie(socket)).is_some();
        for batch in [900, 100, 900] {
            for _ in 0..6 {
                let sockets: Vec<UdpSocket> = (0..batch).map(|_| connected()).collect();
                let sample: Vec<&UdpSocket> = sockets.iter().step_by(batch / 20).collect();
                let placed = sample.iter().filter(|socket| has_place(socket)).count();
                assert!(placed * 10 >= sample.len() * 9, "{placed} of {}", sample.len());
                assert!(sockets.iter().all(|socket| socket.peer_addr().unwrap() == addr(SERVICES[1])));
            }
        }
    });
}

/// Sockets without a place have storage, as with a nodelb that had no tables: also while new sockets get places again.
#[test]
fn a_full_table_leaves_sockets_to_storage() {
    in_sandbox("sockets::socket_table::a_full_table_leaves_sockets_to_storage", |env| {
        let kernel = serve(env);
        let tables = ["tcp_table", "udp_table"].map(|name| pinned(env, name));
        tables.iter().for_each(|table| fill(table, BUSY));
        let tcp = TcpStream::connect(addr(SERVICES[0])).unwrap();
        let udp = udp_socket(&addr(SERVICES[1]));
        udp.connect(addr(SERVICES[1])).unwrap();
        let unconnected = udp_socket(&addr(SERVICES[1]));
        let check = |kernel: &Kernel| {
            assert_eq!(tcp.peer_addr().unwrap(), addr(SERVICES[0]));
            assert_eq!(udp.peer_addr().unwrap(), addr(SERVICES[1]));
            assert_eq!(ask(&unconnected, addr(SERVICES[1])).unwrap().shown, addr(SERVICES[1]));
            let flows = kernel.datapath.flows().expect("the kernel lists flows");
            let mut cookies = Vec::new();
            flows.tcp(&mut |flow| cookies.push(flow.socket.cookie)).unwrap();
            flows.udp(&mut |flow| cookies.push(flow.socket.cookie)).unwrap();
            for cookie in [cookie(&tcp), cookie(&udp)] {
                assert_eq!(cookies.iter().filter(|found| **found == cookie).count(), 1);
            }
            assert!(place_of(&tables[0], cookie(&tcp)).is_none());
            assert!(place_of(&tables[1], cookie(&unconnected)).is_none());
        };
        check(&kernel);
        drop(kernel);
        let kernel = Kernel::open(&options(env));
        check(&kernel);
        tables.iter().for_each(|table| fill(table, 0));
        check(&kernel);
        let later = TcpStream::connect(addr(SERVICES[0])).unwrap();
        assert!(place_of(&tables[0], cookie(&later)).is_some());
        for (mode, service) in [(SocketMode::Tcp, SERVICES[0]), (SocketMode::UdpConnected, SERVICES[1])] {
            assert_eq!(exchange(mode, addr(service)).unwrap().shown, addr(service));
        }
        check(&kernel);
    });
}

/// The kernel gives the highest cookies to sockets that get theirs in an interrupt: they mark no place as being taken.
#[test]
fn a_place_of_the_highest_cookie_is_taken() {
    in_sandbox("sockets::socket_table::a_place_of_the_highest_cookie_is_taken", |env| {
        let _kernel = serve(env);
        let table = pinned(env, "tcp_table");
        fill(&table, u64::MAX);
        let socket = TcpStream::connect(addr(SERVICES[0])).unwrap();
        assert!(place_of(&table, cookie(&socket)).is_some());
        assert_eq!(socket.peer_addr().unwrap(), addr(SERVICES[0]));
    });
}

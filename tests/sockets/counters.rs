//! Counters count each TCP connect, each UDP flow and each refusal exactly once.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

use nodelb_core::datapath::Count;
use nodelb_core::state::entries::{MapOp, ServiceId};
use nodelb_datapath::{Counters, Options};

use super::{
    Kernel, Random, SocketMode, ask, backends, cases, entry, exchange, in_sandbox, l4, options, point, put, target,
    udp_socket,
};

const BACKENDS: [&str; 5] =
    ["192.0.2.10:80/TCP", "192.0.2.11:80/TCP", "192.0.2.10:53/UDP", "192.0.2.11:53/UDP", "[2001:db8:b::10]:53/UDP"];

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn tally(translated: u64, refused: u64) -> Count {
    Count { translated, refused }
}

fn counters(kernel: &Kernel) -> Arc<Counters> {
    kernel.datapath.counters().expect("counting is on")
}

#[test]
fn random_flows_are_counted_one_by_one() {
    in_sandbox("sockets::counters::random_flows_are_counted_one_by_one", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS);
        kernel.serve(1, "198.51.100.1:80/TCP", &BACKENDS[..2]);
        kernel.serve(2, "198.51.100.2:53/UDP", &BACKENDS[2..4]);
        kernel.serve(3, "[2001:db8:f::3]:53/UDP", &BACKENDS[4..]);
        kernel.serve(4, "198.51.100.4:80/TCP", &[]);
        kernel.serve(5, "198.51.100.5:53/UDP", &[]);
        kernel.apply(&[point("198.51.100.6:80/TCP", 1)]);
        let destinations = [
            ("198.51.100.1:80/TCP", 1),
            ("198.51.100.2:53/UDP", 2),
            ("[2001:db8:f::3]:53/UDP", 3),
            ("198.51.100.4:80/TCP", 4),
            ("198.51.100.5:53/UDP", 5),
            ("198.51.100.6:80/TCP", 1),
            ("192.0.2.10:80/TCP", 0),
            ("198.51.100.99:80/TCP", 0),
        ];
        let before = counters(&kernel).read(ServiceId(1));
        assert_eq!(before, Count::default());
        let mut expected = [Count::default(); 6];
        let mut random = Random::seeded(0x5eed);
        for _ in 0..cases(400) {
            let (address, id) = *random.pick(&destinations);
            let address = l4(address);
            let mode = match address.protocol {
                nodelb_core::model::addr::Protocol::Tcp => SocketMode::Tcp,
                _ => *random.pick(&[SocketMode::UdpConnected, SocketMode::UdpUnconnected]),
            };
            let outcome = exchange(mode, target(address, random.below(2) == 0));
            match (id, outcome.is_ok()) {
                (0, _) => {}
                (id, true) => expected[id].translated += 1,
                (id, false) => expected[id].refused += 1,
            }
        }
        let found: Vec<Count> = (0..6).map(|id| counters(&kernel).read(ServiceId(id))).collect();
        assert_eq!(found, expected);
        assert!(expected[4].refused > 0 && expected[5].refused > 0 && expected[1].translated > 0);
    });
}

#[test]
fn connections_of_many_threads_are_all_counted() {
    in_sandbox("sockets::counters::connections_of_many_threads_are_all_counted", |env| {
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, "198.51.100.5:53/UDP", &[]);
        let refused = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..5_000).for_each(|_| assert!(socket.connect("198.51.100.5:53").is_err()));
        };
        thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(refused)));
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(0, 40_000));
    });
}

/// Neither another datagram nor connecting to the same service again counts; another backend does.
#[test]
fn a_udp_socket_counts_once_for_each_backend_it_is_given() {
    in_sandbox("sockets::counters::a_udp_socket_counts_once_for_each_backend_it_is_given", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS);
        kernel.serve(1, "198.51.100.2:53/UDP", &BACKENDS[2..3]);
        let count = counters(&kernel);
        let (service, socket) = (to("198.51.100.2:53"), udp_socket(&to("0.0.0.0:0")));
        for _ in 0..3 {
            ask(&socket, service).unwrap();
        }
        socket.connect(service).unwrap();
        socket.connect(service).unwrap();
        assert_eq!(count.read(ServiceId(1)), tally(1, 0));
        // After a change of frontends the socket looks up its service again and finds the same one.
        kernel.serve(2, "198.51.100.7:53/UDP", &BACKENDS[2..3]);
        socket.connect(service).unwrap();
        assert_eq!(count.read(ServiceId(1)), tally(1, 0));
        kernel.apply(&[put(1, entry(&BACKENDS[3..4]))]);
        socket.connect(service).unwrap();
        assert_eq!(count.read(ServiceId(1)), tally(2, 0));
        kernel.apply(&[put(1, entry(&[]))]);
        assert!(socket.connect(service).is_err());
        assert_eq!(count.read(ServiceId(1)), tally(2, 1));
    });
}

#[test]
fn nothing_is_counted_where_that_is_off() {
    in_sandbox("sockets::counters::nothing_is_counted_where_that_is_off", |env| {
        let off = Options { count_connections: false, ..options(env) };
        let mut kernel = Kernel::open(&off);
        backends(&BACKENDS);
        kernel.serve(1, "198.51.100.1:80/TCP", &BACKENDS[..2]);
        TcpStream::connect("198.51.100.1:80").unwrap();
        assert!(kernel.datapath.counters().is_none());
        drop(kernel);
        // Counting can be switched on and off across restarts.
        let kernel = Kernel::open(&options(env));
        TcpStream::connect("198.51.100.1:80").unwrap();
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(1, 0));
        drop(kernel);
        Kernel::open(&off);
        TcpStream::connect("198.51.100.1:80").unwrap();
    });
}

/// The counters restart from zero at each start, and for each service that gets a reused id.
#[test]
fn counts_are_of_one_start_and_of_one_owner_of_an_id() {
    in_sandbox("sockets::counters::counts_are_of_one_start_and_of_one_owner_of_an_id", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS);
        kernel.serve(1, "198.51.100.1:80/TCP", &BACKENDS[..2]);
        TcpStream::connect("198.51.100.1:80").unwrap();
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(1, 0));
        drop(kernel);
        // No reader needs this count.
        TcpStream::connect("198.51.100.1:80").unwrap();

        let mut kernel = Kernel::open(&options(env));
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(0, 0));
        TcpStream::connect("198.51.100.1:80").unwrap();
        kernel.apply(&[put(1, entry(&BACKENDS[..1]))]);
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(1, 0), "another list, the same service");
        kernel.apply(&[MapOp::DeleteFrontend(l4("198.51.100.1:80/TCP")), MapOp::DeleteService(ServiceId(1))]);
        kernel.serve(1, "198.51.100.8:80/TCP", &BACKENDS[..2]);
        assert_eq!(counters(&kernel).read(ServiceId(1)), tally(0, 0));
        assert_eq!(counters(&kernel).read(ServiceId(1 << 20)), Count::default(), "an id that there is not");
    });
}

//! The state of a UDP socket: answers come from the requested address, and the socket keeps its
//! backend.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::state::entries::{MapOp, MapState, ServiceEntry};
use nodelb_core::trace::{Verdict, trace};
use nodelb_programs::sockets::is_answer;
use rustix::net::connect_unspec;

use nodelb_datapath::{CrashPoint, Options, cleanup};

use super::{Kernel, Random, ask, backends, cases, entry, in_sandbox, l4, options, point, put, udp_socket};
use crate::pod::Pod;

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    in_sandbox("sockets::udp::answers_come_from_the_address_that_was_asked", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:53/UDP", "192.0.2.11:53/UDP", "[2001:db8:b::10]:53/UDP", "[2001:db8:b::11]:53/UDP"]);
        kernel.serve(1, "198.51.100.1:53/UDP", &["192.0.2.10:53/UDP"]);
        kernel.serve(2, "198.51.100.2:53/UDP", &["192.0.2.11:53/UDP"]);
        kernel.serve(3, "[2001:db8:f::1]:53/UDP", &["[2001:db8:b::10]:53/UDP"]);
        kernel.serve(4, "[2001:db8:f::2]:53/UDP", &["[2001:db8:b::11]:53/UDP"]);
        for services in [
            ["198.51.100.1:53", "198.51.100.2:53"],
            ["[2001:db8:f::1]:53", "[2001:db8:f::2]:53"],
            ["[::ffff:198.51.100.1]:53", "[::ffff:198.51.100.2]:53"],
            ["[::ffff:198.51.100.1]:53", "[2001:db8:f::2]:53"],
        ] {
            let [first, second] = services.map(to);
            let socket = udp_socket(&first);
            socket.send_to(b"?", first).unwrap();
            socket.send_to(b"?", second).unwrap();
            let mut from = [0, 1].map(|_| socket.recv_from(&mut [0; 64]).unwrap().1);
            from.sort_unstable();
            let mut asked = [first, second];
            asked.sort_unstable();
            assert_eq!(from, asked);
        }
    });
}

#[test]
fn the_service_used_last_has_the_answer_of_a_shared_backend() {
    in_sandbox("sockets::udp::the_service_used_last_has_the_answer_of_a_shared_backend", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:53/UDP"]);
        kernel.serve(1, "198.51.100.1:53/UDP", &["192.0.2.10:53/UDP"]);
        kernel.serve(2, "198.51.100.2:53/UDP", &["192.0.2.10:53/UDP"]);
        let socket = udp_socket(&to("0.0.0.0:0"));
        for service in ["198.51.100.1:53", "198.51.100.2:53", "198.51.100.1:53", "198.51.100.2:53"] {
            assert_eq!(ask(&socket, to(service)).unwrap().shown, to(service));
        }
        socket.connect(to("198.51.100.1:53")).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), to("198.51.100.1:53"));
    });
}

#[test]
fn a_socket_keeps_its_backend_while_the_service_has_it() {
    in_sandbox("sockets::udp::a_socket_keeps_its_backend_while_the_service_has_it", |env| {
        let mut kernel = Kernel::open(&options(env));
        let all = ["192.0.2.10:53/UDP", "192.0.2.11:53/UDP", "192.0.2.12:53/UDP", "192.0.2.13:53/UDP"];
        backends(&all);
        let service = to("198.51.100.1:53");
        kernel.serve(1, "198.51.100.1:53/UDP", &all);
        let socket = udp_socket(&service);
        let first = ask(&socket, service).unwrap().backend;
        let keeps = |why: &str| {
            for _ in 0..20 {
                assert_eq!(ask(&socket, service).unwrap().backend, first, "{why}");
            }
        };
        keeps("nothing changed");
        kernel.apply(&[put(1, entry(&[&first.to_string()]))]);
        keeps("all others gone");
        kernel.apply(&[put(1, entry(&all))]);
        keeps("all others back, at other places in the list");
        kernel.apply(&[point("198.51.100.2:53/UDP", 1)]);
        keeps("another address came");
        let others: Vec<&str> = all.into_iter().filter(|addr| l4(addr) != first).collect();
        kernel.apply(&[put(1, entry(&others))]);
        let second = ask(&socket, service).unwrap().backend;
        assert_ne!(second, first, "its backend is gone");
        for _ in 0..20 {
            assert_eq!(ask(&socket, service).unwrap().backend, second);
        }
        kernel.apply(&[put(1, entry(&[]))]);
        assert_eq!(ask(&socket, service).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        kernel.apply(&[MapOp::DeleteFrontend(l4("198.51.100.1:53/UDP"))]);
        assert_eq!(ask(&socket, service).unwrap_err().kind(), std::io::ErrorKind::NetworkUnreachable, "no frontend");
    });
}

#[test]
fn a_frontend_that_moves_takes_its_sockets_along() {
    in_sandbox("sockets::udp::a_frontend_that_moves_takes_its_sockets_along", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:53/UDP", "192.0.2.11:53/UDP"]);
        kernel.serve(1, "198.51.100.1:53/UDP", &["192.0.2.10:53/UDP"]);
        kernel.apply(&[put(2, entry(&["192.0.2.11:53/UDP"]))]);
        let service = to("198.51.100.1:53");
        let socket = udp_socket(&service);
        for _ in 0..10 {
            assert_eq!(ask(&socket, service).unwrap().backend, l4("192.0.2.10:53/UDP"));
            kernel.apply(&[point("198.51.100.1:53/UDP", 2)]);
            assert_eq!(ask(&socket, service).unwrap().backend, l4("192.0.2.11:53/UDP"));
            kernel.apply(&[point("198.51.100.1:53/UDP", 1)]);
        }
    });
}

#[test]
fn a_direct_connection_to_a_backend_shows_its_address() {
    in_sandbox("sockets::udp::a_direct_connection_to_a_backend_shows_its_address", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&["192.0.2.10:53/UDP"]);
        kernel.serve(1, "198.51.100.1:53/UDP", &["192.0.2.10:53/UDP"]);
        let (service, backend) = (to("198.51.100.1:53"), to("192.0.2.10:53"));
        let socket = udp_socket(&service);

        socket.connect(service).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), service);
        socket.connect(backend).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), backend, "connected to the backend itself");
        socket.connect(service).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), service);

        // Disconnects the socket.
        connect_unspec(&socket).unwrap();
        assert_eq!(socket.peer_addr().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
        assert_eq!(ask(&socket, backend).unwrap().shown, backend, "after connect(AF_UNSPEC)");
        assert_eq!(ask(&socket, service).unwrap().shown, service);
        assert_eq!(ask(&socket, backend).unwrap().shown, backend);
    });
}

#[test]
fn a_socket_remembers_the_services_it_used_last() {
    in_sandbox("sockets::udp::a_socket_remembers_the_services_it_used_last", |env| {
        let mut kernel = Kernel::open(&options(env));
        let ids: Vec<u32> = (1..=20).collect();
        for id in &ids {
            let backend = format!("192.0.2.{}:53/UDP", 100 + id);
            backends(&[&backend]);
            kernel.serve(*id, &format!("198.51.100.{id}:53/UDP"), &[&backend]);
        }
        let socket = udp_socket(&to("0.0.0.0:0"));
        for round in 0..3 {
            for id in &ids {
                let service = to(&format!("198.51.100.{id}:53"));
                assert_eq!(ask(&socket, service).unwrap().shown, service, "round {round}");
            }
        }
        let latest: Vec<SocketAddr> = (13..=20).map(|id| to(&format!("198.51.100.{id}:53"))).collect();
        latest.iter().for_each(|service| assert_eq!(socket.send_to(b"?", service).unwrap(), 1));
        let mut from: Vec<SocketAddr> = latest.iter().map(|_| socket.recv_from(&mut [0; 64]).unwrap().1).collect();
        from.sort_unstable();
        assert_eq!(from, latest, "eight at a time");
    });
}

/// A datagram from one socket of this host reaches the other socket or a backend of the NodePort,
/// as the oracle predicts. Returns whether it reached the socket.
fn answers(from: &UdpSocket, client: &UdpSocket, (to, expected): (SocketAddr, bool), case: &str) -> bool {
    if from.peer_addr().is_ok() { from.send(b"answer") } else { from.send_to(b"answer", to) }.unwrap();
    let (reader, other) = if expected { (client, from) } else { (from, client) };
    let mut buffer = [0; 64];
    let len =
        reader.recv(&mut buffer).unwrap_or_else(|error| panic!("{case}: an answer is expected: {expected}: {error}"));
    assert_eq!(&buffer[..len] == b"answer", expected, "{case}: {:?}", &buffer[..len]);
    other.set_nonblocking(true).unwrap();
    assert!(other.recv(&mut buffer).is_err(), "{case}: not to both");
    other.set_nonblocking(false).unwrap();
    expected
}

/// A server and a client on this host; the client's port may be a NodePort.
struct Pair {
    server: UdpSocket,
    client: UdpSocket,
    /// The server's destination.
    at: L4Addr,
}

impl Pair {
    /// The first host is a node address, the second is another one, the last is unspecified.
    fn random(random: &mut Random, hosts: [&str; 3]) -> Self {
        let port = *random.pick(&[30_053, 30_053, 30_054, 29_999]);
        let own = hosts[random.below(3)];
        let server = UdpSocket::bind(to(&format!("{}:53", hosts[random.below(2)]))).unwrap();
        let client = UdpSocket::bind(to(&format!("{own}:{port}"))).unwrap();
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        // A wildcard socket gets its address from the route when it connects.
        if own != hosts[2] && random.below(2) == 0 {
            client.connect(server.local_addr().unwrap()).unwrap();
        }
        let addr = if own == hosts[2] { hosts[0] } else { own };
        Self { server, client, at: l4(&format!("{addr}:{port}/UDP")) }
    }

    /// The client sends a request, which the server receives: it answers the sender.
    fn ask(&mut self) {
        self.client.send_to(b"question", self.server.local_addr().unwrap()).unwrap();
        let from = self.server.recv_from(&mut [0; 64]).unwrap().1;
        self.at = L4Addr::new(from.ip().into(), from.port(), Protocol::Udp);
    }
}

/// All other roles of a NodePort's number: port of a client, connected or not, at a node address or
/// another one; or of the service's own backend.
#[test]
fn an_answer_to_a_client_whose_port_is_a_nodeport_reaches_it() {
    in_sandbox("sockets::udp::an_answer_to_a_client_whose_port_is_a_nodeport_reaches_it", |env| {
        // The clients had their ports before the Service existed.
        let options = Options { protect_nodeports: false, ..options(env) };
        let (mut kernel, mut state) = (Kernel::open(&options), MapState::default());
        let mut apply = |op: MapOp| {
            state.apply(&op);
            kernel.apply(&[op]);
            state.clone()
        };
        let services =
            [(1, "192.0.2.10:53/UDP", "0.0.0.0:30053/UDP"), (2, "[2001:db8:b::10]:53/UDP", "[::]:30053/UDP")];
        for (id, backend, nodeport) in services {
            backends(&[backend]);
            apply(put(id, entry(&[backend])));
            apply(point(nodeport, id));
        }
        for addr in ["192.0.2.1", "2001:db8:b::1"] {
            apply(MapOp::PutNodeAddr(addr.parse().unwrap()));
        }
        let random = &mut Random::seeded(0x0061_6e73);
        let (mut answered, mut translated, mut unasked) = (0, 0, 0);
        for _ in 0..cases(400) {
            let (id, backend, _) = *random.pick(&services);
            let may_be_bound = random.below(4) == 0;
            let state = apply(put(id, ServiceEntry { may_be_bound, ..entry(&[backend]) }));
            let hosts = [["192.0.2.1", "192.0.2.2", "0.0.0.0"], ["[2001:db8:b::1]", "[2001:db8:b::2]", "[::]"]];
            let mut pair = Pair::random(random, hosts[id as usize - 1]);
            // A connected client receives only from its peer.
            let has_received = pair.client.peer_addr().is_ok() || random.below(3) > 0;
            if has_received {
                pair.ask();
            }
            let (at, range) = (pair.at, &options.nodeport_range);
            let is_answer =
                is_answer(&state, range, at, has_received) || trace(&state, range, at) == Verdict::PassedThrough;
            let case = format!("{at} of {:?}, {may_be_bound}, from {:?}", pair.client, pair.server);
            let destination = SocketAddr::new(at.addr.ip(), at.port);
            unasked += usize::from(!has_received && at.port == 30_053);
            if answers(&pair.server, &pair.client, (destination, is_answer), &case) {
                answered += usize::from(at.port == 30_053);
            } else {
                translated += 1;
            }
        }
        assert!(answered > 50 && translated > 15 && unasked > 15, "{answered}, {translated}, {unasked}");

        let ask_from = |any: &str, nodeport: &str| ask(&UdpSocket::bind(any).unwrap(), to(nodeport)).unwrap().backend;
        assert_eq!(ask_from("0.0.0.0:30054", "192.0.2.1:30053"), l4("192.0.2.10:53/UDP"), "a client of the NodePort");
        let in_a_pod = Pod::new(0).run(|| ask_from("0.0.0.0:30053", "192.0.2.1:30053"));
        assert_eq!(in_a_pod, l4("192.0.2.10:53/UDP"), "a pod's port is not the node's");
    });
}

/// A NodePort at 192.0.2.1 with the backend 192.0.2.10, where other processes may have the port.
fn nodeports(env: &crate::sandbox::Sandbox, ports: std::ops::Range<u16>) -> Kernel {
    let mut kernel = Kernel::open(&Options { protect_nodeports: false, ..options(env) });
    backends(&["192.0.2.10:53/UDP"]);
    kernel.apply(&[put(1, entry(&["192.0.2.10:53/UDP"])), MapOp::PutNodeAddr("192.0.2.1".parse().unwrap())]);
    ports.for_each(|port| kernel.apply(&[point(&format!("0.0.0.0:{port}/UDP"), 1)]));
    kernel
}

/// The kernel may give the port to a process at a bind to port 0.
#[test]
fn a_process_that_has_the_port_of_a_nodeport_diverts_no_client() {
    in_sandbox("sockets::udp::a_process_that_has_the_port_of_a_nodeport_diverts_no_client", |env| {
        let _kernel = nodeports(env, 30_053..30_054);
        let (nodeport, backend) = (to("192.0.2.1:30053"), l4("192.0.2.10:53/UDP"));
        let client = |bound: &str| {
            let client = UdpSocket::bind(bound).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            client
        };
        let known = client("0.0.0.0:0");
        assert_eq!(ask(&known, nodeport).unwrap().backend, backend);
        let stranger = UdpSocket::bind("192.0.2.1:30053").unwrap();
        stranger.set_nonblocking(true).unwrap();
        // Whatever it sends to the client: that one has a flow to the NodePort.
        let at = SocketAddr::new("192.0.2.1".parse().unwrap(), known.local_addr().unwrap().port());
        stranger.send_to(b"stranger", at).unwrap();
        assert_eq!(known.recv_from(&mut [0; 64]).unwrap(), (8, nodeport));
        for _ in 0..3 {
            assert_eq!(ask(&known, nodeport).unwrap().backend, backend, "a client with a flow");
        }
        for bound in ["0.0.0.0:0", "192.0.2.1:0", "192.0.2.50:0"] {
            let (new, connected) = (client(bound), client(bound));
            for _ in 0..3 {
                assert_eq!(ask(&new, nodeport).unwrap().backend, backend, "a new client at {bound}");
            }
            connected.connect(nodeport).unwrap();
            assert_eq!(connected.send(b"?").unwrap(), 1);
            let mut buffer = [0; 64];
            let length = connected.recv(&mut buffer).unwrap();
            assert_eq!(super::parse(&buffer[..length]), backend, "a connected client at {bound}");
        }
        assert!(stranger.recv(&mut [0; 64]).is_err(), "nothing reached the stranger");
    });
}

/// More clients than a socket has flows, all with NodePorts as their ports, send queries before the server answers.
#[test]
fn a_server_answers_every_client_whose_port_is_a_nodeport() {
    in_sandbox("sockets::udp::a_server_answers_every_client_whose_port_is_a_nodeport", |env| {
        let _kernel = nodeports(env, 30_053..30_083);
        let server = UdpSocket::bind("192.0.2.1:53").unwrap();
        let clients: Vec<UdpSocket> =
            (30_053..30_083).map(|port| UdpSocket::bind(("192.0.2.1", port)).unwrap()).collect();
        for round in 0..3 {
            clients.iter().for_each(|client| assert_eq!(client.send_to(b"?", to("192.0.2.1:53")).unwrap(), 1));
            let asked: Vec<SocketAddr> = clients.iter().map(|_| server.recv_from(&mut [0; 64]).unwrap().1).collect();
            asked.iter().rev().for_each(|client| assert_eq!(server.send_to(b"answer", client).unwrap(), 6));
            for client in &clients {
                client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                let answer = client.recv_from(&mut [0; 64]).unwrap_or_else(|error| panic!("round {round}: {error}"));
                assert_eq!(answer, (6, to("192.0.2.1:53")));
            }
        }
    });
}

/// A process may send with any address of the node, and another machine with any address: no socket has the port then.
#[test]
fn a_datagram_that_names_the_port_of_a_nodeport_cuts_no_socket_from_it() {
    in_sandbox("sockets::udp::a_datagram_that_names_the_port_of_a_nodeport_cuts_no_socket_from_it", |env| {
        let _kernel = nodeports(env, 30_053..30_054);
        let (nodeport, backend) = (to("192.0.2.1:30053"), l4("192.0.2.10:53/UDP"));
        for bound in ["0.0.0.0:0", "192.0.2.1:0"] {
            let socket = UdpSocket::bind(bound).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let at = SocketAddr::new("192.0.2.1".parse().unwrap(), socket.local_addr().unwrap().port());
            let stranger = UdpSocket::bind(nodeport).unwrap();
            stranger.send_to(b"stranger", at).unwrap();
            drop(stranger);
            assert_eq!(socket.recv_from(&mut [0; 64]).unwrap(), (8, nodeport));
            for _ in 0..3 {
                assert_eq!(ask(&socket, nodeport).unwrap().backend, backend, "{bound}");
            }
        }
    });
}

/// After a cleanup has ended the translation of destinations, answers still come from the service until its wait is over.
#[test]
fn answers_under_way_at_a_cleanup_come_from_the_service() {
    in_sandbox("sockets::udp::answers_under_way_at_a_cleanup_come_from_the_service", |env| {
        let (options, service) = (options(env), to("198.51.100.1:53"));
        let backend = UdpSocket::bind("192.0.2.10:53").unwrap();
        Kernel::open(&options).serve(1, "198.51.100.1:53/UDP", &["192.0.2.10:53/UDP"]);
        let (client, connected) = (udp_socket(&service), udp_socket(&service));
        client.send_to(b"question", service).unwrap();
        let (_, from) = backend.recv_from(&mut [0; 16]).unwrap();
        connected.connect(service).unwrap();
        let waits = Cell::new(0);
        let wait = || {
            waits.set(waits.get() + 1);
            let error = udp_socket(&service).connect(service).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable, "destinations are no longer translated");
            backend.send_to(b"answer", from).unwrap();
            let (_, seen) = client.recv_from(&mut [0; 16]).unwrap();
            assert_eq!((seen, connected.peer_addr().unwrap()), (service, service));
        };
        cleanup(&options.pin_directory, &wait, &CrashPoint::default()).unwrap();
        assert_eq!((waits.get(), connected.peer_addr().unwrap()), (1, backend.local_addr().unwrap()));
    });
}

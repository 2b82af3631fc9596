//! What a UDP socket remembers: answers come from the address it asked, and it keeps its backend.

use std::net::SocketAddr;

use nodelb_core::state::MapOp;
use rustix::net::connect_unspec;

use super::{Kernel, ask, backends, entry, in_sandbox, l4, options, point, put, udp_socket};

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
fn dialling_a_backend_itself_is_shown_as_it_is() {
    in_sandbox("sockets::udp::dialling_a_backend_itself_is_shown_as_it_is", |env| {
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

        // Takes the socket's peer away.
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
        let latest: Vec<SocketAddr> = (15..=20).map(|id| to(&format!("198.51.100.{id}:53"))).collect();
        latest.iter().for_each(|service| assert_eq!(socket.send_to(b"?", service).unwrap(), 1));
        let mut from: Vec<SocketAddr> = latest.iter().map(|_| socket.recv_from(&mut [0; 64]).unwrap().1).collect();
        from.sort_unstable();
        assert_eq!(from, latest, "six at a time");
    });
}

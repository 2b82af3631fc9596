//! TCP sockets that are bound to an address and a port, as those of proxies that keep the port of their client.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};

use nix::errno::Errno;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::state::entries::ServiceEntry;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Kernel, TIMEOUT, backends, entry, in_sandbox, l4, list, options, parse, point, put};

const BACKENDS: [&str; 3] = ["192.0.2.10:8080/TCP", "192.0.2.11:8080/TCP", "192.0.2.12:8080/TCP"];
const BACKENDS_V6: [&str; 2] = ["[2001:db8:b::10]:8080/TCP", "[2001:db8:b::11]:8080/TCP"];

/// A connection from the address and port, and the backend that it has.
fn connect(from: &str, to: &str) -> io::Result<(TcpStream, L4Addr)> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    socket.connect(&to.into())?;
    assert_eq!(socket.peer_addr()?.as_socket(), Some(to), "the client sees the address that it connected to");
    let mut stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = [0; 64];
    let len = stream.read(&mut buffer)?;
    Ok((stream, parse(&buffer[..len])))
}

/// Connects from one port to as many services as there are backends, which all have the same backends.
fn each_gets_another(from: &str, services: &[&str], backends: &[&str]) {
    for port in 40_000..40_020 {
        let connected = services.iter().map(|to| connect(&format!("{from}:{port}"), to));
        let open: Vec<_> = connected.map(|result| result.unwrap_or_else(|error| panic!("{port}: {error}"))).collect();
        let seen: BTreeSet<_> = open.iter().map(|(_, backend)| *backend).collect();
        assert_eq!(seen, backends.iter().map(|text| l4(text)).collect(), "{from}:{port}");
    }
}

#[test]
fn a_port_reaches_another_backend_by_each_service() {
    in_sandbox("sockets::bound::a_port_reaches_another_backend_by_each_service", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS);
        backends(&BACKENDS_V6);
        for (id, last) in (1..=3).zip(1..) {
            kernel.serve(id, &format!("198.51.100.{last}:80/TCP"), &BACKENDS);
        }
        kernel.serve(4, "[2001:db8:f::1]:80/TCP", &BACKENDS_V6);
        kernel.serve(5, "[2001:db8:f::2]:80/TCP", &BACKENDS_V6);
        each_gets_another("192.0.2.1", &["198.51.100.1:80", "198.51.100.2:80", "198.51.100.3:80"], &BACKENDS);
        let mapped = ["[::ffff:198.51.100.1]:80", "[::ffff:198.51.100.2]:80", "[::ffff:198.51.100.3]:80"];
        each_gets_another("[::ffff:192.0.2.2]", &mapped, &BACKENDS);
        each_gets_another("[2001:db8:b::1]", &["[2001:db8:f::1]:80", "[2001:db8:f::2]:80"], &BACKENDS_V6);
    });
}

/// In a list with more slots than are tried in order, most of them of one backend.
#[test]
fn a_port_reaches_another_backend_of_a_long_list() {
    in_sandbox("sockets::bound::a_port_reaches_another_backend_of_a_long_list", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS[..2]);
        let long = [[BACKENDS[0]; 20], [BACKENDS[1]; 20]].concat();
        kernel.serve(1, "198.51.100.1:80/TCP", &BACKENDS[..1]);
        kernel.apply(&[put(2, ServiceEntry { cluster: list(&long), ..entry(&long) }), point("198.51.100.2:80/TCP", 2)]);
        each_gets_another("192.0.2.1", &["198.51.100.1:80", "198.51.100.2:80"], &BACKENDS[..2]);
    });
}

#[test]
fn without_another_backend_the_port_is_in_use() {
    in_sandbox("sockets::bound::without_another_backend_the_port_is_in_use", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS[..1]);
        kernel.serve(1, "198.51.100.1:80/TCP", &BACKENDS[..1]);
        kernel.serve(2, "198.51.100.2:80/TCP", &BACKENDS[..1]);
        let _open = connect("192.0.2.1:40000", "198.51.100.1:80").unwrap();
        let error = connect("192.0.2.1:40000", "198.51.100.2:80").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EADDRNOTAVAIL as i32), "{error}");
    });
}

/// Its clients expect the backend that has their session.
#[test]
fn session_affinity_gives_no_other_backend() {
    in_sandbox("sockets::bound::session_affinity_gives_no_other_backend", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&BACKENDS[..2]);
        let sticky = ServiceEntry { affinity_seconds: 60, ..entry(&BACKENDS[..2]) };
        kernel.apply(&[put(1, sticky), point("198.51.100.1:80/TCP", 1), point("198.51.100.2:80/TCP", 1)]);
        let (_open, first) = connect("192.0.2.1:40000", "198.51.100.1:80").unwrap();
        let error = connect("192.0.2.1:40000", "198.51.100.2:80").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EADDRNOTAVAIL as i32), "{error}");
        assert_eq!(connect("192.0.2.1:40001", "198.51.100.2:80").unwrap().1, first);
    });
}

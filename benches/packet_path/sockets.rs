//! connect() to a service by a process of the node, with the packet path off and on: the programs for sockets are the
//! same, and use none of the packet path's maps.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use nodelb_core::model::addr::Protocol;

use crate::nodes::with_packets;
use crate::rounds::{Variant, interleave};
use crate::sandbox::Sandbox;
use crate::world::World;
use crate::world::services::{frontend, service, services, slice};

const BACKEND: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 8080);
/// The numbers of the services.
const UDP: u32 = 3;
const TCP: u32 = 20;

/// Interleaves both worlds, each with programs at a cgroup of its own.
pub(crate) fn run(sandbox: &Sandbox) {
    let [off, on] = ["sockets-off", "sockets-on"].map(|name| sandbox.cgroup.join(name));
    let (mut with, _packets) = with_packets(sandbox, "sockets-on", None);
    fs::create_dir(&off).unwrap();
    let mut without = World::new(&sandbox.bpffs, "sockets-off", &off);
    for world in [&mut with, &mut without] {
        world.apply(services(0..10, Protocol::Udp, BACKEND));
        world.apply([service(TCP, Protocol::Tcp), slice(TCP, Protocol::Tcp, [BACKEND].into_iter())]);
    }
    let listener = TcpListener::bind(BACKEND).unwrap();
    let [udp, tcp] = [(UDP, Protocol::Udp), (TCP, Protocol::Tcp)].map(|(number, protocol)| {
        let service = frontend(number, protocol);
        SocketAddr::new(service.addr.ip(), service.port)
    });
    let sockets = [&off, &on].map(|cgroup| socket_of(cgroup));
    let reconnect = |socket: &UdpSocket, count: u32| (0..count).for_each(|_| socket.connect(udp).unwrap());
    let connect = |count: u32| (0..count).for_each(|_| open_and_reset(tcp, &listener));
    let times = interleave(
        2_000,
        [
            Variant::new(|count| reconnect(&sockets[0], 10 * count)),
            Variant::new(|count| reconnect(&sockets[1], 10 * count)),
            Variant::new(connect).after(|| enter(&off)),
            Variant::new(connect).after(|| enter(&on)),
        ],
    );
    enter(&sandbox.cgroup);
    for socket in &sockets {
        assert_eq!(socket.peer_addr().unwrap(), udp, "the client sees the address of the service");
    }
    println!("\n### Processes of the node\n");
    println!("connect() to a service address, with `packets.mode` off and on; ns.\n");
    println!("| | min | p25 | median |\n|---|---|---|---|");
    let names =
        ["ten UDP re-connects, off", "ten UDP re-connects, on", "TCP connect, accept and close, off", "the same, on"];
    for (name, times) in names.iter().zip(&times) {
        println!("| {name} | {} |", times.cells());
    }
    println!();
    for (name, [off, on]) in [("UDP", [&times[0], &times[1]]), ("TCP", [&times[2], &times[3]])] {
        println!("{name}, on to off: {:.3} (min), {:.3} (p25).", on.min() / off.min(), on.p25() / off.p25());
    }
}

/// Connects, accepts, and closes with RST: TIME_WAIT would use up the ports.
fn open_and_reset(to: SocketAddr, listener: &TcpListener) {
    let client = TcpStream::connect(to).unwrap();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop((client, listener.accept().unwrap()));
}

/// A socket keeps the cgroup in which its process was when it created the socket.
fn socket_of(cgroup: &Path) -> UdpSocket {
    enter(cgroup);
    UdpSocket::bind("192.0.2.9:0").unwrap()
}

fn enter(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}

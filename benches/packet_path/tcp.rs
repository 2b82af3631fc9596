//! The cost of TCP through the node: request and response on one connection, on a new connection
//! each, and bulk data. Client and server are one thread, so its CPU time is that of both and of
//! the node between them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::generator::CpuClock;
use crate::goals::Goals;
use crate::nodes::{Nodes, TCP, VARIANTS};
use crate::rounds::{Times, in_turn};
use crate::site::{BACKEND_PORT, MACHINE, POD, Site};
use crate::udp::{ROUNDS, Side};
use crate::world::services::frontend;

/// Operations of one measurement.
const REQUESTS: u32 = 3_000;
const CONNECTIONS: u32 = 500;
const MEGABYTES: u32 = 100;

/// What is done.
#[derive(Clone, Copy, Debug)]
enum Work {
    Requests,
    Connections,
    Stream,
}

impl Work {
    /// Its name in the chart.
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "TCP request",
            Self::Connections => "TCP connection",
            Self::Stream => "TCP stream",
        }
    }
}

const WORKS: [(Work, &str); 3] = [(Work::Requests, "TCP_RR"), (Work::Connections, "TCP_CRR"), (Work::Stream, "stream")];

/// A client and the server of one node.
struct Pair<'a> {
    site: &'a Site,
    listener: TcpListener,
    to: SocketAddr,
    client: TcpStream,
    server: TcpStream,
}

impl<'a> Pair<'a> {
    fn new(site: &'a Site, side: Side, is_service: bool) -> Self {
        let (place, backend) = if side == Side::Local { (&site.pod, POD) } else { (&site.machine, MACHINE) };
        let listener = place.within(|| TcpListener::bind((backend, BACKEND_PORT)).unwrap());
        let service = frontend(TCP[side as usize], nodelb_core::model::addr::Protocol::Tcp);
        let to = match is_service {
            true => SocketAddr::new(service.addr.ip(), service.port),
            false => SocketAddr::from((backend as Ipv4Addr, BACKEND_PORT)),
        };
        let (client, server) = connect(site, &listener, to);
        Self { site, listener, to, client, server }
    }

    fn run(&mut self, work: Work) -> u32 {
        match work {
            Work::Requests => {
                (0..REQUESTS).for_each(|_| exchange(&mut self.client, &mut self.server));
                REQUESTS
            }
            Work::Connections => {
                self.site.client.within(|| {
                    for _ in 0..CONNECTIONS {
                        let (mut client, mut server) = connect_here(&self.listener, self.to);
                        exchange(&mut client, &mut server);
                    }
                });
                CONNECTIONS
            }
            Work::Stream => {
                stream(&mut self.client, &mut self.server);
                MEGABYTES
            }
        }
    }
}

fn connect(site: &Site, listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    site.client.within(|| connect_here(listener, to))
}

fn connect_here(listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(to).unwrap_or_else(|error| panic!("{to}: {error}"));
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
        // Close with RST: TIME_WAIT would use up the ports.
        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    (client, server)
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"?").unwrap();
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut byte).unwrap();
}

/// Sends all data, as much at a time as the sockets have room for.
fn stream(client: &mut TcpStream, server: &mut TcpStream) {
    let total = MEGABYTES as usize * 1_000_000;
    let mut buffer = vec![0; 256 * 1024];
    let (mut sent, mut received) = (0, 0);
    let done = |result: std::io::Result<usize>| match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        result => result.unwrap(),
    };
    for stream in [&*client, &*server] {
        stream.set_nonblocking(true).unwrap();
    }
    while received < total {
        if sent < total {
            let length = buffer.len().min(total - sent);
            sent += done(client.write(&buffer[..length]));
        }
        received += done(server.read(&mut buffer));
    }
    for stream in [&*client, &*server] {
        stream.set_nonblocking(false).unwrap();
    }
}

/// All tables.
pub(crate) fn run(cpu: &CpuClock, nodes: &Nodes, goals: &mut Goals) {
    println!("\n### TCP\n");
    println!("CPU time of client, node and server together: ns for a request (TCP_RR), for a connection with one");
    println!("request (TCP_CRR), and for a megabyte (stream). Congestion control: Reno.\n");
    println!("| | TCP_RR, min | p25 | TCP_CRR, min | p25 | stream, min | p25 |\n|---|---|---|---|---|---|---|");
    let mut rates = Vec::new();
    for side in Side::BOTH {
        let mut pairs = nodes.variants().map(|(site, is_service)| Pair::new(site, side, is_service));
        let times = WORKS.map(|(work, _)| {
            in_turn(ROUNDS, |variant| {
                for node in [&nodes.few, &nodes.many, &nodes.with_conntrack] {
                    node.sweep(&TIMEOUTS);
                }
                let begun = cpu.nanos();
                let count = pairs[variant].run(work);
                (cpu.nanos() - begun) as f64 / f64::from(count)
            })
        });
        print(side, &times);
        rates.push(judge(side, &times, goals));
    }
    println!("\n{}", rates.join("\n"));
}

/// As in production, except that connections that were reset end at once: the bench makes thousands
/// in a second.
const TIMEOUTS: nodelb_core::packets::sweep::SweepTimeouts = nodelb_core::packets::sweep::SweepTimeouts {
    handshake: 30,
    closed: 60,
    reset: 0,
    tcp_idle: 86_400,
    udp_idle: 120,
    forwarded_idle: 86_400,
};

fn print(side: Side, times: &[[Times; VARIANTS.len()]; WORKS.len()]) {
    for (variant, name) in VARIANTS.iter().enumerate() {
        let cells = times.each_ref().map(|of| format!("{:.0} | {:.0}", of[variant].min(), of[variant].p25()));
        println!("| {side:?}: {name} | {} |", cells.join(" | "));
    }
}

fn judge(side: Side, times: &[[Times; VARIANTS.len()]; WORKS.len()], goals: &mut Goals) -> String {
    for ((work, name), of) in WORKS.iter().zip(times) {
        goals.chart.add(format!("{}, {}", work.name(), side.place()), [0, 3, 2].map(|variant| of[variant].min()));
        let ratio =
            |variant: usize, base: usize| [of[variant].min() / of[base].min(), of[variant].p25() / of[base].p25()];
        match side {
            Side::Remote => {
                goals.add("G5", &format!("{name}, remote: to plain forwarding"), 1.10, ratio(3, 0));
                goals.add("G5", &format!("{name}, remote: to nftables"), 0.90, ratio(3, 2));
            }
            Side::Local => {
                goals.add("G6", &format!("{name}, local, conntrack active: to nftables"), 1.00, ratio(5, 2));
            }
        }
    }
    let per_second = |variant: usize| 1e9 / times[1][variant].min();
    format!(
        "{side:?}, new connections a second and core: plain {:.0}, nftables {:.0}, nodelb {:.0}.\n",
        per_second(0),
        per_second(2),
        per_second(3)
    )
}

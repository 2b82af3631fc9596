//! Shared by the tests: a datapath in a sandbox, backends that answer with their addresses, and
//! clients.

mod affinity;
mod atomic;
mod bind;
mod bound;
mod content;
mod counters;
mod crash;
mod failed_starts;
mod flows;
mod hidden;
mod hostile;
mod layout;
mod lifecycle;
mod many_services;
mod outside;
mod own_sockets;
mod refusal;
mod socket_table;
mod strays;
mod translation;
mod udp;
mod verifier;

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nodelb_core::datapath::{Datapath as _, Limits, MapError};
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{BackendId, FrontendEntry, MapOp, ServiceEntry, ServiceId, Slot};
use nodelb_datapath::{KernelDatapath, Options, StartReport};

use crate::part::{PART, in_sandbox, part};
use crate::sandbox::Sandbox;

/// A command that runs the named part of this test in another process.
fn part_command(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of the test binary"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, part);
    command
}

fn options(env: &Sandbox) -> Options {
    Options {
        pin_directory: env.bpffs.join("nodelb"),
        cgroup: Some(env.cgroup.clone()),
        limits: Limits { frontends: 1024, services: 256, slots: 4096, affinity: 1024, outside: 64, source_ranges: 64 },
        nodeport_range: 30000..=32767,
        protect_nodeports: true,
        count_connections: true,
        packets: None,
        hook_method: None,
        layout: nodelb_datapath::LAYOUT,
        crash_after: None,
    }
}

/// A datapath and its clock.
struct Kernel {
    datapath: KernelDatapath,
    report: StartReport,
    started: Instant,
}

impl Kernel {
    fn open(options: &Options) -> Self {
        let (datapath, report) = KernelDatapath::open(options).unwrap_or_else(|error| panic!("{error}"));
        Self { datapath, report, started: Instant::now() }
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_millis()).unwrap())
    }

    fn try_apply(&mut self, ops: &[MapOp]) -> Vec<Result<(), MapError>> {
        let now = self.now();
        self.datapath.apply(ops, now)
    }

    /// Applies the operations, and repeats those that have to wait for resting slots.
    fn apply(&mut self, ops: &[MapOp]) {
        for (op, mut result) in ops.iter().zip(self.try_apply(ops)) {
            let deadline = Instant::now() + Duration::from_secs(10);
            while result == Err(MapError::Resting) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
                result = self.try_apply(std::slice::from_ref(op)).remove(0);
            }
            result.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        }
    }

    /// Sets a service with these backends behind one address.
    fn serve(&mut self, id: u32, frontend: &str, backends: &[&str]) {
        self.apply(&[put(id, entry(backends)), point(frontend, id)]);
    }
}

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// A slot with a backend id that depends only on the address, as in the daemon.
fn slot(addr: L4Addr) -> Slot {
    let id =
        addr.to_string().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    Slot { backend: BackendId(id), addr }
}

fn list(backends: &[&str]) -> Arc<[Slot]> {
    backends.iter().map(|text| slot(l4(text))).collect()
}

fn entry(backends: &[&str]) -> ServiceEntry {
    ServiceEntry { cluster: list(backends), has_backends: !backends.is_empty(), ..ServiceEntry::default() }
}

fn put(id: u32, entry: ServiceEntry) -> MapOp {
    MapOp::PutService(ServiceId(id), Arc::new(entry))
}

fn point(frontend: &str, id: u32) -> MapOp {
    let entry = FrontendEntry { service: ServiceId(id), inside_local: false, outside_local: false };
    MapOp::PutFrontend(l4(frontend), entry)
}

/// Listens on the address until the process ends, and answers with that address.
fn backend(addr: L4Addr) {
    let socket = SocketAddr::new(addr.addr.ip(), addr.port);
    let name = addr.to_string();
    if addr.protocol == Protocol::Tcp {
        let listener = TcpListener::bind(socket).unwrap_or_else(|error| panic!("{addr}: {error}"));
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that has disconnected needs no answer.
                let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
            }
        });
    } else {
        let server = UdpSocket::bind(socket).unwrap_or_else(|error| panic!("{addr}: {error}"));
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = server.recv_from(&mut buffer) {
                let _ = server.send_to(name.as_bytes(), from);
            }
        });
    }
}

fn backends(addrs: &[&str]) {
    addrs.iter().for_each(|addr| backend(l4(addr)));
}

/// How a client uses its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketMode {
    Tcp,
    UdpConnected,
    UdpUnconnected,
}

/// What a client observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    /// The backend that answered.
    backend: L4Addr,
    /// The peer address that the client sees: from getpeername, or the source of the answer.
    shown: SocketAddr,
}

/// The destination as a socket address, IPv4-mapped if `mapped`.
fn target(to: L4Addr, mapped: bool) -> SocketAddr {
    match to.addr.ip() {
        IpAddr::V4(v4) if mapped => SocketAddr::new(v4.to_ipv6_mapped().into(), to.port),
        ip => SocketAddr::new(ip, to.port),
    }
}

/// Longer than an answer takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn udp_socket(to: &SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { "::".parse().unwrap() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn exchange(mode: SocketMode, to: SocketAddr) -> io::Result<Reached> {
    let mut buffer = [0; 64];
    let (len, shown) = match mode {
        SocketMode::Tcp => {
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
            let shown = stream.peer_addr()?;
            (stream.read(&mut buffer)?, shown)
        }
        SocketMode::UdpConnected => {
            let socket = udp_socket(&to);
            socket.connect(to)?;
            socket.send(b"?")?;
            let (len, from) = socket.recv_from(&mut buffer)?;
            assert_eq!(from, socket.peer_addr()?, "recvmsg and getpeername agree");
            (len, from)
        }
        SocketMode::UdpUnconnected => return ask(&udp_socket(&to), to),
    };
    Ok(Reached { backend: parse(&buffer[..len]), shown })
}

/// Sends a datagram from an unconnected socket and waits for the answer.
fn ask(socket: &UdpSocket, to: SocketAddr) -> io::Result<Reached> {
    let mut buffer = [0; 64];
    socket.send_to(b"?", to)?;
    let (len, shown) = socket.recv_from(&mut buffer)?;
    Ok(Reached { backend: parse(&buffer[..len]), shown })
}

fn parse(answer: &[u8]) -> L4Addr {
    std::str::from_utf8(answer).unwrap().parse().unwrap()
}

/// Connects to an address about once per millisecond and counts failures.
struct Prober {
    stop: Arc<AtomicBool>,
    /// The number of connections so far.
    made: Arc<AtomicU64>,
    thread: thread::JoinHandle<Vec<String>>,
}

impl Prober {
    /// Returns when the first has been made.
    fn start(mode: SocketMode, to: &str) -> Self {
        let (stop, to) = (Arc::new(AtomicBool::new(false)), to.parse().unwrap());
        let (made, stopped) = (Arc::new(AtomicU64::new(0)), Arc::clone(&stop));
        let count = Arc::clone(&made);
        let thread = thread::spawn(move || {
            let mut failures = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = exchange(mode, to) {
                    failures.push(error.to_string());
                }
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(800));
            }
            failures
        });
        let prober = Self { stop, made, thread };
        prober.go_on();
        prober
    }

    /// Waits until there was another connection that began after the call.
    fn go_on(&self) {
        let before = self.made.load(Ordering::Relaxed);
        while self.made.load(Ordering::Relaxed) < before + 2 && !self.thread.is_finished() {
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Stops. No connection may have failed.
    fn finish(self) {
        self.go_on();
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.thread.join().unwrap();
        assert_eq!(failures, Vec::<String>::new(), "of {} connections", self.made.load(Ordering::Relaxed));
    }
}

/// A small reproducible generator: its seed determines the numbers of a test.
struct Random(u64);

/// The number of random cases: `SOCKET_CASES`, or the default of the test.
fn cases(default: u32) -> u32 {
    std::env::var("SOCKET_CASES").map_or(default, |text| text.parse().expect("SOCKET_CASES is a number"))
}

impl Random {
    /// Seeded with `SOCKET_SEED`, or with the default of the test.
    fn seeded(default: u64) -> Self {
        Self(std::env::var("SOCKET_SEED").map_or(default, |text| text.parse().expect("SOCKET_SEED is a number")))
    }

    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % limit
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}

//! The cost for a client that connects.

use std::cell::RefCell;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodelb_core::model::addr::{L4Addr, Protocol};

use crate::rounds::{ROUNDS, Times, Variant, in_turn, interleave, verdict};
use crate::sandbox::Sandbox;
use crate::world::World;
use crate::world::services::{frontend, services};
use crate::{counting, options};

const UDP: Protocol = Protocol::Udp;
pub(crate) const BACKEND: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 8080);

/// Programs that do nothing, to measure the cost of the hooks themselves. accept() calls getpeername4.
const EMPTY: &str = "
#include <linux/bpf.h>
#define SEC(name) __attribute__((section(name), used))
char LICENSE[] SEC(\"license\") = \"Dual BSD/GPL\";
SEC(\"cgroup/connect4\") int connect4(struct bpf_sock_addr *ctx) { return 1; }
SEC(\"cgroup/getpeername4\") int getpeername4(struct bpf_sock_addr *ctx) { return 1; }
";

pub(crate) fn run(sandbox: &Sandbox) {
    let few = cgroup(sandbox, "few");
    let many = cgroup(sandbox, "many");
    let mut small = World::new(&sandbox.bpffs, "few", &few);
    let listener = TcpListener::bind(BACKEND).unwrap();

    small.apply(services(0..10, Protocol::Udp, BACKEND));
    let small = RefCell::new(small);
    reconnect(&small, &few);
    fresh(&small, &few);
    options::run(&small, &few);
    let quiet = cgroup(sandbox, "quiet");
    let mut uncounted = World::with(&sandbox.bpffs, "quiet", &quiet, false);
    uncounted.apply(services(0..10, Protocol::Udp, BACKEND));
    let uncounted = RefCell::new(uncounted);
    counting::run((&small, &few), (&uncounted, &quiet));
    uncounted.into_inner().detach();
    let mut small = small.into_inner();
    let mut large = World::new(&sandbox.bpffs, "many", &many);
    large.apply(services(0..50_000, Protocol::Udp, BACKEND));
    let growth = scale(&few, &many);
    large.detach();
    small.apply(services(0..10, Protocol::Tcp, BACKEND));
    small.apply([options::affinity(Protocol::Tcp)]);
    let factor = tcp(&listener, &RefCell::new(small), &few);
    println!(
        "Summary: A TCP connection of a process on the node through a service address takes {factor:.3} times the time of a direct \
         one (connect, accept and close on loopback), and among 50,000 services {growth:.3} times the time among 10."
    );

    enter(&sandbox.cgroup);
    for cgroup in [few, many, quiet] {
        fs::remove_dir(cgroup).unwrap();
    }
}

/// The programs that are attached during a measurement. "Nothing" means none on the whole machine:
/// the kernel patches its code when the first program is attached, so cgroups without programs
/// become slower, too.
pub(crate) struct Hooks<'a> {
    nodelb: &'a RefCell<World>,
    cgroup: &'a Path,
    empty: RefCell<Option<(libbpf_rs::Object, Vec<libbpf_rs::Link>)>>,
}

impl<'a> Hooks<'a> {
    pub(crate) fn new(nodelb: &'a RefCell<World>, cgroup: &'a Path) -> Self {
        Self { nodelb, cgroup, empty: RefCell::default() }
    }

    pub(crate) fn nothing(&self) {
        self.empty.take();
        // A cgroup in which a canary shows whether the programs are detached.
        enter(self.cgroup);
        self.nodelb.borrow_mut().detach();
    }

    pub(crate) fn empty(&self) {
        self.nothing();
        self.empty.replace(Some(attach_empty(self.cgroup)));
    }

    pub(crate) fn nodelb(&self) {
        self.empty.take();
        self.nodelb.borrow_mut().datapath.ensure_attached().unwrap();
    }
}

/// UDP connect() on a connected socket: only the hook and a route lookup.
fn reconnect(nodelb: &RefCell<World>, cgroup: &Path) {
    let hooks = Hooks::new(nodelb, cgroup);
    let [direct, service, other] =
        [SocketAddr::from(BACKEND), socket_address(frontend(3, UDP)), socket_address(frontend(4, UDP))];
    let sockets = [(); 5].map(|()| socket_of(cgroup));
    let connect = |socket: &UdpSocket, to: [SocketAddr; 2], count: u32| {
        to.iter().cycle().take(count as usize).for_each(|to| socket.connect(to).unwrap());
    };
    let times = interleave(
        20_000,
        [
            Variant::new(|count| connect(&sockets[0], [direct; 2], count)).after(|| hooks.nothing()),
            Variant::new(|count| connect(&sockets[1], [direct; 2], count)).after(|| hooks.empty()),
            Variant::new(|count| connect(&sockets[2], [direct; 2], count)).after(|| hooks.nodelb()),
            Variant::new(|count| connect(&sockets[3], [service; 2], count)).after(|| hooks.nodelb()),
            Variant::new(|count| connect(&sockets[4], [service, other], count)).after(|| hooks.nodelb()),
        ],
    );
    hooks.nodelb();
    println!("\n## UDP re-connect\n");
    println!("connect() on one UDP socket, again and again; ns a call.\n");
    println!("| | min | p25 | median |\n|---|---|---|---|");
    let names = [
        "nothing attached",
        "empty program",
        "nodelb, no service address",
        "nodelb, service address",
        "nodelb, two service addresses in turn",
    ];
    for (name, times) in names.iter().zip(&times) {
        println!("| {name} | {} |", times.cells());
    }
    let [none, empty, plain, service, alternating] = &times;
    let ratio = |through: &Times, of: fn(&Times) -> f64| (of(through) - of(none)) / (of(empty) - of(none));
    let (min, p25) = (ratio(service, Times::min), ratio(service, Times::p25));
    println!(
        "\n(through nodelb - nothing) / (empty - nothing), to a service address: **{min:.2}** (min), {p25:.2} (p25)."
    );
    println!("Within 1.35: {} (min), {} (p25).", verdict(min, 1.35), verdict(p25, 1.35));
    for (what, times) in [("no service address", plain), ("two service addresses in turn", alternating)] {
        println!("The same, {what}: {:.2} (min), {:.2} (p25).", ratio(times, Times::min), ratio(times, Times::p25));
    }
}

/// Prints the times of the variants that [`fresh`] and [`tcp`] have in common, and their ratios.
fn print_fresh([none, empty, direct, service]: [&Times; 4]) {
    println!("| | min | p25 | median |\n|---|---|---|---|");
    let rows = [
        ("nothing attached, direct", none),
        ("empty programs, direct", empty),
        ("nodelb, direct", direct),
        ("nodelb, service address", service),
    ];
    for (name, times) in rows {
        println!("| {name} | {} |", times.cells());
    }
    for (what, over, under) in [
        ("service / direct", service, direct),
        ("direct / direct without nodelb", direct, none),
        ("empty programs / without", empty, none),
        ("direct / empty programs", direct, empty),
        ("service / direct without nodelb", service, none),
    ] {
        println!("\n{what}: **{:.3}** (min), {:.3} (p25).", over.min() / under.min(), over.p25() / under.p25());
    }
}

/// UDP sockets that connect once: the state of the socket is new each time.
fn fresh(nodelb: &RefCell<World>, cgroup: &Path) {
    let hooks = Hooks::new(nodelb, cgroup);
    enter(cgroup);
    let [direct, service] = [SocketAddr::from(BACKEND), socket_address(frontend(3, UDP))];
    let connect = |to: SocketAddr, count: u32| {
        for _ in 0..count {
            UdpSocket::bind("192.0.2.9:0").unwrap().connect(to).unwrap();
        }
    };
    let [none, empty, plain, through] = interleave(
        5_000,
        [
            Variant::new(|count| connect(direct, count)).after(|| hooks.nothing()),
            Variant::new(|count| connect(direct, count)).after(|| hooks.empty()),
            Variant::new(|count| connect(direct, count)).after(|| hooks.nodelb()),
            Variant::new(|count| connect(service, count)).after(|| hooks.nodelb()),
        ],
    );
    hooks.nodelb();
    println!("\n## New UDP sockets\n");
    println!("socket(), bind(), connect() and close(); ns for all four.\n");
    print_fresh([&none, &empty, &plain, &through]);
    let (min, p25) = (through.min() / plain.min(), through.p25() / plain.p25());
    println!("\nService / direct within 1.15: {} (min), {} (p25).", verdict(min, 1.15), verdict(p25, 1.15));
    connect_alone(&hooks, [direct, service]);
}

/// Sockets of one part of a measurement: they fit into the limit of open files.
const SOCKETS: u32 = 500;

/// connect() alone on new UDP sockets.
fn connect_alone(hooks: &Hooks<'_>, [direct, service]: [SocketAddr; 2]) {
    let [none, empty, plain, through] = in_turn(ROUNDS, |variant| {
        match variant {
            0 => hooks.nothing(),
            1 => hooks.empty(),
            _ => hooks.nodelb(),
        }
        let to = if variant == 3 { service } else { direct };
        let part = |_| {
            let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| UdpSocket::bind("192.0.2.9:0").unwrap()).collect();
            let start = Instant::now();
            sockets.iter().for_each(|socket| socket.connect(to).unwrap());
            start.elapsed().as_nanos() as f64 / f64::from(SOCKETS)
        };
        (0..5).map(part).fold(f64::INFINITY, f64::min)
    });
    hooks.nodelb();
    println!("\n### connect() alone\n\nns a call, on sockets that have not connected before.\n");
    print_fresh([&none, &empty, &plain, &through]);
    let floor = (empty.min() / none.min(), empty.p25() / none.p25());
    println!("\nFloor, programs that do nothing / none: {:.3} (min), {:.3} (p25).", floor.0, floor.1);
}

/// TCP connect, accept and close through a service and directly with nodelb's hooks, and directly
/// without hooks. Returns the ratio of the first two.
fn tcp(listener: &TcpListener, nodelb: &RefCell<World>, cgroup: &Path) -> f64 {
    let hooks = Hooks::new(nodelb, cgroup);
    enter(cgroup);
    let direct = SocketAddr::from(BACKEND);
    let [service, sticky] = [3, 5].map(|number| socket_address(frontend(number, Protocol::Tcp)));
    let connect = |to: SocketAddr, count: u32| {
        for _ in 0..count {
            let client = TcpStream::connect(to).unwrap();
            // Close with RST: TIME_WAIT would use up the ports.
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            drop((client, listener.accept().unwrap()));
        }
    };
    let times = interleave(
        1_000,
        [
            Variant::new(|count| connect(direct, count)).after(|| hooks.nothing()),
            Variant::new(|count| connect(direct, count)).after(|| hooks.empty()),
            Variant::new(|count| connect(direct, count)).after(|| hooks.nodelb()),
            Variant::new(|count| connect(service, count)).after(|| hooks.nodelb()),
            Variant::new(|count| connect(sticky, count)).after(|| hooks.nodelb()),
        ],
    );
    println!("\n## TCP connect, accept and close\n");
    println!("ns a connection, loopback.\n");
    let [none, empty, plain, through, sticky] = &times;
    print_fresh([none, empty, plain, through]);
    println!("\nWith session affinity: {} ns (min), {} ns (p25).", sticky.min().round(), sticky.p25().round());
    for (name, times) in [("service", through), ("service with session affinity", sticky)] {
        let (min, p25) = (times.min() / plain.min(), times.p25() / plain.p25());
        println!("\n{name} / direct: **{min:.3}** (min), {p25:.3} (p25).");
        println!("Within 1.02: {} (min), {} (p25).", verdict(min, 1.02), verdict(p25, 1.02));
    }
    through.min() / plain.min()
}

/// The same ten services, alone and among 50,000: returns the ratio.
fn scale(few: &Path, many: &Path) -> f64 {
    let sockets = |cgroup: &Path| -> Vec<UdpSocket> { (0..9).map(|_| socket_of(cgroup)).collect() };
    let targets: Vec<SocketAddr> = (0..10).map(|number| socket_address(frontend(number, UDP))).collect();
    let (of_few, of_many) = (sockets(few), sockets(many));
    // With nine sockets and ten services, each socket connects to a different service each time, so
    // that every call looks up its frontend.
    let connect = |sockets: &[UdpSocket], count: u32| {
        let pairs = sockets.iter().cycle().zip(targets.iter().cycle());
        pairs.take(count as usize).for_each(|(socket, target)| socket.connect(target).unwrap());
    };
    let [at_few, at_many] = interleave(
        20_000,
        [Variant::new(|count| connect(&of_few, count)), Variant::new(|count| connect(&of_many, count))],
    );
    println!("\n## Number of services\n");
    println!("UDP re-connect to the same ten services, alone and among 50,000; ns a call.\n");
    println!("| services | min | p25 | median |\n|---|---|---|---|");
    println!("| 10 | {} |", at_few.cells());
    println!("| 50,000 | {} |", at_many.cells());
    let (min, p25) = (at_many.min() / at_few.min(), at_many.p25() / at_few.p25());
    println!("\n50,000 / 10: **{min:.3}** (min), {p25:.3} (p25).");
    println!("Within 1.10: {} (min), {} (p25).", verdict(min, 1.10), verdict(p25, 1.10));
    min
}

pub(crate) fn socket_address(frontend: L4Addr) -> SocketAddr {
    SocketAddr::new(frontend.addr.ip(), frontend.port)
}

/// A socket keeps the cgroup in which its process was when it created the socket.
pub(crate) fn socket_of(cgroup: &Path) -> UdpSocket {
    enter(cgroup);
    UdpSocket::bind("192.0.2.9:0").unwrap()
}

fn enter(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
}

fn cgroup(sandbox: &Sandbox, name: &str) -> PathBuf {
    let path = sandbox.cgroup.join(name);
    fs::create_dir(&path).unwrap();
    path
}

fn attach_empty(cgroup: &Path) -> (libbpf_rs::Object, Vec<libbpf_rs::Link>) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut compile = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-I/usr/include/x86_64-linux-gnu", "-x", "c", "-", "-c", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    compile.stdin.take().unwrap().write_all(EMPTY.as_bytes()).unwrap();
    let object = compile.wait_with_output().unwrap().stdout;
    let object = libbpf_rs::ObjectBuilder::default().open_memory(&object).unwrap().load().unwrap();
    let directory = fs::File::open(cgroup).unwrap();
    let directory = std::os::fd::AsRawFd::as_raw_fd(&directory);
    let links = object.progs_mut().map(|program| program.attach_cgroup(directory).unwrap()).collect();
    (object, links)
}

//! What a connecting client pays.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodelb_core::addr::{L4Addr, Protocol};

use crate::rounds::{Times, interleave, verdict};
use crate::sandbox::Sandbox;
use crate::world::{World, frontend, services};

const BACKEND: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 8080);

/// A program that does nothing but be there: the price of the hook itself.
const EMPTY: &str = "
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC(\"license\") = \"Dual BSD/GPL\";
SEC(\"cgroup/connect4\") int empty(struct bpf_sock_addr *ctx) { return 1; }
";

pub(crate) fn run(sandbox: &Sandbox) {
    let none = cgroup(sandbox, "none");
    let empty = cgroup(sandbox, "empty");
    let few = cgroup(sandbox, "few");
    let many = cgroup(sandbox, "many");
    let attached = attach_empty(&empty);
    let mut small = World::new(&sandbox.bpffs, "few", &few);
    let mut large = World::new(&sandbox.bpffs, "many", &many);
    let listener = TcpListener::bind(BACKEND).unwrap();

    small.apply(services(10, Protocol::Udp, BACKEND));
    reconnect(&none, &empty, &few);
    large.apply(services(50_000, Protocol::Udp, BACKEND));
    scale(&few, &many);
    small.apply(services(10, Protocol::Tcp, BACKEND));
    tcp(&listener, &none, &few);

    enter(&sandbox.cgroup);
    drop(attached);
    drop((small, large));
    for cgroup in [none, empty, few, many] {
        fs::remove_dir(cgroup).unwrap();
    }
}

/// UDP connect() on a socket that is connected already: nothing but the hook and a route lookup.
fn reconnect(none: &Path, empty: &Path, few: &Path) {
    let sockets = [none, empty, few, few].map(socket_of);
    let direct = SocketAddr::from(BACKEND);
    let service = dialled(frontend(3, Protocol::Udp));
    let connect = |socket: &UdpSocket, to: SocketAddr, count: u32| (0..count).for_each(|_| socket.connect(to).unwrap());
    let times = interleave(
        20_000,
        [
            &mut |count| connect(&sockets[0], direct, count),
            &mut |count| connect(&sockets[1], direct, count),
            &mut |count| connect(&sockets[2], direct, count),
            &mut |count| connect(&sockets[3], service, count),
        ],
    );
    println!("\n## UDP re-connect\n");
    println!("connect() on one UDP socket, again and again; ns a call.\n");
    println!("| | min | p25 | median |\n|---|---|---|---|");
    let names = ["no program", "empty program", "nodelb, no service address", "nodelb, service address"];
    for (name, times) in names.iter().zip(&times) {
        println!("| {name} | {} |", times.cells());
    }
    let [none, empty, _, translated] = &times;
    let ratio = |of: fn(&Times) -> f64| (of(translated) - of(none)) / (of(empty) - of(none));
    let (min, p25) = (ratio(Times::min), ratio(Times::p25));
    println!(
        "\n(translated - none) / (empty - none): **{min:.2}** (min), {p25:.2} (p25). Within 1.35: {}.",
        verdict(min, 1.35)
    );
}

/// TCP connect, accept and close through a service and directly, both under nodelb's hooks, and without any.
fn tcp(listener: &TcpListener, none: &Path, few: &Path) {
    let direct = SocketAddr::from(BACKEND);
    let service = dialled(frontend(3, Protocol::Tcp));
    let connect = |cgroup: &Path, to: SocketAddr, count: u32| {
        enter(cgroup);
        for _ in 0..count {
            let client = TcpStream::connect(to).unwrap();
            // Resets instead of lingering: the ports do not run out.
            socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop((client, listener.accept().unwrap()));
        }
    };
    let times = interleave(
        1_000,
        [&mut |count| connect(none, direct, count), &mut |count| connect(few, direct, count), &mut |count| {
            connect(few, service, count);
        }],
    );
    println!("\n## TCP connect, accept and close\n");
    println!("ns a connection, loopback.\n");
    println!("| | min | p25 | median |\n|---|---|---|---|");
    for (name, times) in ["no program, direct", "nodelb, direct", "nodelb, service address"].iter().zip(&times) {
        println!("| {name} | {} |", times.cells());
    }
    let [none, direct, service] = &times;
    let (min, p25) = (service.min() / direct.min(), service.p25() / direct.p25());
    println!("\nservice / direct: **{min:.3}** (min), {p25:.3} (p25). Within 1.05: {}.", verdict(p25, 1.05));
    let (min, p25) = (service.min() / none.min(), service.p25() / none.p25());
    println!("service / direct without nodelb: {min:.3} (min), {p25:.3} (p25).");
}

/// The same ten services, alone and among 50,000.
fn scale(few: &Path, many: &Path) {
    let sockets = |cgroup: &Path| -> Vec<UdpSocket> { (0..10).map(|_| socket_of(cgroup)).collect() };
    let targets: Vec<SocketAddr> = (0..10).map(|number| dialled(frontend(number, Protocol::Udp))).collect();
    let connect = |sockets: &[UdpSocket], count: u32| {
        let pairs = sockets.iter().zip(&targets).cycle().take(count as usize);
        pairs.for_each(|(socket, target)| socket.connect(target).unwrap());
    };
    let (of_few, of_many) = (sockets(few), sockets(many));
    let [at_few, at_many] =
        interleave(20_000, [&mut |count| connect(&of_few, count), &mut |count| connect(&of_many, count)]);
    println!("\n## Number of services\n");
    println!("UDP re-connect to the same ten services, alone and among 50,000; ns a call.\n");
    println!("| services | min | p25 | median |\n|---|---|---|---|");
    println!("| 10 | {} |", at_few.cells());
    println!("| 50,000 | {} |", at_many.cells());
    let (min, p25) = (at_many.min() / at_few.min(), at_many.p25() / at_few.p25());
    println!("\n50,000 / 10: **{min:.3}** (min), {p25:.3} (p25). Within 1.10: {}.", verdict(min, 1.10));
}

fn dialled(frontend: L4Addr) -> SocketAddr {
    SocketAddr::new(frontend.addr.ip(), frontend.port)
}

/// A socket belongs for good to the cgroup its process is in when it is made.
fn socket_of(cgroup: &Path) -> UdpSocket {
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

fn attach_empty(cgroup: &Path) -> (libbpf_rs::Object, libbpf_rs::Link) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut compile = Command::new(clang)
        .args([
            "-target",
            "bpf",
            "-O2",
            "-g",
            "-I/usr/include/x86_64-linux-gnu",
            "-x",
            "c",
            "-",
            "-c",
            "-o",
            "/dev/stdout",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    compile.stdin.take().unwrap().write_all(EMPTY.as_bytes()).unwrap();
    let object = compile.wait_with_output().unwrap().stdout;
    let object = libbpf_rs::ObjectBuilder::default().open_memory(&object).unwrap().load().unwrap();
    let directory = fs::File::open(cgroup).unwrap();
    let link = object.progs_mut().next().unwrap().attach_cgroup(std::os::fd::AsRawFd::as_raw_fd(&directory)).unwrap();
    (object, link)
}

//! The cost of the control plane: from a change to the maps in the kernel.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;

use crate::rounds::{ROUNDS, Times, verdict};
use crate::sandbox::Sandbox;
use crate::world::World;
use crate::world::services::{backend, frontend, service, services, single_endpoint_services, slice};

const SERVICES: u32 = 50_000;
const CHANGES: u32 = 5_000;
const PORT: u16 = 8080;

pub(crate) fn run(sandbox: &Sandbox) {
    let mut world = World::new(&sandbox.bpffs, "control", &sandbox.cgroup);
    bulk(&mut world);
    one_endpoint(&mut world);
    one_large_service(&mut world, sandbox);
}

/// Only the first part.
pub(crate) fn run_bulk(sandbox: &Sandbox) {
    bulk(&mut World::new(&sandbox.bpffs, "control", &sandbox.cgroup));
}

/// Adds 50,000 services with one endpoint each to empty maps, and removes them.
fn bulk(world: &mut World) {
    let mut nanos = Vec::new();
    for _ in 0..ROUNDS {
        let changes = single_endpoint_services(SERVICES);
        let start = Instant::now();
        let done = world.apply(changes);
        nanos.push(start.elapsed().as_nanos() as f64 / f64::from(SERVICES));
        assert!(done >= 2 * SERVICES as usize, "{done} operations");
        world.forget();
    }
    let times = Times::new(nanos);
    println!("\n## 50,000 services with one endpoint each\n");
    println!("From changes in memory to the kernel's maps, one core, {ROUNDS} rounds.\n");
    println!("| | min | p25 | median |\n|---|---|---|---|\n| ns a service | {} |", times.cells());
    let (min, p25) = (verdict(times.min(), 4_000.0), verdict(times.p25(), 4_000.0));
    println!("\nWithin 4,000 ns a service: {min} (min), {p25} (p25).");
}

/// Replaces one endpoint among 50,000 services, until a new connection reaches the new endpoint.
fn one_endpoint(world: &mut World) {
    let receivers = [Ipv4Addr::new(192, 0, 2, 21), Ipv4Addr::new(192, 0, 2, 22)]
        .map(|addr| UdpSocket::bind(SocketAddr::from((addr, PORT))).unwrap());
    let addresses = receivers.each_ref().map(|socket| socket.local_addr().unwrap());
    world.apply(services(0..SERVICES, Protocol::Udp, (Ipv4Addr::new(192, 0, 2, 21), PORT)));
    let mut nanos = Vec::new();
    let mut visible = Vec::new();
    let mut snapshot = world.engine.snapshot(Moment(0));
    for round in 0..CHANGES {
        let number = (round * 7_919) % SERVICES;
        let to = ((round / SERVICES) as usize + 1) % 2;
        let SocketAddr::V4(new) = addresses[to] else { unreachable!("bound to IPv4") };
        let change = slice(number, Protocol::Udp, [(*new.ip(), PORT)].into_iter());
        let client = UdpSocket::bind("192.0.2.9:0").unwrap();
        let target = frontend(number, Protocol::Udp);
        let start = Instant::now();
        let done = world.apply([change]);
        nanos.push(start.elapsed().as_nanos() as f64);
        client.connect(SocketAddr::new(target.addr.ip(), target.port)).unwrap();
        client.send(&round.to_be_bytes()).unwrap();
        visible.push(start.elapsed().as_nanos() as f64);
        assert_eq!(done, 1);
        let mut answer = [0; 4];
        receivers[to].recv(&mut answer).unwrap();
        assert_eq!(answer, round.to_be_bytes(), "the datagram went to the previous backend");
        // A reader holds a snapshot meanwhile, as the admin API does.
        snapshot = world.engine.snapshot(Moment(0));
    }
    drop(snapshot);
    let (applied, visible) = (Times::new(nanos), Times::new(visible));
    println!("\n## One endpoint changed at 50,000 services\n");
    println!(
        "{CHANGES} changes; microseconds. Visible: until a new client's datagram has been sent to the new backend.\n"
    );
    println!("| | p50 | p99 | max |\n|---|---|---|---|");
    for (name, times) in [("in the kernel's maps", &applied), ("visible to a client", &visible)] {
        let [p50, p99, max] = [50, 99, 100].map(|percent| times.percentile(percent) / 1_000.0);
        println!("| {name} | {p50:.1} | {p99:.1} | {max:.1} |");
    }
    println!("\np99 within 1 ms: {}.", verdict(visible.percentile(99), 1e6));
    println!("System calls in the datapath for it: 0, counted by a test (`tests/packets.rs`).");
}

/// Adds one endpoint to a service of 10,000, alone and among 50,000 services.
fn one_large_service(among_many: &mut World, sandbox: &Sandbox) {
    let mut alone = World::new(&sandbox.bpffs, "alone", &sandbox.cgroup);
    alone.apply(services(0..1, Protocol::Udp, (Ipv4Addr::new(192, 0, 2, 21), PORT)));
    let endpoints = |count: u32| slice(1_000_000, Protocol::Udp, (0..count).map(backend));
    let mut medians = Vec::new();
    println!("\n## One endpoint added to a service of 10,000\n");
    println!("Microseconds, from the changed slice in memory to the kernel's maps.\n");
    println!("| other services | min | median |\n|---|---|---|");
    for (name, world) in [("1", &mut alone), ("50,000", among_many)] {
        world.apply([large_service(), endpoints(10_000)]);
        let mut nanos = Vec::new();
        for round in 0..100_u32 {
            let change = endpoints(10_000 + 1 - round % 2);
            let start = Instant::now();
            assert_eq!(world.apply([change]), 1);
            nanos.push(start.elapsed().as_nanos() as f64);
        }
        let times = Times::new(nanos);
        println!("| {name} | {:.0} | {:.0} |", times.min() / 1_000.0, times.percentile(50) / 1_000.0);
        medians.push(times.min());
    }
    println!("\nAmong 50,000 / alone: {:.2} (min): the cost is that of its own list.", medians[1] / medians[0]);
    println!("Within 300 microseconds: {} (min, alone).", verdict(medians[0], 300_000.0));
}

fn large_service() -> Change {
    let Change::UpsertService(mut large) = service(59_999, Protocol::Udp) else { unreachable!("it is one") };
    large.name = nodelb_core::model::service::ServiceName::new("namespace-0", "service-1000000");
    Change::UpsertService(large)
}

//! The cost of optional features for a client that connects: NodePorts, also for addresses without
//! one, and session affinity.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{FrontendKind, FrontendSpec, Service};

use crate::connect::{BACKEND, Hooks, socket_address, socket_of};
use crate::rounds::{Times, Variant, interleave, verdict};
use crate::world::World;
use crate::world::services::{frontend, service};

const NODE: [u8; 4] = [192, 0, 2, 77];
const STRANGER: [u8; 4] = [192, 0, 2, 78];
const NODEPORT: u16 = 30_080;

const NAMES: [&str; 6] = [
    "no service address",
    "no service address, port of the NodePort range",
    "node address, port of the range, no NodePort",
    "NodePort",
    "service address",
    "service address, session affinity",
];

/// The destination of each of [`NAMES`].
fn targets() -> [SocketAddr; NAMES.len()] {
    [
        BACKEND.into(),
        (STRANGER, NODEPORT).into(),
        (NODE, NODEPORT + 1).into(),
        (NODE, NODEPORT).into(),
        socket_address(frontend(3, Protocol::Udp)),
        socket_address(frontend(5, Protocol::Udp)),
    ]
}

/// Enables session affinity for service number 5.
pub(crate) fn affinity(protocol: Protocol) -> Change {
    changed(service(5, protocol), |service| service.affinity_seconds = Some(10_800))
}

/// Adds a NodePort to service number 7.
fn nodeport() -> Change {
    changed(service(7, Protocol::Udp), |service| {
        let spec = FrontendSpec { addr: Addr::UNSPECIFIED_V4, port: NODEPORT, kind: FrontendKind::NodePort };
        service.ports[0].frontends.push(spec);
    })
}

fn changed(mut upsert: Change, change: impl FnOnce(&mut Service)) -> Change {
    if let Change::UpsertService(service) = &mut upsert {
        change(service);
    }
    upsert
}

/// UDP re-connect with one destination for each socket. A socket that sends to the same service
/// again skips its lookups; one that sends to an address without a service always does them.
pub(crate) fn run(nodelb: &RefCell<World>, cgroup: &Path) {
    let addresses = [Addr::from(IpAddr::from(NODE))].into();
    let nodeport_addresses = vec!["0.0.0.0/0".parse().unwrap()];
    let node = Change::Node(NodeFacts { addresses, nodeport_addresses, ..NodeFacts::default() });
    nodelb.borrow_mut().apply([node, affinity(Protocol::Udp), nodeport()]);
    let hooks = Hooks::new(nodelb, cgroup);
    let again = |socket: &UdpSocket, to: SocketAddr, count: u32| (0..count).for_each(|_| socket.connect(to).unwrap());
    let sockets: Vec<UdpSocket> = (0..2 + NAMES.len()).map(|_| socket_of(cgroup)).collect();
    let (direct, to) = (SocketAddr::from(BACKEND), targets());
    let [none, empty, cases @ ..] = interleave(
        20_000,
        [
            Variant::new(|count| again(&sockets[0], direct, count)).after(|| hooks.nothing()),
            Variant::new(|count| again(&sockets[1], direct, count)).after(|| hooks.empty()),
            Variant::new(|count| again(&sockets[2], to[0], count)).after(|| hooks.nodelb()),
            Variant::new(|count| again(&sockets[3], to[1], count)).after(|| hooks.nodelb()),
            Variant::new(|count| again(&sockets[4], to[2], count)).after(|| hooks.nodelb()),
            Variant::new(|count| again(&sockets[5], to[3], count)).after(|| hooks.nodelb()),
            Variant::new(|count| again(&sockets[6], to[4], count)).after(|| hooks.nodelb()),
            Variant::new(|count| again(&sockets[7], to[5], count)).after(|| hooks.nodelb()),
        ],
    );
    hooks.nodelb();
    println!("\n## NodePorts and affinity\n");
    println!(
        "connect() on one UDP socket, again and again; ns a call, and (through nodelb - nothing) / (empty - nothing).\n"
    );
    println!("| | min | p25 | median | ratio (min) | ratio (p25) |\n|---|---|---|---|---|---|");
    println!("| nothing attached | {} | | |", none.cells());
    println!("| empty program | {} | 1 | 1 |", empty.cells());
    let ratio = |times: &Times, of: fn(&Times) -> f64| (of(times) - of(&none)) / (of(&empty) - of(&none));
    for (name, times) in NAMES.iter().zip(&cases) {
        let (min, p25) = (ratio(times, Times::min), ratio(times, Times::p25));
        println!("| nodelb, {name} | {} | {min:.2} | {p25:.2} |", times.cells());
    }
    for place in [3, 4, 5] {
        let (name, times) = (NAMES[place], &cases[place]);
        let (min, p25) = (ratio(times, Times::min), ratio(times, Times::p25));
        println!("\n{name} within 1.35: {} (min), {} (p25).", verdict(min, 1.35), verdict(p25, 1.35));
    }
}

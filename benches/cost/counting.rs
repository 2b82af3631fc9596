//! The cost of connection counters: a UDP socket that keeps sending to its service is not counted
//! again; a refused one is counted each time. Also the cost of sending to more services than the
//! state of a socket has room for.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use nodelb_core::model::addr::Protocol;
use nodelb_core::state::entries::CANARIES;

use crate::connect::{BACKEND, Hooks, socket_address, socket_of};
use crate::rounds::{Times, Variant, interleave, verdict};
use crate::world::World;
use crate::world::services::{frontend, services};

/// One service more than the state of a socket has room for (`MAX_FLOWS` in `bpf/shared.h`), none
/// of them with options.
const SERVICES: [u32; 9] = [0, 1, 2, 3, 4, 6, 8, 10, 11];

/// The limit for seven services in turn.
const MOST_OF_SEVEN: f64 = 1.5;

/// A world and the cgroup to which its programs are attached.
pub(crate) type Attached<'a> = (&'a RefCell<World>, &'a Path);

/// UDP re-connect to the same services, with counters in one cgroup and without in the other.
pub(crate) fn run((counting, counted): Attached<'_>, (plain, uncounted): Attached<'_>) {
    for world in [counting, plain] {
        world.borrow_mut().apply(services(10..12, Protocol::Udp, BACKEND));
    }
    let (on, off) = (Hooks::new(counting, counted), Hooks::new(plain, uncounted));
    let with_on = || {
        off.nothing();
        on.nodelb();
    };
    let with_off = || {
        on.nothing();
        off.nodelb();
    };
    let targets = SERVICES.map(|number| socket_address(frontend(number, Protocol::Udp)));
    let connect = |socket: &UdpSocket, to: &[SocketAddr], count: u32| {
        to.iter().cycle().take(count as usize).for_each(|to| socket.connect(to).unwrap());
    };
    // The canary: a service that never has a backend.
    let canary = SocketAddr::new(CANARIES[0].addr.ip(), CANARIES[0].port);
    let refused = |socket: &UdpSocket, count: u32| (0..count).for_each(|_| drop(socket.connect(canary).unwrap_err()));
    let (one, seven, nine, direct) = (&targets[..1], &targets[..7], &targets[..], [SocketAddr::from(BACKEND)]);
    let places = [counted, counted, counted, uncounted, counted, counted, counted, uncounted];
    let sockets = places.map(socket_of);
    let [none, empty, cases @ ..] = interleave(
        20_000,
        [
            Variant::new(|count| connect(&sockets[0], &direct, count)).after(|| {
                off.nothing();
                on.nothing();
            }),
            Variant::new(|count| connect(&sockets[1], &direct, count)).after(|| {
                off.nothing();
                on.empty();
            }),
            Variant::new(|count| connect(&sockets[2], one, count)).after(with_on),
            Variant::new(|count| connect(&sockets[3], one, count)).after(with_off),
            Variant::new(|count| connect(&sockets[4], seven, count)).after(with_on),
            Variant::new(|count| connect(&sockets[5], nine, count)).after(with_on),
            Variant::new(|count| refused(&sockets[6], count)).after(with_on),
            Variant::new(|count| refused(&sockets[7], count)).after(with_off),
        ],
    );
    with_on();
    print(&none, &empty, &cases);
}

fn print(none: &Times, empty: &Times, cases: &[Times; 6]) {
    println!("\n## Counting connections\n");
    println!(
        "connect() on one UDP socket, with `datapath.count-connections` on and off; ns a call, and (through nodelb - \
         nothing) / (empty - nothing). Nine services in turn are one more than a socket's own state has room for; none of \
         those calls is counted. Each one that is refused is.\n"
    );
    println!("| | min | p25 | median | ratio (min) | ratio (p25) |\n|---|---|---|---|---|---|");
    println!("| nothing attached | {} | | |", none.cells());
    println!("| empty program | {} | 1 | 1 |", empty.cells());
    let ratio = |times: &Times, of: fn(&Times) -> f64| (of(times) - of(none)) / (of(empty) - of(none));
    let names =
        ["service address, on", "service address, off", "seven in turn", "nine in turn", "refused, on", "refused, off"];
    for (name, times) in names.iter().zip(cases) {
        println!("| {name} | {} | {:.2} | {:.2} |", times.cells(), ratio(times, Times::min), ratio(times, Times::p25));
    }
    for (name, times, limit) in [(names[0], &cases[0], 1.35), (names[2], &cases[2], MOST_OF_SEVEN)] {
        let (min, p25) = (ratio(times, Times::min), ratio(times, Times::p25));
        println!("\n{name}, within {limit}: {} (min), {} (p25).", verdict(min, limit), verdict(p25, limit));
    }
    let [counted, uncounted] = [&cases[4], &cases[5]];
    println!(
        "To count one connection: {:.0} ns (min), {:.0} ns (p25).",
        counted.min() - uncounted.min(),
        counted.p25() - uncounted.p25()
    );
}

//! The programs without devices: one program on a packet in memory, and the sweep.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::Protocol;
use nodelb_core::packets::sweep::{Interval, SweepTimeouts};
use nodelb_datapath::OpenedPackets;
use nodelb_datapath::packets::{Packet, PacketHook, PacketMaps, PacketPrograms, Verdict};

use crate::generator::{Flows, Generator, bind_to_cpu};
use crate::goals::Goals;
use crate::nodes::{Nodes, packet_options, with_packets};
use crate::rounds::in_turn;
use crate::sandbox::Sandbox;
use crate::site::nth;
use crate::udp::{ROUNDS, Side};
use crate::world::World;
use crate::world::services::{frontend, service, slice, synced};

/// Runs of one measurement.
const RUNS: u32 = 500_000;
/// Connections while the sweep is measured; each has two entries.
const CONNECTIONS: u32 = 100_000;
/// The timeouts of the daemon's defaults.
const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT_PORT: u16 = 10_000;

/// The programs, and packets to run them on.
pub(crate) struct Alone {
    pub(crate) programs: PacketPrograms,
    pub(crate) world: World,
    /// Of a known connection by UDP, and by TCP; of no service.
    packets: [Vec<u8>; 3],
    _opened: OpenedPackets,
}

impl Alone {
    /// Two services, each of which has the other one's address as its backend. What a program makes of a
    /// packet is thus a packet of another known connection, so that the program can run again on it.
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let (mut world, opened) = with_packets(sandbox, "alone", None);
        let mut changes = Vec::new();
        for (protocol, [one, other]) in PAIRS {
            for (number, backend) in [(one, other), (other, one)] {
                changes.push(service(number, protocol));
                changes.push(slice(number, protocol, [address(backend, protocol)].into_iter()));
            }
        }
        world.apply(changes.into_iter().chain([synced()]));
        let maps = NAMES.map(|name| (name.to_owned(), MapHandle::try_from(opened.maps.get(name).unwrap()).unwrap()));
        let programs = PacketPrograms::load(&packet_options(), PacketMaps::new(maps));
        let programs = programs.unwrap_or_else(|error| panic!("{error}"));
        let packets = packets(&programs);
        Self { programs, world, packets, _opened: opened }
    }

    /// Runs the empty program (0), or `packet_in` on a packet of a known connection by UDP (1), by TCP (2), or of no
    /// service (3).
    pub(crate) fn run(&self, generator: &Generator, variant: usize, times: u32) {
        match variant {
            0 => generator.run_empty(&self.packets[0], times),
            _ => drop(run(&self.programs, PacketHook::UplinkIn, self.packets[variant - 1].clone(), times)),
        }
    }
}

/// The numbers of the two services of each protocol.
const PAIRS: [(Protocol, [u32; 2]); 2] = [(Protocol::Udp, [0, 1]), (Protocol::Tcp, [2, 3])];

pub(crate) fn alone(sandbox: &Sandbox, generator: &Generator, goals: &mut Goals) {
    let alone = Alone::new(sandbox);
    let cpu = generator.cpu();
    let times: [crate::rounds::Times; 4] = in_turn(ROUNDS, |variant| {
        alone.run(generator, variant, RUNS / 10);
        let begun = cpu.nanos();
        alone.run(generator, variant, RUNS);
        (cpu.nanos() - begun) as f64 / f64::from(RUNS)
    });
    println!("\n### The programs alone\n");
    println!(
        "`packet_in` on a packet in memory (BPF_PROG_TEST_RUN), in a loop, so that all data are in the caches; ns a run.\n"
    );
    println!("| | min | p25 | median |\n|---|---|---|---|");
    let names = ["empty program", "known connection, UDP", "known connection, TCP", "no service"];
    for (name, times) in names.iter().zip(&times) {
        println!("| {name} | {} |", times.cells());
    }
    let [empty, udp, tcp, _] = &times;
    for (name, times) in [("UDP", udp), ("TCP", tcp)] {
        let ratio = [times.min() / empty.min(), times.p25() / empty.p25()];
        goals.add("G9", &format!("program alone, known connection, {name}: to an empty program"), 5.0, ratio);
    }
}

/// The maps that the daemon's side fills.
const NAMES: [&str; 11] = [
    "outside",
    "packet_bloom",
    "services",
    "slots",
    "node_addrs",
    "uplinks",
    "connections",
    "half_open",
    "packet_settings",
    "packet_counts",
    "frontend_epoch",
];

fn address(number: u32, protocol: Protocol) -> (Ipv4Addr, u16) {
    let service = frontend(number, protocol);
    let std::net::IpAddr::V4(addr) = service.addr.ip() else { unreachable!("services have IPv4 addresses") };
    (addr, service.port)
}

fn run(programs: &PacketPrograms, hook: PacketHook, bytes: Vec<u8>, times: u32) -> Verdict {
    let packet = Packet { bytes, ifindex: 1, came_by: 0, gso_size: 0 };
    programs.run_repeatedly(hook, &packet, times).unwrap()
}

/// The packets of [`Alone`], with their connections established.
fn packets(programs: &PacketPrograms) -> [Vec<u8>; 3] {
    let [udp, tcp] = PAIRS.map(|(protocol, numbers)| {
        for number in numbers {
            let other = numbers[0] + numbers[1] - number;
            establish(programs, protocol, address(number, protocol), address(other, protocol));
        }
        frame(protocol, (CLIENT, CLIENT_PORT), address(numbers[0], protocol), (ACK, [1, 1]))
    });
    let foreign = frame(Protocol::Udp, (CLIENT, CLIENT_PORT), (nth(CLIENT, 7), 9), (ACK, [1, 1]));
    for (packet, is_known) in [(&udp, true), (&tcp, true), (&foreign, false)] {
        let changed = run(programs, PacketHook::UplinkIn, packet.clone(), 1).bytes != *packet;
        assert_eq!(changed, is_known, "a packet of a known connection is translated, another one is not");
    }
    [udp, tcp, foreign]
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Three packets: the client's first, the answer of the backend, and the client's next.
fn establish(programs: &PacketPrograms, protocol: Protocol, service: (Ipv4Addr, u16), backend: (Ipv4Addr, u16)) {
    let client = (CLIENT, CLIENT_PORT);
    run(programs, PacketHook::UplinkIn, frame(protocol, client, service, (SYN, [0, 0])), 1);
    let answer = run(programs, PacketHook::UplinkOut, frame(protocol, backend, client, (SYN | ACK, [0, 1])), 1);
    assert_eq!(answer.bytes[26..30], service.0.octets(), "the answer has the service's address");
    run(programs, PacketHook::UplinkIn, frame(protocol, client, service, (ACK, [1, 1])), 1);
}

/// An Ethernet frame to the loopback device, of 64 bytes; the sums are not those of the content.
fn frame(
    protocol: Protocol,
    source: (Ipv4Addr, u16),
    target: (Ipv4Addr, u16),
    (flags, [sequence, acknowledgment]): (u8, [u32; 2]),
) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..18].copy_from_slice(&[0x45, 0, 0, 50]);
    frame[22..24].copy_from_slice(&[64, protocol.number()]);
    frame[24..26].copy_from_slice(&[0x12, 0x34]);
    frame[26..30].copy_from_slice(&source.0.octets());
    frame[30..34].copy_from_slice(&target.0.octets());
    frame[34..36].copy_from_slice(&source.1.to_be_bytes());
    frame[36..38].copy_from_slice(&target.1.to_be_bytes());
    if protocol == Protocol::Udp {
        frame[38..42].copy_from_slice(&[0, 30, 0x12, 0x34]);
        return frame;
    }
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledgment.to_be_bytes());
    frame[46..52].copy_from_slice(&[0x50, flags, 4, 0, 0x12, 0x34]);
    frame
}

/// The sweep over a full table, and packets while it runs on another CPU.
pub(crate) fn sweep(generator: &mut Generator, nodes: &Nodes, goals: &mut Goals) {
    let (node, to) = (&nodes.few, Side::Local.services());
    let flows = Flows { first: 0, count: CONNECTIONS };
    node.end_connections();
    let [nothing, all] = in_turn(ROUNDS, |variant| {
        generator.establish(&node.site, to, flows);
        let begun = generator.cpu().nanos();
        let ended = if variant == 0 { node.sweep(&TIMEOUTS) } else { node.end_connections() };
        let taken = generator.cpu().nanos() - begun;
        assert_eq!(ended, if variant == 0 { 0 } else { CONNECTIONS as usize }, "connections that ended");
        taken as f64 / f64::from(2 * CONNECTIONS)
    });
    println!("\n### The sweep\n\nns an entry of {} ({CONNECTIONS} connections).\n", 2 * CONNECTIONS);
    println!("| | min | p25 | median |\n|---|---|---|---|");
    println!("| nothing is due | {} |\n| everything is due | {} |", nothing.cells(), all.cells());
    goals.add("G11", "sweep, nothing is due: µs an entry", 0.5, [nothing.min() / 1e3, nothing.p25() / 1e3]);
    goals.add("G11", "sweep, everything is due: µs an entry", 0.5, [all.min() / 1e3, all.p25() / 1e3]);
    generator.establish(&node.site, to, flows);
    let [quiet, swept] = in_turn(ROUNDS, |variant| during_sweep(generator, nodes, variant == 1));
    println!(
        "\nA packet of these connections, while the sweep runs all the time on another CPU: {:.2} (min), {:.2} (p25)",
        swept.min() / quiet.min(),
        swept.p25() / quiet.p25()
    );
    println!("of what it costs otherwise.");
}

/// The cost of a packet, with or without a sweep at the same time.
fn during_sweep(generator: &mut Generator, nodes: &Nodes, sweeps: bool) -> f64 {
    let (node, to) = (&nodes.few, Side::Local.services());
    let flows = Flows { first: 0, count: CONNECTIONS };
    let is_done = AtomicBool::new(!sweeps);
    let mut packets = node.packets.borrow_mut();
    let sweep = packets.sweep.as_mut().unwrap_or_else(|error| panic!("{error}"));
    thread::scope(|scope| {
        scope.spawn(|| {
            bind_to_cpu(0);
            while !is_done.load(Ordering::Relaxed) {
                sweep.run(&TIMEOUTS, Interval::default(), &mut |_| ()).unwrap();
            }
        });
        let cost = generator.measure(&node.site, to, flows, 2 * CONNECTIONS);
        is_done.store(true, Ordering::Relaxed);
        cost
    })
}

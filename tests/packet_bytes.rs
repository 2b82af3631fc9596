//! The packets of `packet_programs/fixtures/` with arbitrary damage, through the packet programs as `nodelb_programs` compiles them:
//! no sanitizer finds anything, no byte outside of a packet is read, a sum that a device has computed stays that of the
//! packet, and it does not matter in how many parts the kernel has the packet. `SOCKET_SEED=n` selects other damage;
//! `FUZZ_SECONDS=n` runs for this time.

#![expect(clippy::print_stdout, reason = "a test that runs for a given time prints what it tried")]

#[cfg(test)]
#[expect(dead_code, reason = "only the packets of cases are read here")]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[expect(dead_code, reason = "the damage here is heavier")]
#[path = "packet_fixtures/damage.rs"]
mod damage;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[expect(dead_code, reason = "only the packets of cases are read here")]
#[path = "packet_fixtures/world.rs"]
mod world;

use std::path::Path;
use std::time::{Duration, Instant};

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::state::ring::scramble;
use nodelb_programs::headers::{Content, Parsed, parse};
use nodelb_programs::host::Compiler;
use nodelb_programs::key::{Hook, Side};
use nodelb_programs::node::{Packet, Summed, Verdict};
use nodelb_programs::programs::{Load, Outcome, Programs, Tracked};

use crate::case::Case;
use crate::damage::number;
use crate::world::World;

/// Packets of a short run.
const PACKETS: u64 = 30_000;

/// Bytes that mean something in some header: versions with lengths, protocols, extension headers, ICMP types, flags.
const MEANINGFUL: [u8; 24] = [0, 1, 2, 3, 4, 6, 8, 11, 12, 17, 20, 32, 40, 43, 44, 51, 58, 60, 64, 69, 70, 79, 96, 255];

fn all_cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packet_programs/fixtures");
    let worlds = std::fs::read_to_string(folder.join("worlds")).expect("a file");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let texts = files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "txt"));
    let read = |path| std::fs::read_to_string(path).expect("a file");
    texts.flat_map(|path| case::cases(&format!("{worlds}\n{}", read(path)))).collect()
}

/// A sequence of numbers without a pattern.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 += 1;
        usize::try_from(scramble(self.0) >> 33).expect("31 bits") % limit.max(1)
    }

    /// Wrong bytes, mostly in the headers, and an end that may be missing or added.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len().min(140));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = match self.below(3) {
                    0 => u8::try_from(self.below(256)).expect("a byte"),
                    1 => MEANINGFUL[self.below(MEANINGFUL.len())],
                    _ => *byte ^ (1 << self.below(8)),
                };
            }
        }
        match self.below(8) {
            0 => bytes.truncate(14 + self.below(bytes.len().saturating_sub(13))),
            1 => bytes.extend(std::iter::repeat_n(0, self.below(300))),
            _ => {}
        }
    }

    /// Gives the node what it may have besides services: a reader of events, sockets, connections of another proxy, and
    /// health checks.
    fn furnish(&mut self, programs: &mut Programs, world: &World, case: &Case) {
        if self.below(3) == 0 {
            programs.watch(world.now_ns);
        }
        let slots: Vec<L4Addr> =
            world.state.services.iter().flat_map(|(_, it)| it.cluster.iter()).map(|it| it.addr).collect();
        let own: Vec<Addr> = world.devices.values().flat_map(|device| device.addrs.iter().copied()).collect();
        for slot in &slots {
            let near = own.iter().filter(|own| own.family() == slot.addr.family()).nth(self.below(3));
            let near = L4Addr::new(near.copied().unwrap_or(slot.addr), 10_000, slot.protocol);
            match self.below(6) {
                0 => programs.add_socket(near),
                1 => programs.add_tracked(*slot, near, Tracked::ANSWER),
                2 => programs.add_socket(*slot),
                _ => {}
            }
        }
        // The daemon lets a check go only to an address of its backend's family.
        let leaving: Vec<Family> =
            case.steps.iter().filter(|step| step.starts_with("out ")).map(|step| family(step)).collect();
        let fits = |target: &L4Addr| leaving.iter().all(|family| *family == target.addr.family());
        let targets: Vec<L4Addr> = world.state.outside.keys().copied().filter(fits).collect();
        if self.below(4) == 0 && !targets.is_empty() {
            programs.set_check(targets[self.below(targets.len())], self.below(2) == 0);
        }
    }

    /// Damages a packet, or changes only how the kernel has it.
    fn change(&mut self, packet: &mut Packet) {
        if self.below(3) != 0 {
            self.damage(&mut packet.bytes);
        }
        packet.linear = (self.below(2) == 0).then(|| self.below(packet.bytes.len() + 1));
        packet.is_gso |= self.below(8) == 0;
        packet.summed = [Summed::None, Summed::Complete, Summed::Partial][self.below(3)];
        // A device has computed only the sums of what has arrived.
        if packet.hook.side() == Side::Leaving && packet.came_by == 0 && packet.summed == Summed::Complete {
            packet.summed = Summed::None;
        }
        packet.is_tracked_request = self.below(8) == 0;
    }
}

/// The family of the packet of a step.
fn family(step: &str) -> Family {
    if step.contains("2001:") { Family::Ipv6 } else { Family::Ipv4 }
}

/// Plays a case with damaged packets, each of them one to three times. Returns how many packets there were.
fn play(numbers: &mut Numbers, case: &Case, load: Load) -> u64 {
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    let mut programs = Programs::load(Load { limits: world.limits, ..load }, &world.node());
    for device in world.devices.values().filter(|device| device.l2_length == 14) {
        programs.describe_device(device.ifindex, device.mac);
    }
    numbers.furnish(&mut programs, &world, case);
    let (mut packets, mut former) = (0, 0);
    for step in &case.steps {
        // A start of the daemon replaces the maps of connections by those of another size.
        if former < 2 && numbers.below(12) == 0 {
            programs.make_former(former);
            former += 1;
        }
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match word {
            "now" if rest.starts_with("kernel ") => {}
            "now" => {
                world.apply(rest);
                programs.limit(world.limits);
                programs.set(&world.node());
            }
            "wait" => {
                let seconds: i64 = rest.parse().expect("seconds");
                world.now_ns = world.now_ns.saturating_add_signed(seconds * 1_000_000_000);
            }
            "repeat" | "counts" | "former" => {}
            _ => {
                for _ in 0..=numbers.below(3) {
                    let mut packet = case::packet(&world, step);
                    numbers.change(&mut packet);
                    run(&mut programs, &world, &packet);
                    packets += 1;
                }
            }
        }
    }
    packets
}

/// Whether a datagram has no sum. Whatever a device has computed of it is not used.
fn has_no_sum(packet: &Packet) -> bool {
    let Parsed::Packet(headers) = parse(&packet.bytes, packet.l2_length, packet.is_gso) else { return false };
    let is_datagram = matches!(headers.content, Content::Transport(Protocol::Udp, _));
    is_datagram && packet.bytes[headers.transport + 6..headers.transport + 8] == [0; 2]
}

/// Runs the program at tc twice from the same state: on the packet in one part, and as it is. Nothing differs.
fn run_in_parts(programs: &mut Programs, world: &World, packet: &Packet) -> Outcome {
    let whole = Packet { linear: None, ..packet.clone() };
    programs.fix_random(Some(u32::try_from(packet.bytes.len()).expect("a length")));
    programs.save();
    let expected = (programs.run(&world.node(), &whole), programs.tables());
    programs.restore();
    let found = (programs.run(&world.node(), packet), programs.tables());
    assert_eq!(found, expected, "what differs in parts of {packet:02x?}");
    programs.fix_random(None);
    found.0
}

fn run(programs: &mut Programs, world: &World, packet: &Packet) {
    if packet.hook == Hook::In && packet.l2_length == 14 && !packet.is_gso {
        let early = programs.run_xdp(&world.node(), packet);
        if early.verdict == Verdict::Next {
            assert_eq!(early.bytes, packet.bytes, "XDP has passed the packet on with a change: {packet:02x?}");
        }
    }
    let outcome = if packet.linear.is_some() {
        run_in_parts(programs, world, packet)
    } else {
        programs.run(&world.node(), packet)
    };
    // The kernel does not use the sum of a packet that it sends.
    if outcome.verdict == Verdict::Next && !has_no_sum(packet) {
        assert!(!outcome.has_wrong_sum, "the sum of {packet:02x?} is not that of {:02x?}", outcome.bytes);
    }
    if outcome.verdict == Verdict::Drop {
        assert!(!outcome.reasons.is_empty(), "dropped without a reason: {packet:02x?}");
    }
}

#[test]
fn no_bytes_make_a_program_leave_its_packet() {
    let (seed, time) = (number("SOCKET_SEED", 1), number("FUZZ_SECONDS", 0));
    let (start, mut numbers, cases) = (Instant::now(), Numbers(seed << 40), all_cases());
    let (mut packets, mut played) = (0, 0);
    while if time > 0 { start.elapsed() < Duration::from_secs(time) } else { packets < PACKETS } {
        let case = &cases[numbers.below(cases.len())];
        let compiler = if numbers.below(2) == 0 { Compiler::Gcc } else { Compiler::Clang };
        let load = Load {
            compiler,
            is_new_kernel: numbers.below(4) != 0,
            has_route_flags: numbers.below(4) != 0,
            lists_tracked: numbers.below(4) == 0,
            direct_return: numbers.below(4) != 0,
            ..Load::new(World::new().limits)
        };
        packets += play(&mut numbers, case, load);
        played += 1;
    }
    println!("{packets} packets of {played} cases");
}

//! A packet at both hooks.

use std::fmt::Write as _;
use std::ops::Range;

use nodelb_programs::connections::TableLimits;
use nodelb_programs::headers::ETHERNET;
use nodelb_programs::key::Hook;
use nodelb_programs::node::{Packet, Verdict};
use nodelb_programs::programs::{Load, Outcome, Programs};

use crate::print;
use crate::world::World;

/// The maps that the programs may change. If XDP passes a packet on, it has changed at most session affinity, for which tc
/// makes the same choice again; where the next search for a port begins is random.
const MAPS: [&str; 5] = ["connections", "half_open", "fragments", "snat_cursors", "affinity"];
const HALF_OPEN: usize = 1;
const CURSORS: usize = 3;
const AFFINITY: usize = 4;

/// Where the position of a backend is in an entry of `connections` and `half_open`, a hint that XDP may correct.
const HINT: Range<usize> = 44..48;

type Everything = [Vec<(Vec<u8>, Vec<u8>)>; MAPS.len()];

/// What the hooks do with a packet.
#[derive(Debug)]
pub(crate) struct Both {
    /// What XDP has done, in a word or two.
    pub(crate) kind: &'static str,
    pub(crate) tc: Outcome,
    /// What differs; empty if nothing does.
    pub(crate) difference: String,
    /// Whether the packet has begun a connection.
    pub(crate) has_begun: bool,
}

/// Loads the programs, and tells the one at XDP about the devices.
pub(crate) fn load(world: &World) -> Programs {
    // All of it is copied for each packet, and a run never fills it.
    let limits = TableLimits { connections: 1_024, half_open: 1_024, fragments: 256 };
    let mut programs = Programs::load(Load::new(limits), &world.node());
    for device in world.devices.values().filter(|device| device.l2_length == ETHERNET) {
        programs.describe_device(device.ifindex, device.mac);
    }
    programs
}

fn everything(programs: &mut Programs) -> Everything {
    MAPS.map(|map| {
        let mut entries = programs.list(map);
        if ["connections", "half_open"].contains(&map) {
            entries.iter_mut().for_each(|(_, value)| value[HINT].fill(0));
        }
        entries.sort();
        entries
    })
}

/// Runs the program at XDP and then that at tc on the packet, from the same state; what XDP has done is undone.
pub(crate) fn run(programs: &mut Programs, world: &World, packet: &Packet) -> Both {
    let mut difference = String::new();
    let is_seen = packet.hook == Hook::In && packet.l2_length == ETHERNET && packet.bytes.len() >= ETHERNET;
    if !is_seen || packet.is_gso {
        let tc = programs.run(&world.node(), packet);
        return Both { kind: "not at XDP", tc, difference, has_begun: false };
    }
    let before = everything(programs);
    programs.save();
    // The first packet to a neighbour in each second is passed on.
    let mut early = programs.run_xdp(&world.node(), packet);
    for _ in 0..2 {
        if early.verdict != Verdict::Next {
            break;
        }
        if early.bytes != packet.bytes
            || everything(programs)[..AFFINITY] != before[..AFFINITY]
            || !early.reasons.is_empty()
        {
            difference.push_str("  XDP has passed the packet on with a change\n");
        }
        early = programs.run_xdp(&world.node(), packet);
    }
    let after = everything(programs);
    programs.restore();
    let tc = programs.run(&world.node(), packet);
    if early.verdict == Verdict::Next {
        let is_left = tc.verdict == Verdict::Next || !tc.reasons.is_empty();
        let kind = if is_left { "passed on" } else { "passed on, redirected by tc" };
        return Both { kind, tc, difference, has_begun: false };
    }
    compare(&mut difference, (&early, &after), (&tc, &everything(programs)));
    if early.bytes.len() >= ETHERNET {
        check_link(&mut difference, world, &early.bytes, &tc.bytes);
    }
    let has_begun = after[HALF_OPEN].len() > before[HALF_OPEN].len();
    Both { kind: "translated", tc, difference, has_begun }
}

fn compare(text: &mut String, (early, after): (&Outcome, &Everything), (tc, now): (&Outcome, &Everything)) {
    if early.verdict != tc.verdict || early.reasons != tc.reasons {
        let _ = writeln!(text, "  XDP {:?} {:?}, tc {:?} {:?}", early.verdict, early.reasons, tc.verdict, tc.reasons);
    }
    if early.bytes.get(ETHERNET..) != tc.bytes.get(ETHERNET..) {
        let [xdp, tc] = [early, tc].map(|outcome| {
            let ip = outcome.bytes.get(ETHERNET..).unwrap_or_default();
            format!("{} {}", print::packet(ip), print::hex(&outcome.bytes))
        });
        let _ = writeln!(text, "  XDP {xdp}\n  tc  {tc}");
    }
    for (map, (xdp, tc)) in MAPS.iter().zip(after.iter().zip(now)) {
        let only = |one: &[(Vec<u8>, Vec<u8>)], other: &[(Vec<u8>, Vec<u8>)]| -> Vec<String> {
            let only = one.iter().filter(|entry| !other.contains(entry));
            only.map(|(key, value)| format!("{} {}", print::hex(key), print::hex(value))).collect()
        };
        if xdp != tc && *map != MAPS[CURSORS] {
            let _ = writeln!(text, "  {map} after XDP {:?}\n  after tc {:?}", only(xdp, tc), only(tc, xdp));
        }
    }
}

/// The frame is addressed to the neighbour of a route, by a device of the node.
fn check_link(text: &mut String, world: &World, early: &[u8], tc: &[u8]) {
    let (target, source) = (&early[..6], &early[6..12]);
    let is_neighbor = world.routes.iter().any(|route| route.neighbor.or(route.host).is_some_and(|mac| mac == target));
    let is_own = world.devices.values().any(|device| device.mac == source);
    if !is_neighbor || !is_own || early[12..ETHERNET] != tc[12..ETHERNET] {
        let _ = writeln!(text, "  XDP has written the link-layer header {}", print::hex(&early[..ETHERNET]));
    }
}

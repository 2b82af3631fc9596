//! Runs the programs in the kernel and on the host from the same state and compares what they do.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_core::state::entries::ServiceId;
use nodelb_programs::connections::Connection;
use nodelb_programs::layout;
use nodelb_programs::node::{Node, Packet, Reason};
use nodelb_programs::programs::Outcome;

use crate::case::{self, Case};
use crate::kernel::{Entries, Entry, Kernel, Ran, TABLES, Tables, changes, find, sorted};
use crate::print;
use crate::sandbox;
use crate::world::World;

/// Verdicts of the programs: TCX_NEXT, TC_ACT_SHOT and TC_ACT_REDIRECT.
const NEXT: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

const NANOS: u64 = 1_000_000_000;

/// The Ethernet address of another host.
const OTHER_HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

/// Where the times and what depends on them, such as the seal of an entry, are in the values of [`TABLES`].
const TIMES: [[Range<usize>; 2]; TABLES.len()] = [[52..60, 64..68], [52..60, 64..68], [4..8, 0..0], [0..8, 0..0]];

/// Nanoseconds of the clock that the programs read.
fn clock(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).unwrap();
    u64::try_from(now.tv_sec()).unwrap() * NANOS + u64::try_from(now.tv_nsec()).unwrap()
}

/// The client's entry of the connection that the packet began, if it did.
fn begun(before: &[Entry], after: &[Entry]) -> Option<Connection> {
    let [_, put] = changes(before, after);
    put.iter().find_map(|(key, value)| {
        let entry = layout::connection(value);
        // The entry of a connection that goes on has counted packets. Another may have begun in the same second.
        let is_begun = find(before, key).is_none_or(|(_, old)| {
            let old = layout::connection(old);
            (old.created, old.offset) != (entry.created, entry.offset) || entry.bytes <= old.bytes
        });
        (is_begun && !entry.flags.is_reverse).then_some(entry)
    })
}

/// The random number that lets the host choose what the kernel has chosen: the offset of the connection.
fn chosen(world: &World, begun: Option<&Connection>) -> u32 {
    let Some(entry) = begun else { return 0 };
    let Some(service) = world.state.services.get(&ServiceId(entry.service.0)) else { return 0 };
    let view = if entry.flags.is_local_view { &service.local } else { &service.cluster };
    let count = view.len().max(1) as u64;
    u32::try_from((u64::from(entry.offset) << 32).div_ceil(count)).unwrap_or(u32::MAX)
}

fn without_times(table: usize, (key, value): &Entry) -> Entry {
    let mut value = value.clone();
    for range in &TIMES[table] {
        value[range.clone()].fill(0);
    }
    (key.clone(), value)
}

fn shown(table: usize, (key, value): &Entry) -> String {
    match TABLES[table] {
        "connections" | "half_open" => {
            let (key, entry) = (layout::packet_key(key), layout::connection(value));
            format!("{} {:?} {:?} {} becomes {entry:?}", TABLES[table], key.protocol, key.side, key.tuple)
        }
        "fragments" => format!("{:?} {:?}", layout::fragment_key(key), layout::fragment(value)),
        _ => format!("{:?} {:?}", layout::affinity_key(key), layout::affinity(value)),
    }
}

/// The entries that only the kernel or only the host has, but for times.
fn compare_tables([kernel, host]: &[Tables; 2], text: &mut String) {
    for table in 0..TABLES.len() {
        // Most entries have the same times, too: the host has them from the kernel.
        let [kernel, host] = changes(&kernel[table], &host[table])
            .map(|entries| -> Entries { entries.into_iter().map(|it| without_times(table, it)).collect() });
        let [only_kernel, only_host] = changes(&kernel, &host);
        for (who, entries) in [("kernel", only_kernel), ("host", only_host)] {
            for entry in entries {
                let _ = writeln!(text, "  only the {who} has {}", shown(table, entry));
            }
        }
    }
}

fn verdict(code: i32) -> String {
    match code {
        NEXT => "next".to_owned(),
        SHOT => "drop".to_owned(),
        REDIRECT => "redirect or reply".to_owned(),
        other => format!("verdict {other}"),
    }
}

/// What differs between what the kernel and the host made of a packet; empty if nothing does.
fn differences(ran: &Ran, outcome: &Outcome) -> String {
    let mut text = String::new();
    if ran.code != outcome.code {
        let _ = writeln!(text, "  verdict: kernel {}, host {}", verdict(ran.code), verdict(outcome.code));
    }
    // A packet that is dropped has no bytes.
    if ran.code != SHOT && outcome.code != SHOT && ran.bytes != outcome.bytes {
        let shown = |bytes: &[u8]| match bytes.get(..14) {
            Some(link) => {
                format!("{} {} ({})", print::hex(link), print::packet(&bytes[14..]), print::hex(&bytes[14..]))
            }
            None => print::hex(bytes),
        };
        let _ = writeln!(text, "  kernel {}\n  host   {}", shown(&ran.bytes), shown(&outcome.bytes));
    }
    let (mut kernel, mut host) = (ran.reasons.clone(), outcome.reasons.clone());
    for reasons in [&mut kernel, &mut host] {
        reasons.sort_unstable();
        reasons.dedup();
    }
    if kernel != host {
        let _ = writeln!(text, "  counted: kernel {kernel:?}, host {host:?}");
    }
    text
}

/// Waits until a new second has begun if one is about to. The programs read the clock once in a tick for most decisions, and
/// again for few: at the begin of a second, some of their times may be one second behind for a tick, and for as long as the
/// processor that counts the ticks of this machine stands still. Which of several handshakes gives way may then differ.
fn wait_for_second() {
    let is_near = |now: u64| !(60_000_000..980_000_000).contains(&(now % NANOS));
    while is_near(clock(ClockId::CLOCK_MONOTONIC_COARSE)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs both on the packet and returns what differs, and what the host decided. `None` if the kernel cannot run the
/// program on such a packet.
pub(crate) fn compare(kernel: &mut Kernel, world: &World, packet: &Packet) -> Option<(String, Outcome)> {
    let mut packet = packet.clone();
    let own = world.devices.values().find(|device| device.ifindex == packet.ifindex)?.mac;
    if !packet.is_for_host && packet.bytes.get(..6)? == own {
        packet.bytes[..6].copy_from_slice(&OTHER_HOST);
    }
    wait_for_second();
    let early = if kernel.has_xdp { kernel.compare_xdp(world, &packet) } else { String::new() };
    let before =
        kernel.known.take().map_or_else(|| sorted(kernel.entries("half_open")), |[_, half_open, ..]| half_open);
    kernel.follow_cursors();
    let started = clock(ClockId::CLOCK_MONOTONIC_COARSE);
    let ran = kernel.run(&packet)?;
    let ended = clock(ClockId::CLOCK_MONOTONIC_COARSE);
    // A second may have begun before the program ran, or after it.
    let has_two_seconds = started / NANOS != ended / NANOS;
    if has_two_seconds {
        kernel.host.save();
    }
    let after = kernel.own_tables();
    let begun = begun(&before, &after[1]);
    kernel.host.fix_random(Some(chosen(world, begun.as_ref())));
    // Nothing else moves a cursor.
    kernel.has_cursors = begun.is_none() && ran.reasons.is_empty();
    let mut both = [after, Tables::default()];
    let mut compared = |kernel: &mut Kernel, now_ns: u64| {
        let outcome = kernel.host.run(&Node { now_ns, ..world.node() }, &packet);
        let mut text = differences(&ran, &outcome);
        both[1] = kernel.host.lists(TABLES).map(sorted);
        compare_tables(&both, &mut text);
        (text, outcome)
    };
    let mut found = compared(kernel, started);
    if !found.0.is_empty() && has_two_seconds {
        kernel.host.restore();
        found = compared(kernel, ended);
    }
    let (text, outcome) = found;
    kernel.follow(&both);
    let [after, _] = both;
    kernel.known = Some(after);
    Some((text + &early, outcome))
}

/// Lets both delete what is due, and returns what differs.
pub(crate) fn compare_sweep(kernel: &mut Kernel, timeouts: &SweepTimeouts) -> String {
    let now_ns = loop {
        let started = clock(ClockId::CLOCK_MONOTONIC) / NANOS;
        kernel.sweep(timeouts);
        // If a second begins while the programs run, some entries are due by the old one and others by the new one.
        if clock(ClockId::CLOCK_MONOTONIC) / NANOS == started {
            break started * NANOS;
        }
    };
    kernel.host.sweep(now_ns, timeouts);
    let (mut text, after) = (String::new(), kernel.tables());
    compare_tables(&after, &mut text);
    kernel.follow(&after);
    text
}

/// Steps that the kernel cannot show with a single packet on given bytes: tags next to a packet, devices without a
/// link-layer header, how the kernel has a packet, limits that are per CPU or approximate, the choice of an address without
/// one on the device, other addresses of the node, and what other software has done.
fn is_shown(step: &str) -> bool {
    let elsewhere = [
        "in tun0",
        "out tun0",
        "now limit half-open",
        "now device",
        "now kernel",
        "now set other-proxy",
        "former",
        "wait -",
        "repeat 999",
        "repeat 1003",
        "repeat 2050",
    ];
    let how = [" here", " vlan", " linear ", " summed-by-device", " to-be-summed", " tracked"];
    !elsewhere.iter().any(|word| step.starts_with(word)) && !how.iter().any(|word| step.contains(word))
}

/// Runs the case; returns the differences and the number of packets that were compared.
fn run(kernel: &mut Kernel, case: &Case) -> (String, usize) {
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    // Constants of the programs and sizes of maps do not change while they run.
    for step in case.steps.iter().take_while(|step| step.starts_with("now ")) {
        world.apply(&step["now ".len()..]);
    }
    kernel.start(&world);
    let (mut text, mut compared) = (String::new(), 0);
    for step in case.steps.iter().skip_while(|step| step.starts_with("now ")) {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match word {
            "now" => {
                world.apply(rest);
                kernel.set(&world);
            }
            "wait" => kernel.age(rest.parse().unwrap()),
            "counts" => {}
            "repeat" => {
                let (times, step) = rest.split_once(' ').unwrap();
                for number in 0..times.parse::<usize>().unwrap() {
                    let packet = case::packet(&world, &step.replace("{}", &(1_000 + number).to_string()));
                    compared += note(&mut text, step, compare(kernel, &world, &packet));
                }
            }
            _ => compared += note(&mut text, step, compare(kernel, &world, &case::packet(&world, step))),
        }
    }
    (text, compared)
}

fn note(text: &mut String, step: &str, compared: Option<(String, Outcome)>) -> usize {
    let Some((difference, _)) = compared else { return 0 };
    if !difference.is_empty() {
        let _ = write!(text, " {step}\n{difference}");
    }
    1
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packet_programs/fixtures")
}

fn all_cases() -> Vec<Case> {
    let shared = std::fs::read_to_string(folder().join("worlds")).unwrap();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    files.sort();
    files
        .iter()
        .flat_map(|path| case::cases(&format!("{shared}\n{}", std::fs::read_to_string(path).unwrap())))
        .collect()
}

/// `CASE=text` runs only cases with this text in their name.
#[test]
fn kernel_and_host_agree_on_every_case() {
    sandbox::run("compared::kernel_and_host_agree_on_every_case", |_| {
        let chosen = std::env::var("CASE").unwrap_or_default();
        let mut kernel = Kernel::new(&World::new());
        let (mut text, mut cases, mut packets) = (String::new(), 0, 0);
        for case in all_cases().iter().filter(|case| case.name.contains(&chosen)) {
            if !case.steps.iter().all(|step| is_shown(step)) {
                continue;
            }
            let (differences, compared) = run(&mut kernel, case);
            if !differences.is_empty() {
                let _ = writeln!(text, "case {}\n{differences}", case.name);
            }
            cases += 1;
            packets += compared;
        }
        assert!(text.is_empty(), "{text}");
        assert!(!chosen.is_empty() || (cases >= 300 && packets >= 600), "only {packets} packets of {cases} cases");
        let early = kernel.translated_early;
        assert!(!chosen.is_empty() || early >= 15, "the XDP program has translated only {early} of the packets");
    });
}

/// The kernel puts no header in front of datagrams that a device has joined. They were dropped without a count.
#[test]
fn what_the_kernel_does_not_let_be_written_is_counted() {
    sandbox::run("compared::what_the_kernel_does_not_let_be_written_is_counted", |_| {
        let shared = std::fs::read_to_string(folder().join("worlds")).unwrap();
        let step = "in eth0 198.51.100.7:40000 > 203.0.113.90:53 udp data 1200 gso";
        let cases = case::cases(&format!("{shared}\ncase joined\n  world direct\n  {step}\n"));
        let (mut kernel, mut world) = (Kernel::new(&World::new()), World::new());
        cases[0].world.iter().for_each(|line| world.apply(line));
        kernel.start(&world);
        let ran = kernel.run(&case::packet(&world, step)).unwrap();
        assert_eq!(ran.code, SHOT);
        assert!(ran.reasons.contains(&Reason::Short), "{:?}", ran.reasons);
    });
}

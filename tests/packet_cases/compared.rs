//! Runs the programs and the pure function from the same state and compares what they do.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_core::state::entries::{BackendId, ServiceId};
use nodelb_model::connections::{Connection, Tables};
use nodelb_model::headers::{Content, Parsed, parse};
use nodelb_model::key::{FragmentKey, PacketKey};
use nodelb_model::node::{Node, Packet, Reason, Verdict};
use nodelb_model::sweep::sweep;
use nodelb_model::translate::{Outcome, translate};

use crate::case::{self, Case};
use crate::kernel::{Kernel, Ran};
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

/// Seconds of the clock that the programs read.
pub(crate) fn second() -> u64 {
    clock(ClockId::CLOCK_MONOTONIC_COARSE) / NANOS
}

/// Nanoseconds of the clock that the programs read.
fn clock(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).unwrap();
    u64::try_from(now.tv_sec()).unwrap() * NANOS + u64::try_from(now.tv_nsec()).unwrap()
}

/// The pure function from the state of the programs before the packet. What is random there is what the programs chose.
fn expected(world: &World, now_ns: u64, (before, after): (&Tables, &Tables), packet: &Packet) -> Outcome {
    let mut tables = before.clone();
    tables.limits = world.limits;
    let number = begun(before, after, packet).map_or(0, |entry| random_number(world, entry));
    tables.fragment_ids.extend(used_id(after, now_ns, packet));
    translate(Node { now_ns, ..world.node() }, &tables, &mut || number, packet)
}

/// The key of the id that the programs gave to the datagram of the packet: its addresses, the second, and the number in
/// the second.
fn used_id(after: &Tables, now_ns: u64, packet: &Packet) -> Option<((Addr, Addr), (u32, u32))> {
    let Parsed::Packet(headers) = parse(&packet.bytes, packet.l2_length, packet.is_gso) else { return None };
    let Content::Transport(protocol, ports) = headers.content else { return None };
    let (side, id) = (packet.hook.side(), headers.fragment?.id);
    let datagram = FragmentKey { source: headers.source, target: headers.target, id, protocol, side };
    let key = PacketKey { tuple: headers.tuple(ports.source, ports.target), protocol, side };
    let (given, entry) = (after.fragments.get(&datagram)?, after.find(&after.key_of_arrival(key))?);
    let now = u32::try_from(now_ns / NANOS).unwrap();
    Some(((entry.to.source.addr, entry.to.target.addr), (now, u32::from(given.id % 2_048))))
}

/// The client's entry of the connection that the packet began, if it did.
fn begun<'a>(before: &Tables, after: &'a Tables, packet: &Packet) -> Option<&'a Connection> {
    let Parsed::Packet(headers) = parse(&packet.bytes, packet.l2_length, packet.is_gso) else { return None };
    let Content::Transport(protocol, ports) = headers.content else { return None };
    let key = PacketKey { tuple: headers.tuple(ports.source, ports.target), protocol, side: packet.hook.side() };
    let entry = after.half_open.get(&key).filter(|entry| !entry.flags.is_reverse)?;
    // The entry of a connection that goes on counts the packet.
    let counted = |old: &Connection| old.to == entry.to && old.bytes + headers.length() as u64 == entry.bytes;
    let goes_on = before.half_open.get(&key).is_some_and(counted);
    (!goes_on).then_some(entry)
}

/// The random number that selects the offset of the entry.
fn random_number(world: &World, entry: &Connection) -> u32 {
    let Some(service) = world.state.services.get(&entry.service) else { return 0 };
    let view = if entry.flags.is_local_view { &service.local } else { &service.cluster };
    let count = view.len().max(1) as u64;
    u32::try_from((u64::from(entry.offset) << 32).div_ceil(count)).unwrap_or(u32::MAX)
}

/// What is compared of an entry: neither its times nor what only one of the two stores.
#[derive(Debug, PartialEq)]
enum Entry<'t> {
    Connection(&'static str, &'t PacketKey, Connection),
    Fragment(&'t FragmentKey, u16, u16),
    Affinity(&'t (u64, ServiceId), BackendId),
}

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Connection(table, key, entry) => {
                let Connection { to, service, backend, offset, ifindex, flags, acknowledgment, bytes, .. } = entry;
                write!(
                    f,
                    "{table} {:?} {:?} {} becomes {to}; service {service} backend {} offset {offset} device {ifindex} \
                     bytes {bytes} acknowledgment {acknowledgment} {flags:?}",
                    key.protocol, key.side, key.tuple, backend.0
                )
            }
            Entry::Fragment(key, source, target) => write!(f, "{key:?} ports {source} > {target}"),
            Entry::Affinity((client, service), backend) => {
                write!(f, "affinity of {client:x} and service {service}: backend {}", backend.0)
            }
        }
    }
}

fn entries(tables: &Tables) -> impl Iterator<Item = Entry<'_>> {
    let entry = |table, (key, entry): (_, &Connection)| {
        let key: &PacketKey = key;
        // The offset is a hint, which only a client's entry uses.
        let offset = if entry.flags.is_reverse { 0 } else { entry.offset };
        // For UDP, the programs store the epoch there.
        let acknowledgment = if key.protocol == Protocol::Udp { 0 } else { entry.acknowledgment };
        Entry::Connection(table, key, Connection { offset, acknowledgment, last_used: 0, created: 0, ..*entry })
    };
    let half_open = tables.half_open.iter().map(move |pair| entry("half-open", pair));
    let connections = tables.connections.iter().map(move |pair| entry("connection", pair));
    let fragments = tables.fragments.iter().map(|(key, ports)| Entry::Fragment(key, ports.source, ports.target));
    let affinity = tables.affinity.iter().map(|(key, last)| Entry::Affinity(key, last.backend));
    half_open.chain(connections).chain(fragments).chain(affinity)
}

/// The entries that only one of the two has.
fn only<'t>(one: &'t Tables, other: &'t Tables) -> Vec<Entry<'t>> {
    if entries(one).eq(entries(other)) {
        return Vec::new();
    }
    let others: Vec<_> = entries(other).collect();
    entries(one).filter(|entry| !others.contains(entry)).collect()
}

fn verdict(code: i32) -> String {
    match code {
        NEXT => "next".to_owned(),
        SHOT => "drop".to_owned(),
        REDIRECT => "redirect or reply".to_owned(),
        other => format!("verdict {other}"),
    }
}

const fn code_of(outcome: &Outcome) -> i32 {
    match outcome.verdict {
        Verdict::Next => NEXT,
        Verdict::Drop => SHOT,
        Verdict::Redirect { .. } | Verdict::Reply => REDIRECT,
    }
}

/// What differs between the programs and the pure function; empty if nothing does.
fn differences(ran: &Ran, after: &Tables, outcome: &Outcome) -> String {
    let mut text = String::new();
    let code = code_of(outcome);
    if ran.code != code {
        let (programs, function) = (verdict(ran.code), verdict(code));
        let reasons = (&ran.reasons, outcome.reason);
        let _ = writeln!(text, "  verdict: programs {programs} {:?}, function {function} {:?}", reasons.0, reasons.1);
    }
    // A packet that is dropped has no bytes.
    if ran.code != SHOT && code != SHOT && ran.bytes != outcome.bytes {
        let shown = |bytes: &[u8]| match bytes.get(..14) {
            Some(link) => {
                format!("{} {} ({})", print::hex(link), print::packet(&bytes[14..]), print::hex(&bytes[14..]))
            }
            None => print::hex(bytes),
        };
        let _ = writeln!(text, "  programs {}\n  function {}", shown(&ran.bytes), shown(&outcome.bytes));
    }
    let is_counted = |reason: &Reason| ran.reasons.contains(reason);
    if code != NEXT && outcome.reason.is_some_and(|reason| !is_counted(&reason)) {
        let _ = writeln!(text, "  reason: programs {:?}, function {:?}", ran.reasons, outcome.reason);
    }
    for entry in only(after, &outcome.tables) {
        let _ = writeln!(text, "  only the programs have {entry}");
    }
    for entry in only(&outcome.tables, after) {
        let _ = writeln!(text, "  only the function has {entry}");
    }
    text
}

/// Waits until a new second has begun if one is about to. The programs read the clock once in a tick for most decisions, and
/// again for few: at the begin of a second, some of their times may be one second behind for a tick, and for as long as the
/// processor that counts the ticks of this machine stands still. Which of several handshakes gives way may then differ.
pub(crate) fn wait_for_second() {
    let is_near = |now: u64| !(60_000_000..980_000_000).contains(&(now % NANOS));
    while is_near(clock(ClockId::CLOCK_MONOTONIC_COARSE)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs both on the packet and returns what differs, and what the function decided. `None` if the kernel cannot run the
/// program on such a packet.
pub(crate) fn compare(kernel: &mut Kernel, world: &World, packet: &Packet) -> Option<(String, Outcome)> {
    let mut packet = packet.clone();
    let own = world.devices.values().find(|device| device.ifindex == packet.ifindex)?.mac;
    if !packet.is_for_host && packet.bytes.get(..6)? == own {
        packet.bytes[..6].copy_from_slice(&OTHER_HOST);
    }
    let mut before = kernel.tables();
    before.cursors.extend(kernel.cursors());
    wait_for_second();
    let started = clock(ClockId::CLOCK_MONOTONIC_COARSE);
    let early = kernel.run_xdp(&packet);
    let ran = kernel.run(&packet)?;
    let early = match early {
        Err(text) => text,
        // One of the two may have noted the packet in the next second.
        Ok(Some(translated)) if second() == started / NANOS => {
            kernel.translated_early += 1;
            kernel.compare_xdp(&translated, world, &ran)
        }
        Ok(_) => String::new(),
    };
    let ended = clock(ClockId::CLOCK_MONOTONIC_COARSE);
    let after = kernel.tables();
    let compared = |now: u64| {
        let outcome = expected(world, now, (&before, &after), &packet);
        (differences(&ran, &after, &outcome) + &early, outcome)
    };
    // A second may have begun before the program ran, or after it.
    let first = compared(started);
    Some(if first.0.is_empty() || started / NANOS == ended / NANOS { first } else { compared(ended) })
}

/// Lets both delete what is due, and returns what differs.
pub(crate) fn compare_sweep(kernel: &mut Kernel, timeouts: &SweepTimeouts) -> String {
    let (before, programs, now) = loop {
        let before = kernel.tables();
        let started = clock(ClockId::CLOCK_MONOTONIC) / NANOS;
        kernel.sweep(timeouts);
        // If a second begins while the programs run, some entries are due by the old one and others by the new one.
        if clock(ClockId::CLOCK_MONOTONIC) / NANOS == started {
            break (before, kernel.tables(), u32::try_from(started).unwrap());
        }
    };
    let mut tables = before;
    sweep(&mut tables, now, timeouts);
    let mut text = String::new();
    for entry in only(&programs, &tables) {
        let _ = writeln!(text, "  only the programs keep {entry}");
    }
    for entry in only(&tables, &programs) {
        let _ = writeln!(text, "  only the function keeps {entry}");
    }
    text
}

/// Steps that the kernel cannot show with a single packet on given bytes: tags next to a packet, devices without a
/// link-layer header, limits that are per CPU or approximate, and the choice of an address without one on the device.
fn is_shown(step: &str) -> bool {
    let elsewhere = ["in tun0", "out tun0", "now limit half-open", "now device", "repeat 1003", "repeat 2050"];
    !elsewhere.iter().any(|word| step.starts_with(word)) && !step.ends_with(" vlan")
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
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/packet_programs/fixtures")
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
fn programs_and_function_agree_on_every_case() {
    sandbox::run("compared::programs_and_function_agree_on_every_case", |_| {
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

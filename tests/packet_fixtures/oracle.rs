//! What the programs do in a case, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nodelb_core::model::addr::Protocol;
use nodelb_programs::connections::{Affinity, Connection, Tables};
use nodelb_programs::headers::ETHERNET;
use nodelb_programs::host::Compiler;
use nodelb_programs::key::{PacketKey, Side};
use nodelb_programs::node::{Packet, Verdict};
use nodelb_programs::programs::{Load, Outcome, Programs};

use crate::case::{Case, packet};
use crate::world::World;
use crate::{counts, kernel, print};

/// The second in which a case begins.
const START: u32 = 1_000;

/// The steps of the case, each followed by its result.
pub(crate) fn run(case: &Case, compiler: Compiler) -> Vec<(String, Vec<String>)> {
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    let load = kernel::load(&case.steps, Load { compiler, ..Load::new(world.limits) });
    let mut programs = Programs::load(load, &world.node());
    for device in world.devices.values().filter(|device| device.l2_length == ETHERNET) {
        programs.describe_device(device.ifindex, device.mac);
    }
    let (mut done, mut tables) = (Vec::new(), programs.tables());
    for step in &case.steps {
        let before = tables;
        let mut results = Vec::new();
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match word {
            "now" if rest.starts_with("kernel ") => kernel::apply(&mut programs, &rest["kernel ".len()..]),
            "now" => {
                world.apply(rest);
                programs.limit(world.limits);
                programs.set(&world.node());
            }
            "wait" => {
                let seconds: i64 = rest.parse().expect("seconds");
                world.now_ns = world.now_ns.saturating_add_signed(seconds * 1_000_000_000);
            }
            "repeat" => results = repeated(&world, &mut programs, rest),
            "former" => programs.make_former(rest.parse().expect("the number of a map")),
            "counts" => results = counts::shown(&mut programs),
            "early" => {
                let packet = packet(&world, step);
                let result = programs.run_xdp(&world.node(), &packet);
                results.push(shown(&world, &packet, &result) + &link(&world, &result));
            }
            _ => {
                let packet = packet(&world, step);
                let result = programs.run(&world.node(), &packet);
                results.push(shown(&world, &packet, &result));
            }
        }
        tables = programs.tables();
        results.extend(changes(&world, &before, &tables));
        done.push((step.clone(), results));
    }
    done
}

/// `repeat N STEP`: the step with `{}` replaced by numbers from 0, and how often each verdict occurred.
fn repeated(world: &World, programs: &mut Programs, rest: &str) -> Vec<String> {
    let (times, step) = rest.split_once(' ').expect("repeat N STEP");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..times.parse().expect("a number") {
        // Numbers fit into a port: {} stands for 1000 + N.
        let number: usize = number;
        let packet = packet(world, &step.replace("{}", &(1_000 + number).to_string()));
        let result = programs.run(&world.node(), &packet);
        *counts.entry(verdict(world, &result)).or_default() += 1;
    }
    counts.into_iter().map(|(verdict, count)| format!("{count} times: {verdict}")).collect()
}

fn verdict(world: &World, result: &Outcome) -> String {
    let mut text = match result.verdict {
        Verdict::Next => "next".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Reply => "reply".to_owned(),
        Verdict::Redirect { ifindex } => format!("redirect to {}", world.name_of(ifindex)),
    };
    if let Some(next_hop) = result.next_hop {
        let _ = write!(text, " via {next_hop}");
    }
    if let Some(reason) = result.reason {
        let _ = write!(text, ", {reason}");
    }
    text
}

fn shown(world: &World, packet: &Packet, result: &Outcome) -> String {
    let mut text = verdict(world, result);
    if result.verdict == Verdict::Drop {
        return text;
    }
    if result.has_wrong_sum {
        text.push_str(", sum of the whole packet wrong");
    }
    if result.has_vlan_tag {
        text.push_str(", with its VLAN tag");
    }
    if result.bytes == packet.bytes {
        return format!("{text}, unchanged");
    }
    let link = &result.bytes[..packet.l2_length];
    let is_turned = packet.l2_length == 0
        || (link[..6] == packet.bytes[6..12] && link[6..12] == packet.bytes[..6] && link[12..] == packet.bytes[12..14]);
    if !is_typed(packet, &result.bytes) {
        text.push_str(", of another type");
    }
    if result.verdict == Verdict::Reply && !is_turned {
        text.push_str(", Ethernet header not turned round");
    }
    format!("{text}: {}", print::packet(&result.bytes[packet.l2_length..]))
}

/// The link-layer header that the program at XDP has written.
fn link(world: &World, result: &Outcome) -> String {
    let Verdict::Redirect { ifindex } = result.verdict else { return String::new() };
    let device = world.devices.values().find(|device| device.ifindex == ifindex).expect("a device");
    let (target, source) = (&result.bytes[..6], &result.bytes[6..12]);
    let by = if *source == device.mac { "the device".to_owned() } else { print::hex(source) };
    format!(", from {by} to {}", print::hex(target))
}

/// Whether the link-layer header, if there is one, names the family of what follows.
fn is_typed(packet: &Packet, bytes: &[u8]) -> bool {
    let wanted = match bytes.get(packet.l2_length).map(|first| first >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    };
    packet.l2_length == 0 || bytes[12..ETHERNET] == wanted
}

/// What the step changed in the tables.
fn changes(world: &World, before: &Tables, after: &Tables) -> Vec<String> {
    let mut lines = Vec::new();
    let tables =
        [("half-open", &before.half_open, &after.half_open), ("connection", &before.connections, &after.connections)];
    if tables.iter().any(|(_, before, after)| after.len().abs_diff(before.len()) > 8) {
        return tables.map(|(name, _, after)| format!("{} entries: {}", name, after.len())).to_vec();
    }
    for (name, before, after) in tables {
        for (key, entry) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
            lines.push(format!("- {name} {}", shown_entry(world, key, entry)));
        }
        for (key, entry) in after {
            let text = shown_entry(world, key, entry);
            match before.get(key).map(|entry| shown_entry(world, key, entry)) {
                Some(old) if old == text => {}
                Some(_) => lines.push(format!("~ {name} {text}")),
                None => lines.push(format!("+ {name} {text}")),
            }
        }
    }
    for (key, ports) in after.fragments.iter().filter(|(key, ports)| before.fragments.get(*key) != Some(*ports)) {
        let side = side(key.side);
        let (source, target, seen) = (ports.source, ports.target, seconds(u32::from(ports.seen)));
        lines.push(format!(
            "+ fragments {side} {} > {} id {}: ports {source} > {target}, sent as id {}{}",
            key.source,
            key.target,
            key.id,
            ports.id,
            if seen == 0 { String::new() } else { format!(", seen at {seen}") }
        ));
    }
    for ((client, service), last) in &after.affinity {
        let sign = match before.affinity.get(&(*client, *service)) {
            Some(before) if before == last => continue,
            Some(_) => '~',
            None => '+',
        };
        let of = format!("affinity of client {client:x} and service {service}");
        lines.push(format!("{sign} {of}: {}", shown_affinity(last)));
    }
    lines
}

fn shown_affinity(last: &Affinity) -> String {
    let place = if last.offset == 0 { String::new() } else { format!(", place {}", last.offset) };
    let used = last.last_used_ns.cast_signed() - i64::from(START) * 1_000_000_000;
    let used = if used == 0 { String::new() } else { format!(", used at {}", used / 1_000_000_000) };
    format!("backend {}{place}{used}", last.backend.0)
}

const fn side(side: Side) -> &'static str {
    match side {
        Side::Arriving => "arriving",
        Side::Leaving => "leaving",
        Side::FromPod => "from-pod",
    }
}

fn shown_entry(world: &World, key: &PacketKey, entry: &Connection) -> String {
    let flags = entry.flags;
    let names = [
        (flags.is_redirected, "redirected"),
        (flags.is_reverse, "reverse"),
        (flags.has_replied, "replied"),
        (flags.has_fin, "fin"),
        (flags.has_reset, "reset"),
        (flags.is_local_view, "local-view"),
        (flags.is_assured, "assured"),
        (flags.is_waiting, "waiting"),
        (flags.is_of_node, "of-node"),
        (flags.is_forwarded, "forwarded"),
        (flags.is_tunnelled, "tunnelled"),
        (flags.is_of_pod, "of-pod"),
    ];
    let names: String = names.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| format!(", {name}")).collect();
    let (service, backend, device) = (entry.service, entry.backend.0, world.name_of(entry.ifindex));
    let (side, ends, to, bytes) = (side(key.side), key.tuple, entry.to, entry.bytes);
    let hidden = hidden(key.protocol, entry);
    format!(
        "{side} {ends} becomes {to}; service {service}, backend {backend}, from {device}, {bytes} bytes{names}{hidden}"
    )
}

/// Seconds since the case has begun.
pub(crate) fn seconds(second: u32) -> i64 {
    i64::from(second) - i64::from(START)
}

/// What of an entry only later packets show, if it is not 0.
fn hidden(protocol: Protocol, entry: &Connection) -> String {
    let numbers = [
        (if protocol == Protocol::Tcp { "ack" } else { "epoch" }, i64::from(entry.acknowledgment)),
        ("place", i64::from(entry.offset)),
        ("begun at", seconds(entry.created)),
        ("used at", seconds(entry.last_used)),
    ];
    numbers.iter().filter(|(_, number)| *number != 0).map(|(name, number)| format!(", {name} {number}")).collect()
}

//! What the programs do in a case, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nodelb_programs::connections::{Connection, Tables};
use nodelb_programs::host::Compiler;
use nodelb_programs::key::Side;
use nodelb_programs::node::{Packet, Verdict};
use nodelb_programs::programs::{Load, Outcome, Programs};

use crate::case::{Case, packet};
use crate::print;
use crate::world::World;

/// The steps of the case, each followed by its result.
pub(crate) fn run(case: &Case, compiler: Compiler) -> Vec<(String, Vec<String>)> {
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    let mut programs = Programs::load(Load { compiler, ..Load::new(world.limits) }, &world.node());
    let (mut done, mut tables) = (Vec::new(), programs.tables());
    for step in &case.steps {
        let before = tables;
        let mut results = Vec::new();
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        match word {
            "now" => {
                world.apply(rest);
                programs.limit(world.limits);
                programs.set(&world.node());
            }
            "wait" => {
                let seconds: u64 = rest.parse().expect("seconds");
                world.now_ns += seconds * 1_000_000_000;
            }
            "repeat" => results = repeated(&world, &mut programs, rest),
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
    if result.bytes == packet.bytes {
        return format!("{text}, unchanged");
    }
    let link = &result.bytes[..packet.l2_length];
    let is_turned = packet.l2_length == 0
        || (link[..6] == packet.bytes[6..12] && link[6..12] == packet.bytes[..6] && link[12..] == packet.bytes[12..14]);
    if result.verdict == Verdict::Reply && !is_turned {
        text.push_str(", Ethernet header not turned round");
    }
    format!("{text}: {}", print::packet(&result.bytes[packet.l2_length..]))
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
            lines.push(format!("- {name} {}", shown_entry(world, key.side, &key.tuple.to_string(), entry)));
        }
        for (key, entry) in after {
            let text = shown_entry(world, key.side, &key.tuple.to_string(), entry);
            match before.get(key).map(|entry| shown_entry(world, key.side, &key.tuple.to_string(), entry)) {
                Some(old) if old == text => {}
                Some(_) => lines.push(format!("~ {name} {text}")),
                None => lines.push(format!("+ {name} {text}")),
            }
        }
    }
    for (key, ports) in after.fragments.iter().filter(|(key, ports)| before.fragments.get(*key) != Some(*ports)) {
        let side = side(key.side);
        let (source, target) = (ports.source, ports.target);
        lines.push(format!(
            "+ fragments {side} {} > {} id {}: ports {source} > {target}",
            key.source, key.target, key.id
        ));
    }
    for ((client, service), last) in after.affinity.iter().filter(|(key, _)| !before.affinity.contains_key(*key)) {
        lines.push(format!("+ affinity of client {client:x} and service {service}: backend {}", last.backend.0));
    }
    for ((client, service), last) in after.affinity.iter() {
        if before.affinity.get(&(*client, *service)).is_some_and(|before| before.backend != last.backend) {
            lines.push(format!("~ affinity of client {client:x} and service {service}: backend {}", last.backend.0));
        }
    }
    lines
}

const fn side(side: Side) -> &'static str {
    match side {
        Side::Arriving => "arriving",
        Side::Leaving => "leaving",
        Side::FromPod => "from-pod",
    }
}

fn shown_entry(world: &World, at: Side, key: &str, entry: &Connection) -> String {
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
    let bytes = entry.bytes;
    format!(
        "{} {key} becomes {}; service {service}, backend {backend}, from {device}, {bytes} bytes{names}",
        side(at),
        entry.to
    )
}

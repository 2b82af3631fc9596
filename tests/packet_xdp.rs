//! The program at XDP and those at tc on the same random packets, as `nodelb_programs` compiles them: XDP leaves a packet and
//! the maps as they are, or does what tc does. `SOCKET_SEED=n` repeats a run, and `SOCKET_CASES=n` sets the number of its
//! packets.

#[cfg(test)]
#[path = "packet_xdp/both.rs"]
mod both;
#[cfg(test)]
#[expect(dead_code, reason = "cases have no names here")]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[path = "packet_fixtures/damage.rs"]
mod damage;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_xdp/known.rs"]
mod known;
#[cfg(test)]
#[path = "packet_fixtures/print.rs"]
mod print;
#[cfg(test)]
#[path = "packet_fixtures/steps.rs"]
mod steps;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
mod world;

use std::collections::BTreeMap;

use nodelb_programs::node::Verdict;

use crate::both::{Both, load, run};
use crate::damage::{damage, number, pick, runner};
use crate::steps::{Step, answer, packet, policies, step};

/// The steps after which the tables are empty again, so that they stay small.
const RUN: usize = 150;

fn counted(counts: &mut BTreeMap<&'static str, u64>, different: &mut Vec<String>, what: &str, both: &Both) {
    *counts.entry(both.kind).or_default() += 1;
    if !both.difference.is_empty() {
        different.push(format!("{what}\n{}", both.difference));
    }
}

/// Packets of all kinds, few of which the program at XDP translates.
#[test]
fn xdp_leaves_a_packet_or_does_what_tc_does() {
    let (seed, packets) = (number("SOCKET_SEED", 14), number("SOCKET_CASES", 20_000));
    let (mut runner, steps, first) = (runner(seed), step(), policies());
    let (mut counts, mut different, mut done) = (BTreeMap::new(), Vec::new(), 0);
    while done < packets && different.len() < 5 {
        let mut world = first.clone();
        world.settings.source_ports = 10_000..=10_006;
        let mut programs = load(&world);
        for _ in 0..RUN {
            let step = pick(&mut runner, &steps);
            let Some(mut packet) = packet(&mut world, &step) else {
                programs.set(&world.node());
                continue;
            };
            let is_damaged = damage(&mut runner, &mut packet.bytes);
            let both = run(&mut programs, &world, &packet);
            counted(&mut counts, &mut different, &format!("{step:?}, damaged: {is_damaged}"), &both);
            done += 1;
            if let Step::Packet { is_answered: true, .. } = step
                && let Some(answer) = answer(&world, &packet, &both.tc)
            {
                let both = run(&mut programs, &world, &answer);
                counted(&mut counts, &mut different, &format!("answer to {step:?}"), &both);
            }
        }
    }
    assert!(different.is_empty(), "SOCKET_SEED={seed}\n{}", different.join("\n"));
    assert!(counts["translated"] * 50 > packets, "{counts:?}");
}

/// Packets of connections that the program at XDP translates, or that begin such connections.
#[test]
fn xdp_does_what_tc_does_with_packets_of_connections() {
    let (seed, packets) = (number("SOCKET_SEED", 14), number("SOCKET_CASES", 20_000));
    let (mut runner, choices) = (runner(seed), known::choice());
    let (mut counts, mut different, mut begun) = (BTreeMap::new(), Vec::new(), 0);
    let mut lab = known::Lab::new();
    for packet in 0..packets {
        if packet % known::RUN == 0 {
            lab = known::Lab::new();
        }
        lab.change(&mut runner);
        let choice = pick(&mut runner, &choices);
        let (text, input, mut passes) = lab.packet(&choice);
        let mut input = input;
        if choice.is_damaged() && damage(&mut runner, &mut input.bytes) {
            passes = false;
        }
        let mut both = run(&mut lab.programs, &lab.world, &input);
        if passes && both.kind == "translated" {
            both.difference.push_str("  XDP has translated a packet that it must pass on\n");
        }
        begun += u64::from(both.has_begun && both.tc.verdict != Verdict::Drop);
        counted(&mut counts, &mut different, &format!("packet {packet}: {text} {choice:?}"), &both);
        if different.len() > 5 {
            break;
        }
    }
    assert!(different.is_empty(), "SOCKET_SEED={seed}\n{}", different.join("\n"));
    assert!(counts["translated"] * 3 > packets && begun * 20 > packets, "{begun} begun: {counts:?}");
}

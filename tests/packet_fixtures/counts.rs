//! What the programs have counted in a case, as text.

use nodelb_programs::node::REASONS;
use nodelb_programs::programs::Programs;

use crate::oracle::seconds;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where the numbers are in `struct packet_counts` of `bpf/packet_reports.h`.
const NUMBERS: [(usize, &str); 6] = [
    (0, "from clients"),
    (8, "from backends"),
    (16, "begun"),
    (24, "answered"),
    (5 * 8 + 16 * REASONS.len(), "with RST"),
    (32, "ports tried"),
];

/// `enum packet_verdict`
const VERDICTS: [&str; 4] = ["passed on", "dropped", "answered with RST", "answered with ICMP"];

/// All counts of the case up to now.
pub(crate) fn shown(programs: &mut Programs) -> Vec<String> {
    let [all, services, drops] = programs.lists(["packet_counts", "outside_counters", "packet_drops"]);
    let mut lines = Vec::new();
    for (_, counts) in all {
        let numbers = NUMBERS.iter().map(|(at, name)| (u64_at(&counts, *at), *name));
        let text: Vec<String> = numbers.filter(|(n, _)| *n != 0).map(|(n, name)| format!("{n} {name}")).collect();
        lines.push(text.join(", "));
    }
    for (index, counter) in services {
        let (translated, refused) = (u64_at(&counter, 0), u64_at(&counter, 8));
        lines.push(format!("service {}: {translated} translated, {refused} refused", u32_at(&index, 0)));
    }
    let mut drops: Vec<String> = drops.iter().map(|(key, count)| shown_drop(key, count)).collect();
    drops.sort();
    [lines, drops].concat()
}

/// `struct drop_key` and `struct drop_count`.
fn shown_drop(key: &[u8], count: &[u8]) -> String {
    let half = |at: usize| usize::from(u16::from_ne_bytes([key[at], key[at + 1]]));
    let (service, reason, verdict) = (u32_at(key, 0), REASONS[half(4)], VERDICTS[half(6)]);
    let (first, last) = (seconds(u32_at(count, 8)), seconds(u32_at(count, 12)));
    format!("service {service}, {reason}, {verdict}: {} packets from {first} to {last}", u64_at(count, 0))
}

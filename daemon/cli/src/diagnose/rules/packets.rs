//! Connections of clients outside the node: what prevents their translation, and what prevents their packets from
//! arriving. The catalogue has the texts.

use std::collections::BTreeMap;

use super::context::{Context, quoted, shown, some};
use crate::diagnose::catalogue;
use crate::diagnose::facts::{ConnectionRow, DropRow, KernelSettings, LimitRow, Packets};
use nodelb_core::durations;
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

/// Seconds after which a handshake without an answer is a problem: the client has repeated its packet twice.
const UNANSWERED: u64 = 3;

/// Seconds for which drops are evidence of a present problem.
const RECENT: u64 = 600;

/// Percentage of a map above which it is nearly full.
const NEARLY_FULL: u64 = 80;

/// Devices of network plugins that may translate services: of Cilium, and of Calico with eBPF.
const OTHERS: [&str; 3] = ["cilium_host", "bpfin.cali", "bpfout.cali"];

/// Maps in which the oldest entry makes room.
const EVICTING: &str = "half_open";

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(packets) = context.daemon.and_then(|daemon| daemon.packets.as_ref()) else { return Vec::new() };
    let because = || [quoted(&packets.reason)];
    match &*packets.translation {
        "on" => {}
        "draining" => return problem("leaves-to-others", because()).into_iter().collect(),
        _ => return problem("off", because()).into_iter().collect(),
    }
    let kernel = &context.facts.kernel;
    let mut found = Vec::new();
    found.extend(devices(packets));
    found.extend(settings(packets, kernel, served_families(context)));
    found.extend(unanswered(packets, kernel));
    found.extend(nearly_full(&packets.limits));
    found.extend(drops(&packets.drops));
    found
}

/// Returns the finding with the texts of the catalogue; `None` without evidence.
fn problem(name: &str, evidence: impl IntoIterator<Item = String>) -> Option<Finding> {
    let mut evidence = evidence.into_iter().peekable();
    evidence.peek()?;
    let entry = catalogue::packet_problem(name)?;
    let finding = catalogue::finding(Kind::PacketPath).new_finding(&*entry.problem).severity(entry.severity);
    Some(finding.evidence(evidence).remedy(&*entry.remedy))
}

fn devices(packets: &Packets) -> Vec<Finding> {
    let uplinks = packets.devices.iter().filter(|row| row.role == "uplink" && row.programs != "attached");
    let failed = uplinks.map(|row| {
        let why = row.error.as_deref().unwrap_or("nodelb attaches them within a second of its coming up");
        format!("{}: {}", shown(&row.device), quoted(why))
    });
    let in_front = packets.devices.iter().filter(|row| row.programs == "attached").filter_map(|row| {
        let why = row.error.as_deref()?;
        Some(format!("{}: {}", shown(&row.device), quoted(why)))
    });
    let is_excluded = |reason: &str| reason.contains("packets.except");
    let excluded = packets.devices.iter().filter(|row| row.reason.as_deref().is_some_and(is_excluded));
    let others = packets.devices.iter().filter(|row| OTHERS.contains(&&*row.device));
    let names = |row: &crate::diagnose::facts::DeviceRow| format!("the device {}", shown(&row.device));
    let found = [
        problem("device-failed", failed),
        problem("program-in-front", in_front),
        problem("device-excluded", excluded.map(names)),
        problem("other-programs", others.map(names)),
    ];
    found.into_iter().flatten().collect()
}

/// Whether clients outside the node reach the service over IPv4, and over IPv6.
fn served_families(context: &Context<'_>) -> [bool; 2] {
    let rows = context.daemon.map_or(&[][..], |daemon| &daemon.frontends);
    let served = || rows.iter().filter(|row| row.outside == "Served");
    [false, true].map(|is_v6| served().any(|row| row.address.starts_with('[') == is_v6))
}

/// Settings of the kernel that contradict the packet path.
fn settings(packets: &Packets, kernel: &KernelSettings, [has_v4, has_v6]: [bool; 2]) -> Vec<Finding> {
    let settings = [
        ("net.ipv4.ip_forward", kernel.forwards_v4, has_v4),
        ("net.ipv6.conf.all.forwarding", kernel.forwards_v6, has_v6),
    ];
    let disabled = settings.iter().filter(|(_, is_on, is_needed)| *is_needed && *is_on == Some(false));
    let overlap = kernel.local_ports.filter(|local| overlaps(&packets.snat_ports, *local)).map(|(first, last)| {
        format!(
            "packets.snat-ports is {}, net.ipv4.ip_local_port_range is {first} to {last}",
            quoted(&packets.snat_ports)
        )
    });
    let found =
        [problem("forwarding", disabled.map(|(name, ..)| format!("{name} is 0"))), problem("snat-overlap", overlap)];
    found.into_iter().flatten().collect()
}

/// Whether a range such as `10000-29999` has a port of the other one. `auto` never does.
fn overlaps(range: &str, (first, last): (u16, u16)) -> bool {
    let ends = range.split_once('-').and_then(|(a, b)| Some((a.parse::<u16>().ok()?, b.parse::<u16>().ok()?)));
    ends.is_some_and(|(a, b)| a <= last && first <= b)
}

/// Backends with handshakes, and without any connection that both sides have answered.
fn unanswered(packets: &Packets, kernel: &KernelSettings) -> Vec<Finding> {
    let mut by_backend: BTreeMap<(&str, &str), (Vec<&ConnectionRow>, bool)> = BTreeMap::new();
    for row in &packets.connections {
        let (waiting, has_answered) = by_backend.entry((&row.path, &row.backend)).or_default();
        if row.state != "handshake" {
            *has_answered = true;
        } else if row.age >= UNANSWERED {
            waiting.push(row);
        }
    }
    let of = |path: &str| {
        let silent = by_backend
            .iter()
            .filter(|((by, _), (waiting, has_answered))| *by == path && !waiting.is_empty() && !has_answered);
        let line = |((_, backend), (waiting, _)): (&(&str, &str), &(Vec<&ConnectionRow>, bool))| {
            let clients = some(waiting.iter().map(|row| shown(&row.client)));
            format!("{} has not answered {}: {clients}", shown(backend), counted(waiting.len(), "connection"))
        };
        silent.map(line).collect::<Vec<_>>()
    };
    let (redirected, here) = (of("redirect"), of("stack"));
    let uplinks: Vec<&str> =
        packets.devices.iter().filter(|row| row.role == "uplink").map(|row| row.device.as_str()).collect();
    let strict = kernel.strict_devices.iter().filter(|device| uplinks.contains(&device.as_str()));
    // With one uplink, every route back leads there.
    let strict = strict.filter(|_| uplinks.len() > 1 && !here.is_empty());
    let strict: Vec<String> = strict.map(|device| format!("rp_filter is 1 on {}", shown(device))).collect();
    let found =
        [problem("rp-filter", strict), problem("unanswered-redirect", redirected), problem("unanswered-stack", here)];
    found.into_iter().flatten().collect()
}

fn nearly_full(limits: &[LimitRow]) -> Option<Finding> {
    let is_of_packets = |row: &&LimitRow| row.config_key.starts_with("packets.") && row.map != EVICTING;
    let full = limits.iter().filter(is_of_packets).filter_map(|row| {
        let used = row.used.filter(|used| *used * 100 > row.limit * NEARLY_FULL)?;
        Some(format!("{}: {used} of {} ({})", shown(&row.map), row.limit, shown(&row.config_key)))
    });
    problem("nearly-full", full)
}

/// The recent drops of the service, by their reason. A reason without an entry is no problem of its own.
fn drops(rows: &[DropRow]) -> Vec<Finding> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.last <= RECENT) {
        let last = durations::human(row.last.saturating_mul(1000));
        let line = format!("nodelb drops: {} {}, the last one {last} ago", count_of(row.packets), shown(&row.verdict));
        by_reason.entry(&row.reason).or_default().push(line);
    }
    by_reason.into_iter().filter_map(|(reason, lines)| problem(reason, lines)).collect()
}

fn count_of(packets: u64) -> String {
    counted(usize::try_from(packets).unwrap_or(usize::MAX), "packet")
}

#[cfg(test)]
#[path = "../tests/packets.rs"]
mod tests;

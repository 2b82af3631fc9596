//! Connections of clients outside the node: what prevents their translation, and what prevents their packets from
//! arriving. The catalogue has the texts.

use std::collections::BTreeMap;

use super::context::{Context, lasting, quoted, some};
use crate::diagnose::catalogue;
use crate::diagnose::facts::{
    ConnectionRow, Daemon, DeviceRow, DropRow, FrontendRow, KernelSettings, LimitRow, Packets, is_ipv6,
};
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

/// Seconds after which a handshake without an answer is a problem: the client has repeated its packet twice.
const UNANSWERED: f64 = 3.0;

/// Seconds for which drops are evidence of a present problem.
const RECENT: f64 = 600.0;

/// Percentage of a map above which it is nearly full.
const NEARLY_FULL: u64 = 80;

/// Devices of network plugins that may translate services: of Cilium, and of Calico with eBPF.
const OTHERS: [&str; 3] = ["cilium_host", "bpfin.cali", "bpfout.cali"];

/// Maps in which the oldest entry makes room.
const EVICTING: &str = "half_open";

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let own = super::direct::of_backend(context).into_iter();
    let mut found: Vec<Finding> = own.filter_map(|(name, evidence)| problem(name, evidence)).collect();
    found.append(&mut of_entry(context));
    found
}

/// What concerns packets that enter by this node.
fn of_entry(context: &Context<'_>) -> Vec<Finding> {
    let Some((daemon, packets)) = context.daemon.and_then(|daemon| Some((daemon, daemon.packets.as_ref()?))) else {
        return Vec::new();
    };
    let disabled = match &*packets.translation {
        "on" => None,
        "files" if daemon.is_of_file() => None,
        _ if daemon.is_of_file() => Some("of-file"),
        "files" | "draining" => Some("leaves-to-others"),
        _ => Some("off"),
    };
    if daemon.frontends.iter().any(|row| row.outside == "Loopback") {
        // The status says why clients outside are not served.
        return Vec::new();
    }
    if let Some(name) = disabled {
        return problem(name, vec![quoted(&packets.reason)]).into_iter().collect();
    }
    let kernel = &context.facts.kernel;
    let devices = |line: fn(&DeviceRow) -> Option<String>| packets.devices.iter().filter_map(line).collect();
    let unforwarded = forwarding(kernel, forwarded_families(daemon, kernel));
    let here = if unforwarded.is_empty() { unanswered(packets, "stack") } else { Vec::new() };
    let is_explained = |reason: &str| match reason {
        "no-forwarding" => !unforwarded.is_empty(),
        // Load balancers do not ask nodelb about services of files, and the status says what clients get.
        "no-local-backend" => daemon.is_of_file(),
        _ => false,
    };
    let mut drops = drops(&packets.drops);
    drops.retain(|reason, _| !is_explained(reason));
    let problems = [
        ("device-failed", devices(failed)),
        ("program-in-front", devices(behind)),
        ("no-xdp", devices(without_xdp)),
        ("device-excluded", devices(excluded)),
        ("other-programs", devices(of_others)),
        ("forwarding", unforwarded),
        ("snat-overlap", snat_overlap(packets, kernel).into_iter().collect()),
        ("rp-filter", if here.is_empty() { Vec::new() } else { strict(packets, kernel) }),
        ("link-local", not_forwarded(packets)),
        ("nearly-full", nearly_full(&packets.limits)),
    ];
    let direct = super::direct::problems(context, packets);
    let found = problems.into_iter().chain(direct).chain(drops);
    let found = found.filter_map(|(name, evidence)| problem(name, evidence));
    found.chain(silence(context, daemon, packets, here)).collect()
}

/// Returns that backends do not answer clients outside the node, as the status or connections show: with direct return, only
/// the status does.
fn silence(context: &Context<'_>, daemon: &Daemon, packets: &Packets, here: Vec<String>) -> Option<Finding> {
    let elsewhere = unanswered(packets, "redirect");
    let has = |how: &str| daemon.frontends.iter().any(|row| row.is_forwarded(how));
    let policies = if here.is_empty() { Vec::new() } else { dropped(&context.facts.kernel) };
    let is_known = context.problem(catalogue::finding(Kind::Unanswered)).is_some();
    let case = match () {
        () if !policies.is_empty() => "firewall",
        () if !here.is_empty() => "stack",
        () if !elsewhere.is_empty() => "redirect",
        () if !is_known => return None,
        () if has("direct") => "direct",
        () if has("tunnel") => "tunnel",
        () => "",
    };
    let what = match case {
        "redirect" => "a backend on another node has not answered clients outside this node",
        "firewall" | "stack" => "a backend on this node has not answered clients outside of it",
        _ => "backends do not answer clients outside this node, or refuse them",
    };
    let evidence = [here, elsewhere, policies].concat();
    Some(context.finding_in(Kind::Unanswered, what, case, &[]).evidence(evidence))
}

/// Returns the chains of the firewall with the policy to drop forwarded packets.
fn dropped(kernel: &KernelSettings) -> Vec<String> {
    kernel.forward_drops.iter().map(|chain| format!("the policy of {chain} is drop")).collect()
}

/// Returns the finding with the texts of the catalogue; `None` without evidence, or if the catalogue does not have the
/// reason of a drop, which is then no problem of its own.
fn problem(name: &str, evidence: Vec<String>) -> Option<Finding> {
    let entry = catalogue::packet_problem(name).filter(|_| !evidence.is_empty())?;
    let finding = catalogue::finding(Kind::PacketPath).new_finding(&*entry.problem).severity(entry.severity);
    Some(finding.evidence(evidence).remedy(&*entry.remedy))
}

/// Returns an uplink without nodelb's programs.
fn failed(row: &DeviceRow) -> Option<String> {
    let why = row.error.as_deref().unwrap_or("nodelb attaches them within a second of its coming up");
    (row.role == "uplink" && row.programs != "attached").then(|| format!("{}: {}", row.device, quoted(why)))
}

/// Returns a device at which a program of other software runs before nodelb's.
fn behind(row: &DeviceRow) -> Option<String> {
    let why = row.error.as_deref().filter(|_| row.programs == "attached")?;
    Some(format!("{}: {}", row.device, quoted(why)))
}

/// Returns a device at which XDP is configured and does not run.
fn without_xdp(row: &DeviceRow) -> Option<String> {
    let why = row.xdp.as_deref()?.strip_prefix("none: ")?;
    Some(format!("{}: {}", row.device, quoted(why)))
}

fn excluded(row: &DeviceRow) -> Option<String> {
    let is_excluded = row.reason.as_deref().is_some_and(|reason| reason.contains("packets.except"));
    is_excluded.then(|| format!("the device {}", row.device))
}

fn of_others(row: &DeviceRow) -> Option<String> {
    OTHERS.contains(&&*row.device).then(|| format!("the device {}", row.device))
}

/// Whether packets of clients outside the node to IPv4 addresses of the service, and to IPv6 ones, must be forwarded: the
/// node may receive them, and there is a backend that is not this host itself.
fn forwarded_families(daemon: &Daemon, kernel: &KernelSettings) -> [bool; 2] {
    let ip = |address: &str| Some(address.parse::<L4Addr>().ok()?.addr.ip());
    let is_received = |row: &FrontendRow| {
        // Without the addresses of the host, it is not known to have none of the family.
        let is_global = |own: &Addr| !own.is_loopback() && !own.is_link_local();
        let mut own = kernel.addresses.iter().map(|(_, own)| Addr::from(*own)).filter(is_global).peekable();
        row.kind != "NodePort" || own.peek().is_none() || own.any(|own| own.ip().is_ipv6() == is_ipv6(&row.address))
    };
    let is_forwarded = |row: &&FrontendRow| {
        let mut backends = row.backends.iter().filter_map(|backend| ip(backend));
        row.outside == "Served" && is_received(row) && backends.any(|backend| !kernel.has(backend))
    };
    let forwarded: Vec<_> = daemon.frontends.iter().filter(is_forwarded).collect();
    [false, true].map(|is_v6| forwarded.iter().any(|row| is_ipv6(&row.address) == is_v6))
}

/// Returns the settings without which the kernel forwards no packets of the families that clients use.
fn forwarding(kernel: &KernelSettings, [has_v4, has_v6]: [bool; 2]) -> Vec<String> {
    let settings = [
        ("net.ipv4.ip_forward", kernel.forwards_v4, has_v4),
        ("net.ipv6.conf.all.forwarding", kernel.forwards_v6, has_v6),
    ];
    let disabled = settings.iter().filter(|(_, is_on, is_needed)| *is_needed && *is_on == Some(false));
    disabled.map(|(name, ..)| format!("{name} is 0")).collect()
}

fn snat_overlap(packets: &Packets, kernel: &KernelSettings) -> Option<String> {
    let range = &packets.snat_ports;
    let (first, last) = kernel.local_ports.filter(|local| overlaps(range, *local))?;
    let range = quoted(range);
    Some(format!("packets.snat-ports is {range}, net.ipv4.ip_local_port_range is {first} to {last}"))
}

/// Whether a range such as `10000-29999` has a port of the other one. `auto` never does.
fn overlaps(range: &str, (first, last): (u16, u16)) -> bool {
    let ends = range.split_once('-').and_then(|(a, b)| Some((a.parse::<u16>().ok()?, b.parse::<u16>().ok()?)));
    ends.is_some_and(|(a, b)| a <= last && first <= b)
}

/// Whether the kernel forwards no packet of the client.
fn is_link_local(row: &ConnectionRow) -> bool {
    row.client.parse::<L4Addr>().is_ok_and(|client| client.addr.is_never_forwarded())
}

/// Returns the clients with a link-local address that have got no answer.
fn not_forwarded(packets: &Packets) -> Vec<String> {
    let waits = |row: &&ConnectionRow| row.state == "unanswered" && row.age >= UNANSWERED && is_link_local(row);
    let lines = packets.connections.iter().filter(waits).map(|row| format!("{} to {}", row.client, row.backend));
    lines.collect()
}

/// Returns the backends on this path that have not answered the last connections: those since the one that began last
/// among the answered ones.
fn unanswered(packets: &Packets, path: &str) -> Vec<String> {
    let mut by_backend: BTreeMap<&str, Vec<&ConnectionRow>> = BTreeMap::new();
    for row in packets.connections.iter().filter(|row| row.path == path && !is_link_local(row)) {
        by_backend.entry(&row.backend).or_default().push(row);
    }
    let line = |(backend, rows): (&str, Vec<&ConnectionRow>)| {
        let (waiting, answered): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.state == "unanswered");
        let last = answered.iter().map(|row| row.age).fold(f64::INFINITY, f64::min);
        let is_last = |row: &&&ConnectionRow| row.age >= UNANSWERED && row.age < last;
        let clients: Vec<&str> = waiting.iter().filter(is_last).map(|row| &*row.client).collect();
        let text = format!("{backend} has not answered {}: {}", counted(clients.len(), "connection"), some(&clients));
        (!clients.is_empty()).then_some(text)
    };
    by_backend.into_iter().filter_map(line).collect()
}

/// Returns the uplinks with strict checks of the reverse path. With one uplink, every route back leads there.
fn strict(packets: &Packets, kernel: &KernelSettings) -> Vec<String> {
    let uplinks: Vec<&String> =
        packets.devices.iter().filter(|row| row.role == "uplink").map(|row| &row.device).collect();
    let strict = kernel.strict_devices.iter().filter(|device| uplinks.len() > 1 && uplinks.contains(device));
    strict.map(|device| format!("rp_filter is 1 on {device}")).collect()
}

fn nearly_full(limits: &[LimitRow]) -> Vec<String> {
    let limits = limits.iter().filter(|row| row.config_key.starts_with("packets.") && row.map != EVICTING);
    let full = limits.filter_map(|LimitRow { map, used, limit, config_key }| {
        let used = used.filter(|used| *used * 100 > limit * NEARLY_FULL)?;
        Some(format!("{map}: {used} of {limit} ({config_key})"))
    });
    full.collect()
}

/// Returns the recent drops of the service, by their reason.
fn drops(rows: &[DropRow]) -> BTreeMap<&str, Vec<String>> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.last <= RECENT) {
        let last = lasting(row.last);
        let packets = counted(usize::try_from(row.packets).unwrap_or(usize::MAX), "packet");
        let line = format!("nodelb drops: {packets} {}, the last one {last} ago", row.verdict);
        by_reason.entry(&row.reason).or_default().push(line);
    }
    by_reason
}

#[cfg(test)]
#[path = "../tests/packets.rs"]
mod tests;

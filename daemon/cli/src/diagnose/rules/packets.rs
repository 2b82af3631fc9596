//! Connections of clients outside the node: what prevents their translation, and what prevents their packets from
//! arriving. The catalogue has the texts.

use std::collections::BTreeMap;

use super::context::{Context, lasting, quoted, some};
use super::direct::{self, ip_of};
use crate::diagnose::catalogue;
use crate::diagnose::facts::{
    ConnectionRow, Daemon, DeviceRow, DropRow, FrontendRow, KernelSettings, LimitRow, Packets, is_ipv6,
};
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

/// Seconds after which a handshake without an answer is a problem: the client has repeated its packet twice.
const UNANSWERED: f64 = 3.0;

/// Seconds for which drops are evidence of a present problem, as in `/status`.
const RECENT: f64 = 300.0;

/// Percentage of a map above which it is nearly full.
const NEARLY_FULL: u64 = 80;

/// Devices of network plugins that may translate services: of Cilium, and of Calico with eBPF.
const OTHERS: [&str; 3] = ["cilium_host", "bpfin.cali", "bpfout.cali"];

/// Maps in which the oldest entry makes room.
const EVICTING: &str = "half_open";

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let own = direct::of_backend(context).into_iter();
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
        let mut own = daemon.frontends.iter().filter(|row| row.outside != "NodeOnly").peekable();
        // Another finding says why the service does not have its addresses.
        let is_denied = own.peek().is_some() && own.all(FrontendRow::is_denied);
        return problem(name, vec![quoted(&packets.reason)]).filter(|_| !is_denied).into_iter().collect();
    }
    let kernel = &context.facts.kernel;
    let devices = |line: fn(&DeviceRow) -> Option<String>| packets.devices.iter().filter_map(line).collect();
    let unforwarded = unforwarded_families(daemon, kernel);
    let silent = Silent::new(packets, kernel, unforwarded);
    let is_explained = |reason: &str| match reason {
        "no-forwarding" => unforwarded.contains(&true),
        // Load balancers do not ask nodelb about services of files, and the status says what clients get.
        "no-local-backend" => daemon.is_of_file(),
        // Only then do packets go to machines that may send them back.
        "ttl" => !daemon.frontends.iter().any(|row| row.is_forwarded("direct")),
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
        ("snat-overlap", snat_overlap(packets, kernel).into_iter().collect()),
        ("rp-filter", if silent.is_here() { strict(packets, kernel) } else { Vec::new() }),
        ("link-local", not_forwarded(packets)),
        ("nearly-full", nearly_full(&packets.limits)),
    ];
    let silence = silence(context, daemon, silent, unforwarded.contains(&true));
    let follows = silence.as_ref().filter(|it| it.explained_by.is_some()).map(|it| it.severity);
    let cause = problem("forwarding", forwarding(unforwarded)).map(|cause| {
        let severity = follows.map_or(cause.severity, |severity| severity.max(cause.severity));
        cause.severity(severity)
    });
    let found = problems.into_iter().chain(direct::problems(context, packets)).chain(drops);
    let found = found.filter_map(|(name, evidence)| problem(name, evidence));
    cause.into_iter().chain(found).chain(silence).collect()
}

/// Backends that have not answered clients outside the node, by what is on the way to them.
#[derive(Default)]
struct Silent {
    /// Those with an address of the host itself.
    host: Vec<String>,
    /// Those to which the kernel of this node forwards packets.
    pods: Vec<String>,
    /// Those on other nodes.
    elsewhere: Vec<String>,
    /// Those that get no packets, because the kernel does not forward them.
    unforwarded: Vec<String>,
}

impl Silent {
    /// `unforwarded`: whether the kernel forwards no packets of IPv4, and of IPv6.
    fn new(packets: &Packets, kernel: &KernelSettings, unforwarded: [bool; 2]) -> Self {
        let mut silent = Self::default();
        for path in ["stack", "redirect"] {
            for (backend, line) in unanswered(packets, path) {
                let lines = match path {
                    _ if is_of_host(kernel, backend) => &mut silent.host,
                    _ if unforwarded[usize::from(is_ipv6(backend))] => &mut silent.unforwarded,
                    "redirect" => &mut silent.elsewhere,
                    _ => &mut silent.pods,
                };
                lines.push(line);
            }
        }
        silent
    }

    /// Whether packets to one of them end on this node.
    fn is_here(&self) -> bool {
        !self.host.is_empty() || !self.pods.is_empty()
    }
}

/// Returns that backends do not answer clients outside the node, as the status or connections show: with direct return, only
/// the status does.
fn silence(context: &Context<'_>, daemon: &Daemon, silent: Silent, is_unforwarded: bool) -> Option<Finding> {
    let Silent { host, pods, elsewhere, unforwarded } = silent;
    let kernel = &context.facts.kernel;
    let policies = if pods.is_empty() { Vec::new() } else { dropped(kernel) };
    let is_known = context.problem(catalogue::finding(Kind::Unanswered)).is_some();
    let case = match () {
        () if !policies.is_empty() => "firewall",
        () if !pods.is_empty() => "stack",
        () if !host.is_empty() => "host",
        () if !elsewhere.is_empty() => "redirect",
        () if !is_known => return None,
        () if is_unforwarded => "forwarding",
        () if are_of_host(daemon, kernel) => "host",
        () => direct::way(daemon).unwrap_or_default(),
    };
    let what = match case {
        "redirect" => "a backend on another node has not answered clients outside this node",
        "firewall" | "stack" | "host" => "a backend on this node has not answered clients outside of it",
        _ => "backends do not answer clients outside this node, or refuse them",
    };
    let evidence = [host, pods, elsewhere, unforwarded, policies].concat();
    let finding = context.finding_in(Kind::Unanswered, what, case, &[]).evidence(evidence);
    // Not every problem of the packet path explains it.
    Some(Finding { explained_by: (case == "forwarding").then_some(Kind::PacketPath), ..finding })
}

fn is_of_host(kernel: &KernelSettings, backend: &str) -> bool {
    ip_of(backend).is_some_and(|ip| kernel.has(ip))
}

/// Whether clients outside the node reach only backends with an address of the host itself.
fn are_of_host(daemon: &Daemon, kernel: &KernelSettings) -> bool {
    let served = daemon.frontends.iter().filter(|row| row.outside == "Served");
    let mut backends = served.flat_map(|row| &row.backends).peekable();
    backends.peek().is_some() && backends.all(|backend| is_of_host(kernel, backend))
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

/// Whether packets of clients outside the node to IPv4 addresses of the service, and to IPv6 ones, must be forwarded, and
/// the kernel does not do that: the node may receive them, and there is a backend that is not this host itself.
fn unforwarded_families(daemon: &Daemon, kernel: &KernelSettings) -> [bool; 2] {
    let is_received = |row: &FrontendRow| {
        // Without the addresses of the host, it is not known to have none of the family.
        let is_global = |own: &Addr| !own.is_loopback() && !own.is_link_local();
        let mut own = kernel.addresses.iter().map(|(_, own)| Addr::from(*own)).filter(is_global).peekable();
        row.kind != "NodePort" || own.peek().is_none() || own.any(|own| own.ip().is_ipv6() == is_ipv6(&row.address))
    };
    let is_forwarded = |row: &&FrontendRow| {
        let mut backends = row.backends.iter().filter_map(|backend| ip_of(backend));
        row.outside == "Served" && is_received(row) && backends.any(|backend| !kernel.has(backend))
    };
    let forwarded: Vec<_> = daemon.frontends.iter().filter(is_forwarded).collect();
    let is_needed = |is_v6: bool| forwarded.iter().any(|row| is_ipv6(&row.address) == is_v6);
    [kernel.forwards_v4 == Some(false) && is_needed(false), kernel.forwards_v6 == Some(false) && is_needed(true)]
}

/// Returns the settings because of which the kernel forwards no packets of these families.
fn forwarding(unforwarded: [bool; 2]) -> Vec<String> {
    let settings = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"].into_iter().zip(unforwarded);
    settings.filter(|(_, is_disabled)| *is_disabled).map(|(name, _)| format!("{name} is 0")).collect()
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

/// Returns the backends on this path that have not answered the last connections, each with the evidence: those since the
/// one that began last among the answered ones.
fn unanswered<'p>(packets: &'p Packets, path: &str) -> Vec<(&'p str, String)> {
    let mut by_backend: BTreeMap<&str, Vec<&ConnectionRow>> = BTreeMap::new();
    for row in packets.connections.iter().filter(|row| row.path == path && !is_link_local(row)) {
        by_backend.entry(&row.backend).or_default().push(row);
    }
    let line = |(backend, rows): (&'p str, Vec<&ConnectionRow>)| {
        let (waiting, answered): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.state == "unanswered");
        let last = answered.iter().map(|row| row.age).fold(f64::INFINITY, f64::min);
        let is_last = |row: &&&ConnectionRow| row.age >= UNANSWERED && row.age < last;
        let clients: Vec<&str> = waiting.iter().filter(is_last).map(|row| &*row.client).collect();
        let text = format!("{backend} has not answered {}: {}", counted(clients.len(), "connection"), some(&clients));
        (!clients.is_empty()).then_some((backend, text))
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
        let of = row.service.as_ref().map(|service| format!(" of {}", quoted(service))).unwrap_or_default();
        let line = format!("nodelb drops: {packets}{of} {}, the last one {last} ago", fate(&row.verdict));
        by_reason.entry(&row.reason).or_default().push(line);
    }
    by_reason
}

/// Returns what nodelb did with packets of this verdict.
fn fate(verdict: &str) -> &str {
    match verdict {
        "rst" => "refused with RST",
        "icmp" => "answered with ICMP",
        "passed" => "passed to the network stack",
        verdict => verdict,
    }
}

#[cfg(test)]
#[path = "../tests/packets.rs"]
mod tests;

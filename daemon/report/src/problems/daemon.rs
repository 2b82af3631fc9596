//! Problems of the daemon and the node, as opposed to those of single services.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::ipsec;
use super::outside;
use super::problem::{DROPS_WITHIN, DroppedPackets, HOOKS, Observed, Problem, SHOWN, TableUsage, Untranslated};
use super::reason::{Reason, Severity};
use crate::time::Time;
use nodelb_core::history::{History, Latencies, Record, SLOW, What};
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::model::uplink::Uplink;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::entries::MapState;
use nodelb_core::text::{counted, listed};

/// A watch counts as stale after this time without news of its kind of objects, in milliseconds.
const STALE_AFTER: u64 = 600_000;
/// The window for unexpected ends of the daemon, in milliseconds, and their number that is a problem.
const CRASHES: (u64, usize) = (1_800_000, 3);
/// The window for changes by other programs, in milliseconds.
const EXTERNAL_WITHIN: u64 = 900_000;
/// The window for slow changes, in milliseconds.
const SLOW_WITHIN: u64 = 300_000;
/// The file descriptors count as nearly used up from this usage, in percent.
const FILES_PERCENT: u64 = 80;

pub(super) fn problems(observed: &Observed) -> Vec<Problem> {
    let mut found = Vec::new();
    failed_checks(observed, &mut found);
    apiserver(observed, &mut found);
    sources(observed, &mut found);
    node(observed, &mut found);
    tables(observed, &mut found);
    recent(observed, &mut found);
    process(observed, &mut found);
    found
}

fn failed_checks(observed: &Observed, found: &mut Vec<Problem>) {
    for check in observed.checks.iter().filter(|check| !check.passed) {
        let (reason, object) = match check.name.as_str() {
            "loop" => (Reason::LoopStuck, "nodelb"),
            "reconcile" => (Reason::NotSynced, "nodelb"),
            "devices" => (Reason::DevicesFailed, "devices"),
            _ => (Reason::HooksNotInEffect, "hooks"),
        };
        found.push(Problem { blocks_readiness: true, ..Problem::new(reason, object, &check.detail) });
    }
    if observed.is_in_memory {
        let cause = "the datapath is in memory: connections on this node are not translated";
        found.push(Problem::new(Reason::NotTranslated, "datapath", cause));
    }
}

/// A missing apiserver also explains why Kubernetes is not synced.
fn apiserver(observed: &Observed, found: &mut Vec<Problem>) {
    if let Some((since, why)) = observed.apiserver.as_ref().and_then(|state| state.not_renewed.as_ref()) {
        found.push(Problem::new(Reason::CredentialsRefused, "kubernetes", why).since(Some(*since)));
    }
    let Some(state) = observed.apiserver.as_ref().filter(|state| state.in_use.is_none()) else { return };
    let why = match (&state.problem, state.last_response) {
        (Some(why), _) => why,
        (None, Some(_)) => "the last one in use does not respond any more",
        // The first attempt has not ended.
        (None, None) => return,
    };
    let mut problem = Problem::new(Reason::NoApiserver, "kubernetes", format!("no API server in use: {why}"));
    problem.since = state.lost;
    let facts = &observed.snapshot.facts;
    let mut unsynced = observed.snapshot.config.sources.iter().filter(|source| !facts.is_synced(**source)).peekable();
    if unsynced.peek().is_some() && unsynced.all(|source| *source == Source::Kubernetes) {
        let explained = found.iter().position(|problem| problem.reason == Reason::NotSynced);
        problem.blocks_readiness = explained.map(|at| found.remove(at)).is_some_and(|it| it.blocks_readiness);
    }
    if problem.blocks_readiness {
        problem.severity = Severity::Critical;
    }
    found.push(problem);
}

fn sources(observed: &Observed, found: &mut Vec<Problem>) {
    let is_cut_off = observed.apiserver.as_ref().is_some_and(|state| state.in_use.is_none());
    for report in observed.sources.iter().filter(|report| report.source == Source::Files || !is_cut_off) {
        found.extend(source(report, observed));
    }
}

pub(super) fn source(report: &SourceReport, observed: &Observed) -> Option<Problem> {
    let since = Some(Time::from_seconds(report.since));
    if observed.snapshot.absent.contains(&report.source) {
        let cause = report.problems.join("; ");
        return Some(Problem::new(Reason::SourceAbsent, report.source.to_string(), cause).since(since));
    }
    let object = match (report.kind, report.source) {
        (Some(_), Source::Kubernetes) => format!("{}/{}", report.source, report.path),
        _ => Path::new(&report.path).file_name().map_or_else(|| report.path.clone(), |it| it.display().to_string()),
    };
    let (reason, effect) = match (report.kind, report.state) {
        (None, SourceState::Error) => (Reason::FileNotServed, "not served"),
        (None, SourceState::LastGood) => (Reason::FileNotServed, "the last valid version is served"),
        (Some("dns"), SourceState::Error) => (Reason::SourceFailing, "no name has an address"),
        (Some("dns"), SourceState::LastGood) => (Reason::SourceFailing, "the known addresses are served"),
        // It waits for an API server, which may respond to the first request.
        (Some(_), SourceState::Error | SourceState::LastGood) if report.problems.is_empty() => return None,
        (Some(_), SourceState::Error | SourceState::LastGood) => {
            (Reason::SourceFailing, "the last known state is served")
        }
        (_, SourceState::Ok) if !report.problems.is_empty() => (Reason::SourceProblems, "not served as described"),
        (_, SourceState::Ok) => return stale(report, object, observed),
    };
    // A key with a typo is the cause of what the file then lacks.
    let unknown = report.problems.iter().find(|problem| problem.contains(": unknown key `"));
    let cause = match (unknown.or(report.problems.first()), report.problems.len()) {
        (None, _) => effect.to_owned(),
        (Some(problem), 0 | 1) => format!("{effect}: {problem}"),
        (Some(problem), number) => format!("{effect}: {problem} (and {} more)", number - 1),
    };
    let mut problem = Problem::new(reason, object, cause).since(since);
    // The maps may still have what an earlier run has read.
    if reason == Reason::FileNotServed
        && report.state == SourceState::Error
        && observed.snapshot.kept().next().is_none()
    {
        problem.severity = Severity::Critical;
    }
    Some(if report.kind == Some("dns") { Problem { command: "nodelb dns".into(), ..problem } } else { problem })
}

fn stale(report: &SourceReport, object: String, observed: &Observed) -> Option<Problem> {
    let (received, now) = (report.last_received?, observed.clocks);
    if now.moment <= received.plus(STALE_AFTER) {
        return None;
    }
    let since = Some(now.time_of(received));
    Some(match report.source {
        Source::Kubernetes => Problem::new(Reason::WatchStale, object, "nothing received for 10 minutes").since(since),
        Source::Files => {
            let problem = Problem::new(Reason::WatchStale, object, "not read for 10 minutes").since(since);
            Problem { command: "nodelb sources".into(), ..problem }
        }
    })
}

fn node(observed: &Observed, found: &mut Vec<Problem>) {
    let snapshot = &observed.snapshot;
    let facts = &snapshot.facts;
    if facts.is_node_missing {
        let cause = "Kubernetes has no Node of this name: load balancers stop sending traffic here; set node.name if \
                     this node has another name, or kubernetes.node-object to false if it has no kubelet";
        let since = facts.node_missing_since.map(|since| observed.clocks.time_of(since));
        found.push(Problem::new(Reason::NodeMissing, format!("node {}", facts.node().name), cause).since(since));
    }
    found.extend(without_address(observed));
    if let Some((since, why)) = &observed.unsent_checks {
        found.push(Problem::new(Reason::ChecksUnsent, "health checks", why).since(Some(*since)));
    }
    for (address, process) in &*facts.bound {
        // Without its owner's name, the command that shows more would not know what it is about.
        let owner = snapshot.rows.get(address).and_then(|row| row.owner());
        let object = owner.map_or_else(|| address.to_string(), |(claim, _)| claim.key.service.to_string());
        let since = facts.bound_since.get(address).map(|since| observed.clocks.time_of(*since));
        let problem = Problem::new(Reason::NodePortBound, object, format!("{address}: {process}")).since(since);
        found.push(if owner.is_some() { problem } else { Problem { command: "nodelb frontends".into(), ..problem } });
    }
    for (addr, error) in snapshot.unanswered_node_addrs() {
        let cause = format!("NodePorts do not work on this address: {error}");
        found.push(Problem::new(Reason::NodeAddressUnanswered, addr.to_string(), cause));
    }
    let is_missing = |uplink: &&Uplink| {
        let has = |state: &MapState| state.uplinks.contains_key(&uplink.ifindex);
        has(&snapshot.desired) && !has(&snapshot.realised)
    };
    for device in facts.uplinks.iter().filter(is_missing).map(|uplink| &*uplink.name) {
        let cause = "the kernel maps do not contain this device: backends beyond it cannot be reached from outside";
        found.push(Problem::new(Reason::ReconcileFailing, device, cause));
    }
    for (service, error) in &facts.health_check_port_errors {
        let object = service.as_ref().map_or_else(|| "healthz".to_owned(), ToString::to_string);
        let problem = Problem::new(Reason::HealthCheckPortClosed, object, &**error);
        // kube-proxy answers as long as it runs, and nodelb tries again every second.
        let severity = if observed.has_other_proxy { Severity::Notice } else { problem.severity };
        found.push(Problem { severity, ..problem });
    }
}

/// No address leads to other machines, and a service has a backend on one, or in a pod.
fn without_address(observed: &Observed) -> Option<Problem> {
    let snapshot = &observed.snapshot;
    let node = snapshot.facts.node();
    let is_of_host = |addr: &Addr| addr.is_loopback() || addr.is_link_local();
    // The node has no name before its first report.
    if node.name.is_empty() || !observed.is_cut_off && !node.addresses.iter().all(is_of_host) {
        return None;
    }
    let mut slots = snapshot.desired.services.values().flat_map(|entry| entry.cluster.iter());
    let cause = "no device that leads to other machines is up and has an address: backends on other machines are not \
                 reached, and no client outside the node reaches a service";
    let is_needed = slots.any(|slot| !is_of_host(&slot.addr.addr));
    is_needed.then(|| Problem::new(Reason::NodeWithoutAddress, format!("node {}", node.name), cause))
}

fn tables(observed: &Observed, found: &mut Vec<Problem>) {
    for table in observed.tables.iter().filter(|table| table.is_nearly_full()) {
        let TableUsage { name, used, limit, key, full_since, .. } = table;
        let cause = format!("{} of {limit} entries in use: raise {key} and restart nodelb", used.unwrap_or_default());
        found.push(Problem::new(Reason::MapNearlyFull, format!("map {name}"), cause).since(*full_since));
    }
    let snapshot = &observed.snapshot;
    if !snapshot.ringless.is_empty() {
        let owners = snapshot.ringless.keys().filter_map(|id| snapshot.owners.get(id));
        let services: BTreeSet<&ServiceName> = owners.map(|owner| &owner.key.service).collect();
        let cause = format!(
            "no room for the consistent choice of {}: raise datapath.max-slots and restart nodelb",
            listed(services, SHOWN)
        );
        found.push(Problem::new(Reason::NotConsistent, "map slots", cause));
    }
    observed.drops.iter().for_each(|drops| found.extend(dropped(drops, observed)));
    found.extend(ipsec::protected(observed));
    found.extend(outside::not_forwarded(observed));
    found.extend(outside::firewalled(observed));
    outside::without_programs(observed, found);
    found.extend(outside::strict_devices(observed));
    if let Some(failure) = &observed.packet_failure {
        found.push(Problem::new(Reason::PacketPathFailed, "devices", failure));
    }
    if let Some(Untranslated { reason, is_draining, is_of_kubernetes }) = &observed.untranslated {
        // Other service proxies do not know the services of files.
        let is_others = observed.has_other_proxy && (*is_of_kubernetes || !observed.summary.serves_outside_from_files);
        if *is_draining || !is_others {
            let problem = Problem::new(Reason::OutsideUntranslated, "devices", reason);
            let severity = if is_others { Severity::Notice } else { problem.severity };
            found.push(Problem { severity, ..problem });
        }
    }
    if let Some(missing) = &observed.missing_devices {
        found.push(Problem::new(Reason::DeviceMissing, "devices", missing));
    }
    if let Some(foreign) = &observed.foreign_pins {
        found.push(Problem::new(Reason::PinsNotOwn, "pins", foreign));
    }
    for program in &observed.programs_ahead {
        found.push(Problem::new(Reason::ProgramInFront, "devices", program));
    }
    for device in &observed.xdp_taken {
        found.push(Problem::new(Reason::XdpTaken, "devices", device));
    }
    let [first, later] = &observed.socket_programs;
    let groups = [
        (first, "before", "nodelb leaves the addresses that they translate to them"),
        (later, "after", "they see the backends of nodelb's services"),
    ];
    for (programs, order, effect) in groups.into_iter().filter(|(programs, ..)| !programs.is_empty()) {
        let cause = format!("programs of other software run {order} nodelb's: {}; {effect}", listed(programs, SHOWN));
        found.push(Problem::new(Reason::HooksShared, "hooks", cause));
    }
    if observed.sweep_failures > 0 {
        let cause = format!("{} searches for ended connections failed", observed.sweep_failures);
        found.push(Problem::new(Reason::SweepFailing, "connections", cause));
    }
}

/// Packets that were not served, as long as their cause may last.
fn dropped(drops: &DroppedPackets, observed: &Observed) -> Option<Problem> {
    let DroppedPackets { reason, verdict, packets, first, last } = drops;
    let (kind, cause) = match *reason {
        "no-port" => (
            Reason::PacketPortsExhausted,
            "no source port is free towards a backend: use more backends, externalTrafficPolicy Local, or a larger range \
             in packets.snat-ports"
                .to_owned(),
        ),
        "no-route" => (Reason::PacketsNotRouted, "this node has no route to a backend or to a client".to_owned()),
        "encapsulation" => (
            Reason::PacketsNotRouted,
            "the route to a backend or to a client has an encapsulation, which packets cannot get past the network stack"
                .to_owned(),
        ),
        "no-forwarding" => (
            Reason::PacketsNotRouted,
            // What is known has a problem of its own, whether packets were lost or not.
            match &observed.not_forwarding {
                None => "net.ipv4.ip_forward, or its IPv6 equivalent, is 0 on a device".to_owned(),
                Some(_) => return None,
            },
        ),
        _ => return None,
    };
    if last.age(observed.clocks.time) > DROPS_WITHIN {
        return None;
    }
    // Only a short run of them has no gap for sure.
    let since = (first.age(*last) <= DROPS_WITHIN).then_some(*first);
    let lost = match *verdict {
        "passed" => "of clients lost",
        verdict => verdict,
    };
    let packets = counted(usize::try_from(*packets).unwrap_or(usize::MAX), "packet");
    Some(Problem::new(kind, "packets", format!("{cause}; {packets} {lost}")).since(since))
}

fn recent(observed: &Observed, found: &mut Vec<Problem>) {
    let now = observed.clocks.time;
    let first = |window: u64| Time(now.0.saturating_sub(window));
    let crashes = crashes(&observed.history, first(CRASHES.0));
    if crashes >= CRASHES.1 {
        let cause = format!("ended unexpectedly {crashes} times in 30 minutes");
        found.push(Problem::new(Reason::Restarts, "nodelb", cause));
    }
    let recent = observed.history.of_node().take_while(|record| Time(record.at) >= first(EXTERNAL_WITHIN));
    let mut repaired = recent.filter(|record| record.event.what == What::Repaired);
    if let Some(last) = repaired.next() {
        let what = last.event.detail.as_deref().unwrap_or("an entry");
        let more = match repaired.count() {
            0 => String::new(),
            more => format!(" (and {more} more changes in 15 minutes)"),
        };
        let (object, what) = match what.strip_prefix(HOOKS) {
            Some(what) => ("hooks", what),
            None => ("kernel maps", what),
        };
        let problem = Problem::new(Reason::ExternalChanges, object, format!("repaired: {what}{more}"));
        found.push(problem.since(Some(Time(last.at))));
    }
    let Latencies { measured, slow, last_slow } = observed.history.latencies_since(first(SLOW_WITHIN).0);
    if slow * 100 > measured {
        let cause = format!("{slow} of {measured} changes took more than {} s until the kernel had them", SLOW / 1_000);
        found.push(Problem::new(Reason::ProgrammingSlow, "kernel maps", cause).since(last_slow.map(Time)));
    }
}

/// The number of starts since this time before which no signal had stopped the daemon.
fn crashes(history: &History, first: Time) -> usize {
    let runs = history.of_node().filter(|it| matches!(it.event.what, What::Started | What::Stopped));
    let runs: Vec<&Arc<Record>> = runs.collect();
    let is_crash = |pair: &&[&Arc<Record>]| pair.iter().all(|record| record.event.what == What::Started);
    runs.windows(2).filter(is_crash).take_while(|pair| Time(pair[0].at) >= first).count()
}

fn process(observed: &Observed, found: &mut Vec<Problem>) {
    if observed.is_reaper_down {
        let cause = "stale sockets stay open: the process that closes them has stopped";
        found.push(Problem::new(Reason::ReaperDown, "reaper", cause));
    }
    if let Some((used, limit)) = observed.open_files.filter(|(used, limit)| used * 100 > limit * FILES_PERCENT) {
        let cause = format!("{used} of {limit} file descriptors are open: raise LimitNOFILE= of the unit");
        found.push(Problem::new(Reason::FilesShort, "nodelb", cause));
    }
    for (reason, files) in [(Reason::StateUnwritten, &observed.unwritten), (Reason::StateUnread, &observed.unread)] {
        let [(_, first), more @ ..] = &files[..] else { continue };
        let more = if more.is_empty() { String::new() } else { format!(" (and {})", counted(more.len(), "more file")) };
        let since = files.iter().map(|(since, _)| *since).min();
        found.push(Problem::new(reason, "state.directory", format!("{first}{more}")).since(since));
    }
    if let Some((since, why)) = &observed.reloads.refused {
        // Only a reload reads the file again.
        let remedy = "when `nodelb check-config` accepts it, `systemctl reload nodelb` loads it";
        let cause =
            format!("not reloaded, and a start with the configuration that was read would fail: {why}; {remedy}");
        found.push(Problem::new(Reason::ConfigRefused, "configuration", cause).since(Some(*since)));
    }
    if let Some((since, keys)) = &observed.reloads.restart {
        let cause = format!("restart needed for: {}", listed(keys, SHOWN));
        found.push(Problem::new(Reason::RestartPending, "configuration", cause).since(Some(*since)));
    }
    for (address, why) in &observed.closed_listeners {
        found.push(Problem::new(Reason::ListenerClosed, address, format!("admin.listen cannot be opened: {why}")));
    }
}

//! What the daemon does with the service: addresses that it does not serve, backends that it holds or refuses, and
//! whether the maps contain what the daemon wants.

use std::collections::BTreeSet;

use nodelb_core::compile::select::Choice;
use nodelb_core::explain::differences::CHECKS_AT_ONCE;
use nodelb_core::holds::says_emptied;
use nodelb_core::state::status::Status;

use super::{Context, durations, is_last_resort, is_ready, quoted, shown, some};
use crate::diagnose::facts::{BackendRow, Daemon, FrontendRow, Maps};
use crate::diagnose::finding::{Finding, Kind, Severity};
use crate::diagnose::rows;

/// Time that a change may take to reach the kernel, in seconds.
const TIMEOUT: f64 = 5.0;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(daemon) = context.daemon else { return Vec::new() };
    let mut found = Vec::new();
    found.extend(not_served(daemon));
    found.extend(described_twice(daemon));
    found.extend(held(daemon));
    found.extend(slow(daemon));
    found.extend(differs(daemon));
    found.extend(unusable(daemon));
    found.extend(remembers_else(context, daemon));
    found.extend(without_backends(daemon));
    found
}

fn of_status(daemon: &Daemon, status: Status) -> Vec<&FrontendRow> {
    daemon.frontends.iter().filter(|row| row.status == Some(status)).collect()
}

fn is_in_maps(row: &FrontendRow) -> bool {
    row.status.is_some_and(Status::is_in_maps)
}

fn one_line(row: &FrontendRow) -> String {
    let why = row.error.as_deref().map_or_else(String::new, |error| format!(": {}", quoted(error)));
    format!("{} ({}) is {} for {}{why}", shown(&row.address), shown(&row.kind), word(row.status), lasting(row.since))
}

/// Addresses that another service owns, and those that nodelb serves for no service.
fn not_served(daemon: &Daemon) -> Vec<Finding> {
    let failed = daemon.frontends.iter().filter(|row| row.status.is_some_and(Status::is_denied));
    let is_served = daemon.frontends.iter().any(is_in_maps);
    let severity = if is_served { Severity::Warning } else { Severity::Critical };
    let owner = |row: &FrontendRow| {
        let owns = |rival: &&FrontendRow| {
            let is_denied = rival.status.is_some_and(Status::is_denied);
            rival.address == row.address && rival.service != row.service && !is_denied
        };
        daemon.rivals.iter().find(owns)
    };
    let (lost, refused): (Vec<&FrontendRow>, Vec<&FrontendRow>) = failed.partition(|row| owner(row).is_some());
    let mut found = Vec::new();
    if let Some(owner) = lost.first().and_then(|row| owner(row)) {
        let what = format!("address {} belongs to another service, {}", lost.len(), shown(&owner.service));
        found.push(
            Finding::new(severity, Kind::AddressConflict, what)
                .evidence(lost.iter().map(|row| one_line(row)))
                .evidence([format!(
                    "{} ({}) is {} for {}",
                    shown(&owner.address),
                    shown(&owner.kind),
                    word(owner.status),
                    shown(&owner.service)
                )])
                .remedy(
                    "change the address of one of the two services; the older one owns it, and the other takes over \
                     when the older one gives it up",
                ),
        );
    }
    if !refused.is_empty() {
        let what = format!("nodelb does not serve {}", some(refused.iter().map(|row| shown(&row.address))));
        found.push(
            Finding::new(severity, Kind::AddressRefused, what)
                .evidence(refused.iter().map(|row| one_line(row)))
                .remedy("follow the reason, or remove the address from the service"),
        );
    }
    found
}

/// Two sources define the service.
fn described_twice(daemon: &Daemon) -> Option<Finding> {
    let row = daemon.services.iter().find(|row| daemon.services.len() > 1 && row.status == Some(Status::Conflict))?;
    let what = format!("it is defined twice; the definition in {} is not used", shown(&row.origin));
    let error = row.error.iter().map(|error| quoted(error));
    Some(Finding::new(Severity::Warning, Kind::AddressConflict, what).evidence(error).remedy("remove one of the two"))
}

fn held(daemon: &Daemon) -> Option<Finding> {
    let rows = of_status(daemon, Status::Held);
    let first = rows.first()?;
    if first.error.as_deref().is_some_and(|error| !says_emptied(error)) {
        let what = format!(
            "its last known backends are held, because its source cannot tell the current ones since {}",
            lasting(first.since)
        );
        let finding = Finding::new(Severity::Warning, Kind::Held, what).evidence(rows.iter().map(|row| one_line(row)));
        return Some(finding.remedy("correct the DNS records or servers that the status names; see nodelb dns"));
    }
    let what = format!(
        "it leads to an apiserver, and its last known backends are held since its source emptied it {} ago",
        lasting(first.since)
    );
    Some(
        Finding::new(Severity::Warning, Kind::Held, what)
            .evidence(rows.iter().map(|row| one_line(row)))
            .remedy("the hold ends when the service has backends again; find the client that emptied it"),
    )
}

fn slow(daemon: &Daemon) -> Option<Finding> {
    let rows: Vec<_> = of_status(daemon, Status::Pending).into_iter().filter(|row| row.since >= TIMEOUT).collect();
    let first = rows.first()?;
    let what = format!("{} is not in the kernel yet", shown(&first.address));
    Some(
        Finding::new(Severity::Critical, Kind::KernelDiffers, what)
            .evidence(rows.iter().map(|row| one_line(row)))
            .remedy("nodelb retries; see journalctl -u nodelb for the error"),
    )
}

/// The maps do not contain what the daemon wrote. `/diff` says so, which reads them more than once. The rows of
/// `/frontends` and `/maps` are from two moments and differ during any rollout.
fn differs(daemon: &Daemon) -> Option<Finding> {
    let maps = daemon.maps.as_ref()?;
    let written = daemon.frontends.iter().filter(|row| is_in_maps(row));
    let evidence: Vec<String> = written.filter_map(|row| difference(row, maps)).collect();
    let rows = daemon.differences.iter().flatten().filter(|row| rows::is_about_maps(row));
    let reported: Vec<String> = rows.take(5).map(|row| format!("/diff: {}", rows::one_line(row))).collect();
    if evidence.is_empty() || reported.is_empty() {
        return None;
    }
    let what = "the kernel maps differ from what the daemon wrote: another process changed them";
    Some(
        Finding::new(Severity::Critical, Kind::KernelDiffers, what)
            .evidence(evidence)
            .evidence(reported)
            .evidence(traces(daemon))
            .remedy(format!("the daemon compares and repairs the maps every few minutes; {CHECKS_AT_ONCE}")),
    )
}

/// Returns what happens to connections according to the daemon.
fn traces(daemon: &Daemon) -> impl Iterator<Item = String> {
    daemon.traces.iter().map(|row| format!("/trace: {}", rows::one_line(row)))
}

fn difference(row: &FrontendRow, maps: &Maps) -> Option<String> {
    let address = shown(&row.address);
    let Some(leads_to) = maps.frontends.get(&row.address) else {
        return Some(format!("{address} is not in the kernel: connections to it are not translated"));
    };
    let view = if row.flags.iter().any(|flag| flag == "Local") { "local" } else { "cluster" };
    let held: BTreeSet<&str> =
        maps.slots.get(&(leads_to.clone(), view.to_owned())).into_iter().flatten().map(String::as_str).collect();
    let wanted: BTreeSet<&str> = row.backends.iter().map(String::as_str).collect();
    if held == wanted {
        return None;
    }
    let each =
        |of: &BTreeSet<&str>| if of.is_empty() { "no backend".into() } else { some(of.iter().map(|it| shown(it))) };
    Some(format!("{address} leads to {} in the kernel, to {} as the daemon has it", each(&held), each(&wanted)))
}

/// There are backends, but none may be used.
fn unusable(daemon: &Daemon) -> Option<Finding> {
    let is_chosen = |row: &&BackendRow| matches!(row.choice, Some(Choice::Selected | Choice::Held));
    let refused: Vec<&BackendRow> = daemon
        .backends
        .iter()
        .filter(|row| matches!(row.choice, Some(Choice::Refused | Choice::Quarantined | Choice::Maintenance)))
        .collect();
    if refused.is_empty() {
        return None;
    }
    let is_left = daemon.backends.iter().any(|row| is_chosen(&row));
    let severity = if is_left { Severity::Warning } else { Severity::Critical };
    let what = format!(
        "{}: {}",
        if is_left { "some backends are not used" } else { "no backend is used" },
        match refused[0].choice {
            Some(Choice::Refused) => "it rejects addresses that it may not or cannot connect to",
            Some(Choice::Quarantined) => "they failed their health checks",
            _ => "they are in maintenance",
        }
    );
    let each = refused.iter().take(10).map(|row| {
        let why = row.reason.as_deref().map_or_else(String::new, |why| format!(": {}", quoted(why)));
        format!("{} is {}{why}", shown(&row.address), word(row.choice))
    });
    Some(
        Finding::new(severity, Kind::BackendsUnusable, what)
            .evidence(each)
            .remedy("do what the reasons say; see `nodelb backends`"),
    )
}

/// The cluster's present state differs from what the daemon uses.
fn remembers_else(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    context.slices.filter(|_| context.is_for_proxies() && !daemon.services.is_empty() && !context.is_held())?;
    let first = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| endpoint.addresses.first().cloned();
    let named: BTreeSet<String> = context.endpoints().filter_map(|endpoint| first(&endpoint)).collect();
    let usable = context.endpoints().filter(|it| is_ready(it) || is_last_resort(it));
    let usable: BTreeSet<String> = usable.filter_map(|endpoint| first(&endpoint)).collect();
    let host =
        |row: &BackendRow| row.address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']).to_owned());
    let known: BTreeSet<String> = daemon.backends.iter().filter_map(host).collect();
    let chosen = daemon.backends.iter().filter(|row| row.choice == Some(Choice::Selected));
    let chosen: BTreeSet<String> = chosen.filter_map(host).collect();
    // A port that no slice has hides every backend; another rule reports that.
    let unknown = usable.difference(&known).filter(|_| !known.is_empty());
    let unknown: Vec<String> = unknown.map(|address| format!("{}: unknown to the daemon", shown(address))).collect();
    let outlived: Vec<String> = chosen
        .difference(&named)
        .map(|address| format!("{}: used by the daemon, not in any slice", shown(address)))
        .collect();
    if unknown.is_empty() && outlived.is_empty() {
        return None;
    }
    let what = "the daemon and Kubernetes have different backends";
    Some(Finding::new(Severity::Warning, Kind::MemoryDiffers, what).evidence(unknown).evidence(outlived).remedy(
        "check again in a few seconds; if the difference remains, the watch is stale: see `nodelb sources` and `nodelb \
         apiservers`",
    ))
}

/// The service has no backends, whatever the reason.
fn without_backends(daemon: &Daemon) -> Option<Finding> {
    let is_local = |row: &FrontendRow| row.flags.iter().any(|flag| flag == "Local");
    // Another rule reports that all backends are on other nodes.
    let is_elsewhere = daemon.backends.iter().any(|row| matches!(row.choice, Some(Choice::Selected | Choice::Held)));
    let is_empty = |row: &&FrontendRow| is_in_maps(row) && row.backends.is_empty() && !(is_elsewhere && is_local(row));
    let rows: Vec<_> = daemon.frontends.iter().filter(is_empty).collect();
    let first = rows.first()?;
    let what = format!("{} has no backend: a connection from this node gets ECONNREFUSED", shown(&first.address));
    let why = daemon.backends.iter().take(5).map(|row| format!("{} is {}", shown(&row.address), word(row.choice)));
    Some(
        Finding::new(Severity::Critical, Kind::NoBackends, what)
            .evidence(rows.iter().skip(1).take(5).map(|row| format!("nor has {}", shown(&row.address))))
            .evidence(why)
            .evidence(traces(daemon))
            .remedy(
                "see the previous findings; `nodelb backends --service NAMESPACE/NAME` shows why each backend is \
                 not used",
            ),
    )
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age, shown to the second")]
fn lasting(seconds: f64) -> String {
    durations::human((seconds.max(0.0) * 1000.0) as u64)
}

fn word(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".into(), |value| value.to_string())
}

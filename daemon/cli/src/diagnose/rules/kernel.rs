//! What the daemon does with the service: addresses that it does not serve, backends that it holds or refuses, and
//! whether the maps contain what the daemon wants.

use std::collections::BTreeSet;

use nodelb_core::compile::select::Choice;
use nodelb_core::holds::says_emptied;
use nodelb_core::state::status::Status;
use nodelb_report::explain::differences::CHECKS_AT_ONCE;

use super::context::{Context, is_last_resort, quoted, shown, some};
use super::facts::place;
use crate::diagnose::facts::{BackendRow, Daemon, FrontendRow, Maps};
use crate::diagnose::objects::is_ready;
use crate::diagnose::rows;
use nodelb_core::durations;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Time that a change may take to reach the kernel, in seconds.
const TIMEOUT: f64 = 5.0;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(daemon) = context.daemon else { return Vec::new() };
    let mut found = Vec::new();
    found.extend(not_served(context, daemon));
    found.extend(described_twice(context, daemon));
    found.extend(held(context, daemon));
    found.extend(slow(context, daemon));
    found.extend(differs(context, daemon));
    found.extend(unusable(context, daemon));
    found.extend(remembers_else(context, daemon));
    found.extend(without_backends(context, daemon));
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
fn not_served(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
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
    if let Some((row, owner)) = lost.first().and_then(|row| Some((row, owner(row)?))) {
        let what = format!("{} is owned by {}", shown(&row.address), shown(&owner.service));
        found.push(with_rows(context.finding(Kind::AddressConflict, what).severity(severity), &lost));
    }
    if !refused.is_empty() {
        let what = format!("nodelb does not serve {}", some(refused.iter().map(|row| shown(&row.address))));
        found.push(with_rows(context.finding(Kind::AddressRefused, what).severity(severity), &refused));
    }
    found
}

/// Adds the rows as evidence, except for those the error of which the finding already says.
fn with_rows(finding: Finding, rows: &[&FrontendRow]) -> Finding {
    let is_new = |row: &&&FrontendRow| row.error.as_ref().is_none_or(|error| !finding.what.contains(error));
    let new: Vec<String> = rows.iter().filter(is_new).map(|row| one_line(row)).collect();
    finding.evidence(new)
}

/// Two sources define the service.
fn described_twice(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let row = daemon.services.iter().find(|row| daemon.services.len() > 1 && row.status == Some(Status::Conflict))?;
    // The words of `/status`, which `/services` has, too.
    let what = match &row.error {
        Some(error) => quoted(error),
        None => format!("it is defined twice; the definition in {} is not used", shown(&row.origin)),
    };
    let finding = Finding { what, ..context.finding(Kind::DefinedTwice, "") };
    Some(finding.evidence([format!("not used: {}", shown(&row.origin))]))
}

fn held(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let rows = of_status(daemon, Status::Held);
    let first = rows.first()?;
    let is_emptied = first.error.as_deref().is_none_or(says_emptied);
    let what = match is_emptied {
        true => "held: its source emptied it, and its last known backends stay in use",
        false => "held: DNS servers give no current answer, and its last known backends stay in use; see nodelb dns",
    };
    let addresses = some(rows.iter().map(|row| shown(&row.address)));
    let finding = context.finding(Kind::Held, what).evidence([format!("its addresses: {addresses}")]);
    Some(if is_emptied { finding } else { with_rows(finding, &rows) })
}

fn slow(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let rows: Vec<_> = of_status(daemon, Status::Pending).into_iter().filter(|row| row.since >= TIMEOUT).collect();
    let what = format!("{}: not in the kernel yet", shown(&rows.first()?.address));
    Some(with_rows(context.finding(Kind::Pending, what), &rows))
}

/// The maps do not contain what the daemon wrote. `/diff` says so, which reads them more than once. The rows of
/// `/frontends` and `/maps` are from two moments and differ during any rollout.
fn differs(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let maps = daemon.maps.as_ref()?;
    let written = daemon.frontends.iter().filter(|row| is_in_maps(row));
    let evidence: Vec<String> = written.filter_map(|row| difference(row, maps)).collect();
    let rows = daemon.differences.iter().flatten().filter(|row| rows::is_about_maps(row));
    let reported: Vec<String> = rows.take(5).map(rows::difference).collect();
    if evidence.is_empty() || reported.is_empty() {
        return None;
    }
    let what = "the kernel maps differ from what the daemon wrote: another process changed them";
    let finding = context.finding_in(Kind::KernelDiffers, what, "", &[("at-once", CHECKS_AT_ONCE)]);
    Some(finding.evidence(evidence).evidence(reported).evidence(traces(daemon)))
}

/// Returns what happens to connections according to the daemon.
fn traces(daemon: &Daemon) -> impl Iterator<Item = String> {
    daemon.traces.iter().filter_map(rows::trace)
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
fn unusable(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
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
    // Health checks that fail for some backends have a problem of their own.
    let kind = match refused[0].choice {
        Some(Choice::Quarantined) if is_left => Kind::BackendsQuarantined,
        _ => Kind::BackendsUnusable,
    };
    let what = format!(
        "{}: {}",
        if is_left { "some backends are not used" } else { "no usable backend" },
        match refused[0].choice {
            Some(Choice::Refused) => "nodelb refuses addresses that it may not or cannot connect to",
            Some(Choice::Quarantined) => "they failed their health checks",
            _ => "they are in maintenance",
        }
    );
    let each = refused.iter().take(10).map(|row| {
        let why = row.reason.as_deref().map_or_else(String::new, |why| format!(": {}", quoted(why)));
        format!("{} is {}{why}", shown(&row.address), word(row.choice))
    });
    let mut finding = context.finding(kind, what).severity(severity).evidence(each);
    finding.command.get_or_insert_with(|| format!("nodelb backends {}", context.facts.service));
    Some(finding)
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
    Some(context.finding(Kind::MemoryDiffers, what).evidence(unknown).evidence(outlived))
}

/// The service has no backends, whatever the reason.
fn without_backends(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let is_local = |row: &FrontendRow| row.flags.iter().any(|flag| flag == "Local");
    // Another rule reports that all backends are on other nodes.
    let is_elsewhere = daemon.backends.iter().any(|row| matches!(row.choice, Some(Choice::Selected | Choice::Held)));
    let is_empty = |row: &&FrontendRow| is_in_maps(row) && row.backends.is_empty() && !(is_elsewhere && is_local(row));
    let rows: Vec<_> = daemon.frontends.iter().filter(is_empty).collect();
    rows.first()?;
    let addresses = some(rows.iter().map(|row| shown(&row.address)));
    let refused = format!("connections from this node to {addresses} get ECONNREFUSED");
    let why = daemon.backends.iter().take(5).map(|row| format!("{} is {}", shown(&row.address), word(row.choice)));
    let defined = daemon.definition.as_ref().map(|definition| format!("{} defines it", place(definition)));
    let is_bare = daemon.definition.is_some() && daemon.backends.is_empty();
    let finding = context.finding_in(Kind::NoBackends, "no usable backend", if is_bare { "file" } else { "" }, &[]);
    let finding = finding.evidence([refused]).evidence(why).evidence(defined);
    Some(match &daemon.definition {
        Some(definition) => finding.at(&definition.file, definition.line),
        None => finding,
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age, shown to the second")]
fn lasting(seconds: f64) -> String {
    durations::human((seconds.max(0.0) * 1000.0) as u64)
}

fn word(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".into(), |value| value.to_string())
}

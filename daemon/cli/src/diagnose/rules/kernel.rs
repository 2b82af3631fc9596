//! What the daemon does with the service: addresses that it does not serve, backends that it holds or refuses, and
//! whether the maps contain what the daemon wants.

use std::borrow::Cow;
use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::Endpoint;
use nodelb_core::before::says_as_before;
use nodelb_core::compile::select::Choice;
use nodelb_core::holds::says_emptied;
use nodelb_core::model::cause::HOLD_ENDED;
use nodelb_core::state::status::Status;
use nodelb_report::explain::differences::CHECKS_AT_ONCE;
use nodelb_report::problems;

use super::context::{Context, because, critical_if, is_last_resort, lasting, quoted, some};
use super::direct;
use super::witnesses::place;
use crate::diagnose::catalogue;
use crate::diagnose::facts::{BackendRow, Daemon, Difference, FrontendRow, Maps};
use crate::diagnose::objects::{canonical, is_ready};
use crate::diagnose::rows;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Time that a change may take to reach the kernel, in seconds.
const TIMEOUT: f64 = 5.0;

fn one_line(row: &FrontendRow) -> String {
    let (status, since) = (word(row.status), lasting(row.since));
    format!("{} ({}) is {status} for {since}{}", row.address, row.kind, because(&row.error))
}

/// Addresses that another service owns, and those that nodelb serves for no service.
pub(super) fn not_served(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_served = daemon.frontends.iter().any(FrontendRow::is_in_maps);
    let owner = |row: &FrontendRow| {
        let is_other = |it: &&FrontendRow| it.address == row.address && it.service != row.service && !it.is_denied();
        daemon.rivals.iter().find(is_other)
    };
    let denied = daemon.frontends.iter().filter(|row| row.is_denied());
    let (lost, refused): (Vec<_>, Vec<_>) = denied.partition(|row| owner(row).is_some());
    let conflict = lost.first().and_then(|row| owner(row)).map(|owner| {
        let what = format!("{} is owned by {}", owner.address, owner.service);
        with_rows(context.finding(Kind::AddressConflict, what), &lost)
    });
    let refusal = refused.first().map(|_| {
        let what = format!("nodelb does not serve {}", addresses(&refused));
        let is_because =
            |text: &str| refused.iter().all(|row| row.error.as_ref().is_some_and(|error| error.contains(text)));
        // A process of the node is meant to have the addresses.
        let problem = context.problem(catalogue::finding(Kind::AddressRefused));
        let is_intended = problem.is_some_and(|it| it.severity == problems::Severity::Notice);
        let case = match is_intended {
            true => "intended",
            false if is_because(" is full ") => "full",
            false if is_because("datapath.own-addresses") => "own",
            false => "",
        };
        let severity = if is_intended { Severity::Info } else { critical_if(!is_served) };
        with_rows(context.finding_in(Kind::AddressRefused, what, case, &[]), &refused).severity(severity)
    });
    let conflict = conflict.map(|finding| finding.severity(critical_if(!is_served)));
    conflict.into_iter().chain(refusal).collect()
}

fn addresses(rows: &[&FrontendRow]) -> String {
    some(rows.iter().map(|row| &row.address))
}

/// Adds the rows as evidence, except for those the error of which the finding already says.
fn with_rows(finding: Finding, rows: &[&FrontendRow]) -> Finding {
    let is_new = |row: &&&FrontendRow| row.error.as_ref().is_none_or(|error| !finding.what.contains(error));
    let new: Vec<String> = rows.iter().filter(is_new).map(|row| one_line(row)).collect();
    finding.evidence(new)
}

pub(super) fn defined_twice(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let row = daemon.services.iter().find(|row| daemon.services.len() > 1 && row.status == Some(Status::Conflict))?;
    // The words of `/status`, which `/services` has, too.
    let what = match &row.error {
        Some(error) => quoted(error),
        None => format!("it is defined twice; the definition in {} is not used", row.origin),
    };
    let finding = Finding { what, ..context.finding(Kind::DefinedTwice, "") };
    Some(finding.evidence([format!("not used: {}", row.origin)]))
}

pub(super) fn held(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let rows: Vec<_> = daemon.frontends.iter().filter(|row| row.status == Some(Status::Held)).collect();
    let first = rows.first()?;
    let is_emptied = first.error.as_deref().is_none_or(says_emptied);
    let what = match is_emptied {
        true => "held: its source emptied it, and its last known backends stay in use",
        false => "held: DNS servers give no current answer, and its last known backends stay in use; see nodelb dns",
    };
    let case = if is_emptied { "" } else { "dns" };
    let finding = context.finding_in(Kind::Held, what, case, &[]);
    let finding = finding.evidence([format!("its addresses: {}", addresses(&rows))]);
    Some(if is_emptied { finding } else { with_rows(finding, &rows) })
}

/// Addresses that the maps do not have for the service, and what their connections get.
pub(super) fn pending(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let waits = |row: &&FrontendRow| row.error.as_deref().is_some_and(says_as_before);
    let is_meant = |row: &&FrontendRow| row.status == Some(Status::Pending) && (row.since >= TIMEOUT || waits(row));
    let rows: Vec<_> = daemon.frontends.iter().filter(is_meant).collect();
    let first = rows.first()?;
    let finding = match first.error.as_ref().filter(|_| rows.iter().all(waits)) {
        Some(why) => {
            let address = &first.address;
            let what = if why.starts_with(address) { quoted(why) } else { format!("{address}: {}", quoted(why)) };
            context.finding_in(Kind::Pending, what, "stays", &[]).severity(Severity::Warning)
        }
        None => context.finding(Kind::Pending, format!("{}: not in the kernel yet", first.address)),
    };
    let gets = |row: &&FrontendRow| match daemon.stays_with(row) {
        None => format!("connections to {} are not translated", row.address),
        Some(other) => {
            let service = if other.service.is_empty() { "a service without a known name" } else { &other.service };
            format!("connections to {} get {} of {service}", row.address, each(&other.backends))
        }
    };
    let gets: Vec<String> = rows.iter().take(10).map(gets).collect();
    Some(with_rows(finding, &rows).evidence(gets))
}

/// Connections get backends from before the start, and the source describes others.
pub(super) fn kept(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let is_kept = |row: &&FrontendRow| row.status == Some(Status::Kept);
    let differs = |row: &FrontendRow| {
        let actual: BTreeSet<_> = row.backends.iter().collect();
        let is_described = |it: &&BackendRow| matches!(it.choice, Some(Choice::Selected | Choice::Pending));
        let described = daemon.backends_of(row).filter(is_described);
        let described: BTreeSet<&String> = described.map(|it| &it.address).collect();
        let is_same = if row.is_local() { actual.is_subset(&described) } else { actual == described };
        (!is_same).then(|| {
            let (actual, described) = (each(actual), each(described));
            format!("connections to {} get {actual} instead of {described}", row.address)
        })
    };
    let rows: Vec<_> = daemon.frontends.iter().filter(is_kept).collect();
    let evidence: Vec<String> = rows.iter().filter_map(|row| differs(row)).take(10).collect();
    let why = rows.first().and_then(|row| row.error.as_ref()).filter(|_| !evidence.is_empty())?;
    let what = "connections get other backends than the service has now: those from before the start of nodelb";
    Some(context.finding(Kind::Kept, what).evidence(evidence).evidence([quoted(why)]))
}

/// Returns the backends, or that there are none.
fn each<'b>(backends: impl IntoIterator<Item = &'b String>) -> String {
    let mut backends = backends.into_iter().peekable();
    if backends.peek().is_none() { "no backend".into() } else { some(backends) }
}

/// The maps do not contain what the daemon wrote. `/diff` says so, which reads them more than once. The rows of
/// `/frontends` and `/maps` are from two moments and differ during any rollout.
pub(super) fn kernel_differs(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let maps = daemon.maps.as_ref()?;
    let written = daemon.frontends.iter().filter(|row| row.is_in_maps());
    let evidence: Vec<String> = written.filter_map(|row| difference(row, maps)).collect();
    let rows = context.differences.iter().filter(|row| row.is_about_maps());
    let reported: Vec<String> = rows.take(5).map(Difference::text).collect();
    if evidence.is_empty() || reported.is_empty() {
        return None;
    }
    let what = "the kernel maps differ from what the daemon wrote: another process changed them";
    let finding = context.finding_in(Kind::KernelDiffers, what, "", &[("at-once", CHECKS_AT_ONCE)]);
    Some(finding.evidence(evidence).evidence(reported).evidence(daemon.traces.iter().filter_map(rows::trace)))
}

fn difference(row: &FrontendRow, maps: &Maps) -> Option<String> {
    let address = &row.address;
    let Some(leads_to) = maps.frontends.get(&row.address) else {
        return Some(format!("{address} is not in the kernel: connections to it are not translated"));
    };
    let view = if row.is_local() { "local" } else { "cluster" };
    let held: BTreeSet<&String> = maps.slots.get(&(leads_to.clone(), view.to_owned())).into_iter().flatten().collect();
    let wanted: BTreeSet<&String> = row.backends.iter().collect();
    (held != wanted).then(|| {
        let (is, should_be) = (each(held), each(wanted));
        format!("{address} leads to {is} in the kernel, to {should_be} as the daemon has it")
    })
}

/// There are backends, but none may be used.
pub(super) fn backends_unusable(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let is_refused =
        |row: &&BackendRow| matches!(row.choice, Some(Choice::Refused | Choice::Quarantined | Choice::Maintenance));
    let refused = || daemon.backends.iter().filter(is_refused);
    let is_left = daemon.backends.iter().any(BackendRow::is_used);
    let first = refused().next()?;
    // Only a backend that the operator drains is in maintenance for a reason.
    let is_drained = first.choice == Some(Choice::Maintenance) && first.reason.is_some();
    let (kind, why) = match first.choice {
        _ if is_drained && is_left => (Kind::BackendsDrained, "the operator drains them"),
        _ if is_drained => (Kind::BackendsUnusable, "the operator drains them"),
        Some(Choice::Refused) => {
            (Kind::BackendsUnusable, "nodelb refuses addresses that it may not or cannot connect to")
        }
        // Health checks that fail for some backends have a problem of their own.
        Some(Choice::Quarantined) if is_left => (Kind::BackendsQuarantined, "they failed their health checks"),
        Some(Choice::Quarantined) => (Kind::BackendsUnusable, "they failed their health checks"),
        _ => (Kind::BackendsUnusable, "they are in maintenance"),
    };
    let what = format!("{}: {why}", if is_left { "some backends are not used" } else { "no usable backend" });
    let each = refused().take(10);
    let each = each.map(|row| format!("{} is {}{}", row.address, word(row.choice), because(&row.reason)));
    let severity = if kind == Kind::BackendsDrained { Severity::Info } else { critical_if(!is_left) };
    let finding = match first.choice {
        _ if is_drained && !is_left => context.finding_in(kind, what, "drained", &[]),
        Some(Choice::Quarantined) => direct::failed_checks(context, kind, what),
        _ => context.finding(kind, what),
    };
    let mut finding = finding.severity(severity).evidence(each);
    finding.command.get_or_insert_with(|| format!("nodelb backends {}", context.facts.service));
    Some(finding)
}

/// The cluster's present state differs from what the daemon uses.
pub(super) fn memory_differs<'d>(context: &Context<'_>, daemon: &'d Daemon) -> Option<Finding> {
    context.slices.filter(|_| context.proxied().is_some() && !daemon.services.is_empty() && !context.is_held())?;
    let named: BTreeSet<_> = context.endpoints().filter_map(first_address).collect();
    let usable = context.endpoints().filter(|it| is_ready(it) || is_last_resort(it));
    let usable: BTreeSet<_> = usable.filter_map(first_address).collect();
    let host = |row: &'d BackendRow| {
        let (host, _) = row.address.rsplit_once(':')?;
        Some(canonical(host.trim_matches(['[', ']'])))
    };
    let known: BTreeSet<_> = daemon.backends.iter().filter_map(host).collect();
    let chosen = daemon.backends.iter().filter(|row| row.choice == Some(Choice::Selected));
    let chosen: BTreeSet<_> = chosen.filter_map(host).collect();
    // A port that no slice has hides every backend; another rule reports that.
    let unknown = usable.difference(&known).filter(|_| !known.is_empty());
    let unknown = unknown.map(|address| format!("{address}: unknown to the daemon"));
    let outlived = chosen.difference(&named).map(|address| format!("{address}: used by the daemon, not in any slice"));
    let evidence: Vec<String> = unknown.chain(outlived).collect();
    evidence.first()?;
    let what = "the daemon and Kubernetes have different backends";
    Some(context.finding(Kind::MemoryDiffers, what).evidence(evidence))
}

fn first_address(endpoint: &Endpoint) -> Option<Cow<'_, str>> {
    endpoint.addresses.first().map(|address| canonical(address))
}

/// The service has no backends, whatever the reason.
pub(super) fn no_backends(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    // Another rule reports that all backends are on other nodes.
    let is_elsewhere = |row: &FrontendRow| row.is_local() && daemon.backends_of(row).any(BackendRow::is_used);
    let is_empty = |row: &&FrontendRow| row.is_in_maps() && row.backends.is_empty() && !is_elsewhere(row);
    let rows: Vec<_> = daemon.frontends.iter().filter(is_empty).collect();
    rows.first()?;
    let refused = format!("connections from this node to {} get ECONNREFUSED", addresses(&rows));
    let of_ports = daemon.backends.iter().filter(|backend| rows.iter().any(|row| row.is_of_port(backend)));
    let why = of_ports.take(5).map(|row| format!("{} is {}", row.address, word(row.choice)));
    let defined = daemon.definition.as_ref().map(|definition| format!("{} defines it", place(definition)));
    let is_bare = daemon.definition.is_some() && daemon.backends.is_empty();
    let is_of_name = |error: &&str| error.starts_with("DNS ") || error.starts_with(HOLD_ENDED);
    let names = rows.iter().find_map(|row| row.error.as_deref().filter(is_of_name));
    let case = match names {
        Some(_) => "dns",
        None if is_bare => "file",
        None => "",
    };
    let finding = context.finding_in(Kind::NoBackends, "no usable backend", case, &[]);
    // The words of `/status` have it, too.
    let names = names.filter(|error| !finding.what.contains(error)).map(str::to_owned);
    let finding = finding.evidence([refused]).evidence(names).evidence(why).evidence(defined);
    Some(match &daemon.definition {
        Some(definition) => finding.at(&definition.file, definition.line),
        None => finding,
    })
}

/// Without the daemon: addresses for which the maps have no backend.
pub(super) fn empty_in_maps(context: &Context<'_>) -> Option<Finding> {
    let frontends = &context.facts.stored.as_ref()?.frontends;
    let empty: Vec<_> = frontends.iter().filter(|row| row.backends.is_empty()).collect();
    empty.first()?;
    let finding = context.finding(Kind::NoBackends, "no usable backend in the kernel");
    let finding = finding.severity(critical_if(empty.len() == frontends.len()));
    Some(finding.evidence([format!("connections to {} are refused", addresses(&empty))]))
}

fn word(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".into(), |value| value.to_string())
}

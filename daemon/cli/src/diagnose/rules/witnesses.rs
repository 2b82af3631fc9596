//! Witnesses that could not be asked, and what that means for the service: the daemon, the apiservers that it needs,
//! the permissions.

use std::path::Path;

use nodelb_core::state::status::Status;
use nodelb_report::explain::differences::NOT_CONFIGURED;
use nodelb_report::problems::{Problem, Reason};

use super::context::{Context, because, critical_if, lasting, quoted};
use crate::diagnose::facts::{Daemon, Definition, Denial, Difference, Probe, SourceRow};
use crate::without_daemon::Pins;
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Texts that identify an answer about a missing permission.
const FORBIDDEN: [&str; 2] = ["403 Forbidden", "kubectl auth can-i"];

/// A watch that has failed for less than this, in seconds, is being opened again.
const UNDER_WAY: f64 = 5.0;

pub(super) fn daemon_silent(context: &Context<'_>) -> Option<Finding> {
    let Probe::Failed(why) = &context.facts.daemon else { return None };
    let silent = "the nodelb daemon on this node does not respond";
    let pins = context.facts.stored.as_ref().map(|stored| &stored.pins);
    let (effect, is_out) = match pins {
        Some(Pins::Present) => ("; connections continue with the last known backends".to_owned(), false),
        Some(Pins::Absent(directory)) => {
            let directory = directory.display();
            (format!(", and no BPF maps of nodelb are pinned in {directory}: service addresses do not work"), true)
        }
        Some(Pins::Unknown(why)) => (format!("; whether connections continue is not known: {}", quoted(why)), false),
        None => (String::new(), false),
    };
    let finding =
        context.finding_in(Kind::DaemonSilent, format!("{silent}{effect}"), if is_out { "no-maps" } else { "" }, &[]);
    let severity = critical_if(is_out || context.has_failed_connect());
    Some(finding.severity(severity).evidence([quoted(why)]))
}

/// The conditions of readiness that fail.
pub(super) fn checks(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let failed = |names: &[&str]| {
        let rows = daemon.checks.iter().filter(|check| !check.passed && names.contains(&&*check.name));
        rows.map(|check| format!("{}: {}", check.name, quoted(&check.detail))).collect::<Vec<_>>()
    };
    let (unpinned, detached): (Vec<_>, Vec<_>) =
        context.differences.iter().filter(|row| row.is_about_hooks()).partition(|row| row.is_about_pin());
    let failed_hooks = failed(&["canary", "links"]);
    // Without its pin, a program stays attached: the daemon holds its link open. Connections show whether it works.
    let is_unpinned = detached.is_empty() && failed_hooks.is_empty() && !context.has_failed_connect();
    if is_unpinned && !unpinned.is_empty() {
        let what = format!(
            "nodelb's programs lack {}; they stay attached, and connections are translated",
            counted(unpinned.len(), "pin")
        );
        let finding = context.finding_in(Kind::HooksNotInEffect, what, "pins", &[]).severity(Severity::Warning);
        return vec![finding.evidence(unpinned.first().map(|row| row.text()))];
    }
    let hooks: Vec<String> = detached.into_iter().chain(unpinned).map(Difference::text).chain(failed_hooks).collect();
    let unsynced = if daemon.is_of_file() { Vec::new() } else { failed(&["reconcile"]) };
    let groups = [
        (
            Kind::HooksNotInEffect,
            "the BPF hooks do not work: connections of processes on this node are not translated",
            hooks,
        ),
        (Kind::LoopStuck, "the reconcile loop is stuck, and changes are not applied", failed(&["loop"])),
        (Kind::NotSynced, "nodelb has not read every source since its start", unsynced),
        (Kind::DaemonNotReady, "the daemon is not ready", failed(&["devices"])),
    ];
    let found = groups.into_iter().filter(|(.., evidence)| !evidence.is_empty()).map(|(kind, what, mut evidence)| {
        let finding = context.finding(kind, what);
        // The words of `/status` may be those of the check.
        evidence.retain(|it| !it.ends_with(&finding.what));
        finding.evidence(evidence)
    });
    found.collect()
}

/// Sources that are silent although they existed before. Their objects stay as they were last received.
pub(super) fn source_absent(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_denied = context.cluster.is_some_and(|cluster| matches!(cluster.service, Ok(None)));
    let is_lost = daemon.services.is_empty() && !is_denied;
    let severity = critical_if(is_lost || context.has_failed_connect());
    let found = context.differences.iter().filter_map(|row| {
        let source = row.whole_source()?;
        let describes = daemon.services.iter().any(|it| it.source.eq_ignore_ascii_case(source));
        if !daemon.services.is_empty() && !describes {
            return None;
        }
        let (what, case) = if row.source.as_deref() == Some(NOT_CONFIGURED) {
            let what = "is no longer configured as a source: its services are served as last known and not updated";
            (format!("{source} {what}"), "unconfigured")
        } else if daemon.sources.iter().any(|it| it.source.eq_ignore_ascii_case(source) && !it.problems.is_empty()) {
            // The problem of one of its places is the deeper reason.
            return None;
        } else {
            let what = format!("the initial sync of {source} is not complete: the kernel keeps its previous content");
            (what, "incomplete")
        };
        let finding = context.finding_in(Kind::SourceAbsent, what, case, &[("source", source)]);
        Some(finding.severity(severity).evidence([row.text()]))
    });
    found.collect()
}

fn is_away(daemon: &Daemon) -> bool {
    let session = daemon.session.as_ref().filter(|session| session.apiserver.is_none());
    session.is_some_and(|session| session.problem.is_some() || !daemon.apiservers.is_empty())
}

pub(super) fn apiserver_away(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    if daemon.is_of_file() || !is_away(daemon) || !refused(context, daemon).is_empty() {
        return None;
    }
    let session = daemon.session.as_ref()?;
    // Of these, the error names what is wrong: the certificate, the credentials, or the cluster.
    let is_named = |state: &str| ["Refused", "NotReady"].contains(&state);
    let is_refused = !daemon.apiservers.is_empty() && daemon.apiservers.iter().all(|row| is_named(&row.state));
    let case = if session.problem.is_some() || is_refused { "credentials" } else { "" };
    let what = format!("no API server in use{}", because(&session.problem));
    let since = session.last_response.map(|seconds| format!("the last response was {} ago", lasting(seconds)));
    let since = since.unwrap_or_else(|| "none has responded since nodelb was started".into());
    let rows = daemon.apiservers.iter().map(|row| format!("{}: {}{}", row.address, row.state, because(&row.error)));
    let own = match &context.facts.cluster {
        // The same kubeconfig has the same problem.
        Probe::Failed(why) if what.ends_with(&quoted(why)) => None,
        Probe::Failed(why) => Some(format!("this command cannot reach one either: {}", quoted(why))),
        Probe::Ok(cluster) => Some(format!("this command reaches {}", cluster.via)),
        Probe::Skipped => None,
    };
    let finding = context.finding_in(Kind::ApiserverAway, what, case, &[]);
    let finding = finding.severity(critical_if(context.has_failed_connect()));
    Some(finding.evidence([since]).evidence(rows).evidence(own))
}

/// The file that describes the service, or an earlier form of it, and is not served.
pub(super) fn file_not_served(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let definition = daemon.definition.as_ref()?;
    let row = daemon.sources.iter().find(|row| row.path == definition.file && row.state != "Ok")?;
    let name = Path::new(&row.path).file_name().and_then(|name| name.to_str());
    let is_it = |it: &&Problem| it.reason == Reason::FileNotServed && Some(&*it.object) == name;
    let cause = match daemon.problems.iter().find(is_it) {
        Some(problem) => quoted(&problem.cause),
        None => format!("not served{}", because(row.problems.first())),
    };
    let case = if cause.contains("cannot be read") { "unreadable" } else { "" };
    let what = format!("{} defines it: {cause}", place(definition));
    let finding = context.finding_in(Kind::FileNotServed, what, case, &[]);
    let more = row.problems.iter().skip(1).map(|problem| quoted(problem));
    let severity = critical_if(daemon.services.is_empty());
    Some(finding.severity(severity).evidence(more).at(&definition.file, definition.line))
}

/// Returns the line as `more.toml:14`, with the path of the file.
pub(super) fn place(definition: &Definition) -> String {
    let file = &definition.file;
    definition.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))
}

/// The other places of sources that have problems: watches, and places that may describe a service that is not known, or
/// that is served as before the start.
pub(super) fn sources(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_own = |row: &SourceRow| daemon.definition.as_ref().is_some_and(|it| it.file == row.path);
    let is_kubernetes = |row: &SourceRow| row.source.eq_ignore_ascii_case("kubernetes");
    // The consequences of an API server that cannot be reached are reported once.
    let is_elsewhere = |row: &SourceRow| {
        is_kubernetes(row) && (is_away(daemon) || row.since < UNDER_WAY || is_of_another_namespace(context, row))
    };
    let is_kept = daemon.frontends.iter().any(|row| row.status == Some(Status::Kept));
    let concerns = |row: &SourceRow| {
        let is_its_source = if is_kubernetes(row) { !daemon.is_of_file() } else { daemon.is_of_file() && is_kept };
        is_its_source || daemon.services.is_empty()
    };
    let rows = daemon.sources.iter().filter(|row| !matches!(&*row.state, "Ok" | "") && !is_own(row));
    let found = rows.filter(|row| !is_elsewhere(row) && concerns(row)).filter_map(|row| {
        let mut problems = row.problems.iter().filter(|problem| !is_forbidden(problem)).peekable();
        problems.peek()?;
        let kind = if is_file(&row.path) { Kind::SourceProblem } else { Kind::SourceFailing };
        let served = match row.state.as_str() {
            "LastGood" => "the last valid version is still served",
            _ if is_kept => "its services are served as before the start",
            _ => "none of its services are served",
        };
        let what = format!("{} ({}) has problems: {served}", row.path, row.source);
        Some(context.finding(kind, what).evidence(problems.map(|problem| quoted(problem))))
    });
    found.collect()
}

/// Whether the place is a single file, not a directory or a watch.
fn is_file(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| ["toml", "yaml", "yml", "json"].contains(&it))
}

fn is_forbidden(why: &str) -> bool {
    FORBIDDEN.iter().any(|words| why.contains(words))
}

/// The namespace in the path of a watch, such as `services/shop`, if it is about one.
fn namespace(row: &SourceRow) -> Option<&str> {
    let is_kubernetes = row.source.eq_ignore_ascii_case("kubernetes");
    row.path.split('/').nth(1).filter(|_| is_kubernetes)
}

fn is_of_another_namespace(context: &Context<'_>, row: &SourceRow) -> bool {
    namespace(row).is_some_and(|namespace| *namespace != *context.facts.service.namespace)
}

/// Returns what the daemon was refused that concerns the service.
fn refused(context: &Context<'_>, daemon: &Daemon) -> Vec<String> {
    let of_sources = daemon
        .sources
        .iter()
        .filter(|row| !is_of_another_namespace(context, row))
        .flat_map(|row| row.problems.iter().map(move |why| (&row.path, why)));
    let of_apiservers = daemon.apiservers.iter().filter_map(|row| Some((&row.address, row.error.as_ref()?)));
    let refused = of_sources.chain(of_apiservers).filter(|(_, why)| is_forbidden(why));
    refused.map(|(subject, why)| format!("the daemon, {subject}: {}", quoted(why))).collect()
}

pub(super) fn permission_missing(context: &Context<'_>) -> Option<Finding> {
    let of_daemon = context.daemon.map(|daemon| refused(context, daemon)).unwrap_or_default();
    // The answers without which no proxy can serve the service.
    let needed = context.cluster.map(|cluster| [cluster.service.as_ref().err(), cluster.slices.as_ref().err()]);
    let own = needed.into_iter().flatten().flatten().filter(|denial| denial.is_forbidden);
    let own = own.map(|Denial { question, why, .. }| format!("this command, {question}: {}", quoted(why)));
    let own: Vec<String> = own.collect();
    // If the daemon may do what this command may not, nothing is wrong with the service.
    if of_daemon.is_empty() && (context.daemon.is_some() || own.is_empty()) {
        return None;
    }
    let mut refused_rows = context.daemon.into_iter().flat_map(|daemon| &daemon.sources);
    let is_in_namespace = |row: &SourceRow| {
        namespace(row).is_some()
            && !is_of_another_namespace(context, row)
            && row.problems.iter().any(|it| is_forbidden(it))
    };
    let (what, case) = if refused_rows.any(is_in_namespace) {
        let namespace = &context.facts.service.namespace;
        (format!("a permission is missing: nodelb cannot watch the services of namespace {namespace}"), "namespace")
    } else {
        ("a permission is missing: nodelb cannot watch the services of the cluster".to_owned(), "")
    };
    Some(context.finding_in(Kind::PermissionMissing, what, case, &[]).evidence(of_daemon).evidence(own))
}

/// The apiserver that does not answer this command, or that nodelb balances.
pub(super) fn apiserver(context: &Context<'_>) -> Option<Finding> {
    match &context.facts.cluster {
        // The daemon knows the services; checks of Kubernetes objects count as skipped.
        Probe::Failed(_) if context.daemon.is_some() => None,
        Probe::Failed(why) => {
            let what = "this command could not query an API server: checks of Kubernetes objects were skipped";
            Some(context.finding(Kind::ApiserverSilent, what).evidence([quoted(why)]))
        }
        Probe::Ok(cluster) if cluster.is_balanced => {
            let via = &cluster.via;
            let what = "the answers of this command depend on the services that it examines";
            let what = format!("nodelb balances {via} itself: {what}");
            Some(context.finding(Kind::ApiserverBalanced, what).evidence(cluster.failed.clone()))
        }
        _ => None,
    }
}

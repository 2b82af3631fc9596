//! Witnesses that could not be asked, and what that means for the service: the daemon, the apiservers that it needs,
//! the permissions.

use std::path::Path;

use nodelb_report::explain::differences::NOT_CONFIGURED;
use nodelb_report::problems::Reason;
use serde_json::Value;

use super::context::{Context, quoted, shown};
use crate::diagnose::facts::{ApiserverRow, Daemon, Definition, Denial, Probe, SourceRow};
use crate::diagnose::rows;
use nodelb_core::durations;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Texts that identify an answer about a missing permission.
const FORBIDDEN: [&str; 2] = ["403 Forbidden", "kubectl auth can-i"];

/// A watch that has failed for less than this, in seconds, is being opened again.
const UNDER_WAY: f64 = 5.0;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    match &context.facts.daemon {
        Probe::Failed(why) => found.push(silent_daemon(context, why)),
        Probe::Ok(daemon) => found.extend(of_daemon(context, daemon)),
        Probe::Skipped => {}
    }
    found.extend(permissions(context));
    found.extend(of_cluster(context));
    found
}

fn silent_daemon(context: &Context<'_>, why: &str) -> Finding {
    let severity = if context.has_failed_connect() { Severity::Critical } else { Severity::Warning };
    let what = "the nodelb daemon on this node does not respond; traffic continues with the last known backends";
    context.finding(Kind::DaemonSilent, what).severity(severity).evidence([quoted(why)])
}

fn of_daemon(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let mut found = checks(context, daemon);
    found.extend(absent(context, daemon));
    found.extend(away(context, daemon));
    found.extend(undefined(context, daemon));
    found.extend(sources(context, daemon));
    found
}

/// The conditions of readiness that fail.
fn checks(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let failed = |names: &[&str]| {
        let rows = daemon.checks.iter().filter(|check| !check.passed && names.contains(&&*check.name));
        rows.map(|check| format!("{}: {}", shown(&check.name), quoted(&check.detail))).collect::<Vec<_>>()
    };
    let detached = daemon.differences.iter().flatten().filter(|row| rows::is_about_hooks(row));
    let hooks: Vec<String> = detached.map(rows::difference).chain(failed(&["canary", "links"])).collect();
    let unsynced = if is_of_file(daemon) { Vec::new() } else { failed(&["reconcile"]) };
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
    let groups = groups.into_iter().filter(|(.., evidence)| !evidence.is_empty());
    groups.map(|(kind, what, evidence)| with_evidence(context.finding(kind, what), evidence)).collect()
}

/// Adds the evidence that the finding does not already say.
fn with_evidence(finding: Finding, evidence: Vec<String>) -> Finding {
    let new: Vec<String> = evidence.into_iter().filter(|it| !it.ends_with(&finding.what)).collect();
    finding.evidence(new)
}

/// Sources that are silent although they existed before. Their objects stay as they were last received.
fn absent(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_known = !daemon.services.is_empty();
    let describes = |source: &str| daemon.services.iter().any(|row| row.source.eq_ignore_ascii_case(source));
    let rows = daemon.differences.iter().flatten().filter_map(|row| Some((rows::source(row)?, row)));
    let concerned = rows.filter(|(source, _)| !is_known || describes(source));
    // The problem of one of its places is the deeper reason.
    let has_problem = |source: &str| {
        daemon.sources.iter().any(|row| row.source.eq_ignore_ascii_case(source) && !row.problems.is_empty())
    };
    let concerned = concerned.filter(|(source, row)| row["source"] == NOT_CONFIGURED || !has_problem(source));
    concerned.map(|(source, row)| of_absent(context, daemon, source, row)).collect()
}

fn of_absent(context: &Context<'_>, daemon: &Daemon, source: &str, row: &Value) -> Finding {
    let is_denied = context.cluster.is_some_and(|cluster| matches!(cluster.service, Ok(None)));
    let is_lost = daemon.services.is_empty() && !is_denied;
    let severity = if is_lost || context.has_failed_connect() { Severity::Critical } else { Severity::Warning };
    let name = shown(source);
    let (what, case) = if row["source"] == NOT_CONFIGURED {
        (
            format!(
                "{name} is no longer configured as a source: its services are served as last known and not updated"
            ),
            "unconfigured",
        )
    } else {
        (format!("the initial sync of {name} is not complete: the kernel keeps its previous content"), "incomplete")
    };
    let finding = context.finding_in(Kind::SourceAbsent, what, case, &[("source", &name)]);
    finding.severity(severity).evidence([rows::difference(row)])
}

fn is_away(daemon: &Daemon) -> bool {
    let session = daemon.session.as_ref().filter(|session| session.apiserver.is_none());
    session.is_some_and(|session| session.problem.is_some() || !daemon.apiservers.is_empty())
}

/// Whether a file describes the service, which then needs no API server.
fn is_of_file(daemon: &Daemon) -> bool {
    daemon.services.iter().any(|row| row.source.eq_ignore_ascii_case("files"))
}

fn away(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    if is_of_file(daemon) {
        return None;
    }
    let session = daemon.session.as_ref().filter(|_| is_away(daemon) && refused(daemon).is_empty())?;
    let severity = if context.has_failed_connect() { Severity::Critical } else { Severity::Warning };
    let (what, case) = match &session.problem {
        Some(problem) => (format!("no API server in use: {}", quoted(problem)), "credentials"),
        None => ("no API server in use".into(), ""),
    };
    let row = |row: &ApiserverRow| {
        let error = row.error.iter().map(|why| format!(": {}", quoted(why))).collect::<String>();
        format!("{}: {}{error}", shown(&row.address), shown(&row.state))
    };
    let since = session.last_response.map(|seconds| format!("the last response was {} ago", lasting(seconds)));
    let since = since.unwrap_or_else(|| "none has responded since nodelb was started".into());
    let own = match &context.facts.cluster {
        // The same kubeconfig has the same problem.
        Probe::Failed(why) if what.ends_with(&quoted(why)) => None,
        Probe::Failed(why) => Some(format!("this command cannot reach one either: {}", quoted(why))),
        Probe::Ok(cluster) => Some(format!("this command reaches {}", cluster.via)),
        Probe::Skipped => None,
    };
    let finding = context.finding_in(Kind::ApiserverAway, what, case, &[]).severity(severity);
    Some(finding.evidence([since]).evidence(daemon.apiservers.iter().map(row)).evidence(own))
}

/// The file that describes the service, or an earlier form of it, and is not served.
fn undefined(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let definition = daemon.definition.as_ref()?;
    let row = daemon.sources.iter().find(|row| row.path == definition.file && row.state != "Ok")?;
    let cause =
        problem(daemon, Reason::FileNotServed, &file_name(&row.path)).unwrap_or_else(|| match &row.problems[..] {
            [] => "not served".into(),
            [first, ..] => format!("not served: {}", quoted(first)),
        });
    let finding = context.finding(Kind::FileNotServed, format!("{} defines it: {cause}", place(definition)));
    let severity = if daemon.services.is_empty() { Severity::Critical } else { Severity::Warning };
    let more = row.problems.iter().skip(1).map(|problem| quoted(problem));
    Some(finding.severity(severity).evidence(more).at(&definition.file, definition.line))
}

/// Returns the line as `more.toml:14`, with the path of the file.
pub(super) fn place(definition: &Definition) -> String {
    let file = shown(&definition.file);
    definition.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns what `/status` says about this object.
fn problem(daemon: &Daemon, reason: Reason, object: &str) -> Option<String> {
    let problem = daemon.problems.iter().find(|problem| problem.reason == reason && problem.object == object)?;
    Some(quoted(&problem.cause))
}

/// The other places of sources that have problems: watches, and places that may describe a service that is not known.
fn sources(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_own = |row: &&SourceRow| daemon.definition.as_ref().is_some_and(|it| it.file == row.path);
    // The consequences of an API server that cannot be reached are reported once.
    let is_elsewhere = |row: &SourceRow| is_kubernetes(row) && (is_away(daemon) || row.since < UNDER_WAY);
    let rows = daemon.sources.iter().filter(|row| row.state != "Ok" && !row.state.is_empty() && !is_own(row));
    let rows = rows.filter(|row| !is_elsewhere(row) && problems(row).next().is_some());
    let rows = rows.filter(|row| is_kubernetes(row) && !is_of_file(daemon) || daemon.services.is_empty());
    rows.map(|row| {
        let kind = if is_file(&row.path) { Kind::SourceProblem } else { Kind::SourceFailing };
        let what = format!(
            "{} ({}) has problems: {}",
            shown(&row.path),
            shown(&row.source),
            match row.state.as_str() {
                "LastGood" => "the last valid version is still served",
                _ => "none of its services are served",
            }
        );
        context.finding(kind, what).evidence(problems(row).map(quoted))
    })
    .collect()
}

/// Whether the place is a single file, not a directory or a watch.
fn is_file(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|it| it.to_str());
    extension.is_some_and(|it| ["toml", "yaml", "yml", "json"].contains(&it))
}

fn is_kubernetes(row: &SourceRow) -> bool {
    row.source.eq_ignore_ascii_case("kubernetes")
}

/// Returns the problems that are not about permissions.
fn problems(row: &SourceRow) -> impl Iterator<Item = &str> {
    row.problems.iter().map(String::as_str).filter(|problem| !is_forbidden(problem))
}

fn is_forbidden(why: &str) -> bool {
    FORBIDDEN.iter().any(|words| why.contains(words))
}

/// Returns what the daemon was refused.
fn refused(daemon: &Daemon) -> Vec<String> {
    let of_sources = daemon.sources.iter().flat_map(|row| row.problems.iter().map(move |why| (&row.path, why)));
    let of_apiservers = daemon.apiservers.iter().filter_map(|row| Some((&row.address, row.error.as_ref()?)));
    let refused = of_sources.chain(of_apiservers).filter(|(_, why)| is_forbidden(why));
    refused.map(|(address_source, why)| format!("the daemon, {}: {}", shown(address_source), quoted(why))).collect()
}

fn permissions(context: &Context<'_>) -> Option<Finding> {
    let mut evidence = context.daemon.map(refused).unwrap_or_default();
    let own: Vec<&Denial> = needed(context).into_iter().filter(|denial| denial.is_forbidden).collect();
    // If the daemon may do what this command may not, nothing is wrong with the service.
    if evidence.is_empty() && (context.daemon.is_some() || own.is_empty()) {
        return None;
    }
    evidence.extend(own.iter().map(|denial| format!("this command, {}: {}", denial.question, quoted(&denial.why))));
    let what = "a permission is missing: nodelb cannot watch the services of the cluster";
    Some(context.finding(Kind::PermissionMissing, what).evidence(evidence))
}

/// Returns the missing answers without which no proxy can serve the service.
fn needed<'f>(context: &Context<'f>) -> Vec<&'f Denial> {
    let Some(cluster) = context.cluster else { return Vec::new() };
    [cluster.service.as_ref().err(), cluster.slices.as_ref().err()].into_iter().flatten().collect()
}

fn of_cluster(context: &Context<'_>) -> Option<Finding> {
    match &context.facts.cluster {
        // The daemon knows the services; checks of Kubernetes objects count as skipped.
        Probe::Failed(_) if context.daemon.is_some() => None,
        Probe::Failed(why) => {
            let what = "this command could not query an API server: checks of Kubernetes objects were skipped";
            Some(context.finding(Kind::ApiserverSilent, what).evidence([quoted(why)]))
        }
        Probe::Ok(cluster) if cluster.is_balanced => {
            let what = format!(
                "nodelb balances {} itself: the answers of this command depend on the services that it examines",
                cluster.via
            );
            Some(context.finding(Kind::ApiserverBalanced, what).evidence(cluster.failed.clone()))
        }
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age, shown to the second")]
fn lasting(seconds: f64) -> String {
    durations::human((seconds.max(0.0) * 1000.0) as u64)
}

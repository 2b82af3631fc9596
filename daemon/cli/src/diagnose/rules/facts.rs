//! Witnesses that could not be asked, and what that means for the service: the daemon, the apiservers that it needs,
//! the permissions.

use nodelb_core::explain::differences::ATTACHED_AGAIN;
use nodelb_core::explain::differences::NOT_CONFIGURED;
use serde_json::Value;

use super::{Context, durations, quoted, shown};
use crate::diagnose::facts::{ApiserverRow, Daemon, Denial, Probe, SourceRow};
use crate::diagnose::finding::{Finding, Kind, Severity};
use crate::diagnose::rows;

/// Texts that identify an answer about a missing permission.
const FORBIDDEN: [&str; 2] = ["403 Forbidden", "kubectl auth can-i"];

/// A watch that has failed for less than this, in seconds, is being opened again.
const UNDER_WAY: f64 = 5.0;

const ROLE: &str = "grant nodelb the role of a node proxy: kubectl create clusterrolebinding nodelb \
     --clusterrole=system:node-proxier --user=NAME (list and watch services and endpointslices)";

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
    let what = "nodelb is not running on this node; traffic continues with the last known backends";
    Finding::new(severity, Kind::DaemonSilent, what).evidence([quoted(why)]).remedy(
        "systemctl status nodelb; journalctl -u nodelb; systemctl start nodelb (or set its address with --admin)",
    )
}

fn of_daemon(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let mut found = Vec::new();
    let failed = daemon.checks.iter().filter(|check| check.result == "failed");
    let (hooks, others): (Vec<_>, Vec<_>) = failed.partition(|check| ["canary", "links"].contains(&&*check.check));
    let one_line = |check: &&crate::diagnose::facts::CheckRow| {
        format!("/readyz: {}: {}", shown(&check.check), quoted(&check.detail))
    };
    let detached = daemon.differences.iter().flatten().filter(|row| rows::is_about_hooks(row));
    let detached: Vec<String> = detached.map(|row| format!("/diff: {}", rows::one_line(row))).collect();
    if !hooks.is_empty() || !detached.is_empty() {
        let what = "the BPF hooks do not work: connections of processes on this node are not translated";
        let finding = Finding::new(Severity::Critical, Kind::HooksNotInEffect, what);
        let remedy = format!("{ATTACHED_AGAIN}; find out who detaches them");
        found.push(finding.evidence(detached).evidence(hooks.iter().map(one_line)).remedy(remedy));
    }
    if !others.is_empty() {
        let what = "the daemon is not ready";
        found.push(
            Finding::new(Severity::Warning, Kind::DaemonNotReady, what)
                .evidence(others.iter().map(one_line))
                .remedy("it becomes ready when every source has been read; see `nodelb sources`"),
        );
    }
    found.extend(absent(context, daemon));
    found.extend(away(context, daemon));
    found.extend(sources(daemon));
    found
}

/// Sources that are silent although they existed before. Their objects stay as they were last received.
fn absent(context: &Context<'_>, daemon: &Daemon) -> Vec<Finding> {
    let is_known = !daemon.services.is_empty();
    let describes = |source: &str| daemon.services.iter().any(|row| row.source.eq_ignore_ascii_case(source));
    let rows = daemon.differences.iter().flatten().filter_map(|row| Some((rows::source(row)?, row)));
    let concerned = rows.filter(|(source, _)| !is_known || describes(source));
    concerned.filter_map(|(source, row)| of_absent(context, daemon, source, row)).collect()
}

fn of_absent(context: &Context<'_>, daemon: &Daemon, source: &str, row: &Value) -> Option<Finding> {
    let is_denied = context.cluster.is_some_and(|cluster| matches!(cluster.service, Ok(None)));
    let is_lost = daemon.services.is_empty() && !is_denied;
    let severity = if is_lost || context.has_failed_connect() { Severity::Critical } else { Severity::Warning };
    let name = shown(source);
    let (what, remedy) = if row["source"] == NOT_CONFIGURED {
        (
            format!(
                "{name} is no longer configured as a source: its services are served as last known and not updated"
            ),
            format!(
                "configure [{name}] again in nodelb.toml(5), see `nodelb check-config`, then `systemctl restart nodelb`; \
                 to remove its services instead, set {name}.enabled = false first"
            ),
        )
    } else {
        let has_problem = |row: &SourceRow| row.source.eq_ignore_ascii_case(source) && !row.problems.is_empty();
        let is_away = source.eq_ignore_ascii_case("kubernetes") && is_away(daemon);
        // The source's problem is the deeper reason.
        if is_away || daemon.sources.iter().any(has_problem) {
            return None;
        }
        (
            format!("the initial sync of {name} is not complete: the kernel keeps its previous content"),
            "see `nodelb sources` and `journalctl -u nodelb`".into(),
        )
    };
    Some(
        Finding::new(severity, Kind::SourceAbsent, what)
            .evidence([format!("/diff: {}", rows::one_line(row))])
            .remedy(remedy),
    )
}

fn is_away(daemon: &Daemon) -> bool {
    !daemon.apiservers.is_empty() && daemon.session.as_ref().is_some_and(|session| session.apiserver.is_none())
}

fn away(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let session = daemon.session.as_ref().filter(|_| is_away(daemon) && refused(daemon).is_empty())?;
    let severity = if context.has_failed_connect() { Severity::Critical } else { Severity::Warning };
    let since = match session.last_response {
        Some(seconds) => format!("for {}", lasting(seconds)),
        None => "since it was started".into(),
    };
    let what = format!("the daemon has had no connection to an apiserver {since}: it serves the last known state");
    let row = |row: &ApiserverRow| {
        format!(
            "{}: {}{}",
            shown(&row.address),
            shown(&row.state),
            row.error.iter().map(|why| format!(": {}", quoted(why))).collect::<String>()
        )
    };
    let problem = session.problem.iter().map(|problem| quoted(problem));
    let own = match &context.facts.cluster {
        Probe::Failed(why) => Some(format!("this command cannot reach one either: {}", quoted(why))),
        Probe::Ok(cluster) => Some(format!("this command reaches {}", cluster.via)),
        Probe::Skipped => None,
    };
    Some(
        Finding::new(severity, Kind::ApiserverAway, what)
            .evidence(problem.chain(daemon.apiservers.iter().map(row)).chain(own))
            .remedy(
                "check that the apiservers run and are reachable from this node; nodelb retries every address (`nodelb \
                 apiservers`); a direct address in [[kubernetes.apiserver]] avoids proxies and load balancers on the \
                 path",
            ),
    )
}

fn sources(daemon: &Daemon) -> Vec<Finding> {
    let is_reported = |row: &&SourceRow| row.state != "Ok" && !row.state.is_empty();
    // The consequences of an apiserver that cannot be reached are reported once.
    let is_elsewhere = |row: &SourceRow| is_kubernetes(row) && (is_away(daemon) || row.since < UNDER_WAY);
    let rows =
        daemon.sources.iter().filter(is_reported).filter(|row| !is_elsewhere(row) && problems(row).next().is_some());
    rows.map(|row| {
        let what = format!(
            "{} ({}) has problems: {}",
            shown(&row.path),
            shown(&row.source),
            match row.state.as_str() {
                "LastGood" => "the last valid version is still served",
                _ => "none of its services are served",
            }
        );
        Finding::new(Severity::Warning, Kind::SourceProblem, what)
            .evidence(problems(row).map(quoted))
            .remedy("see `nodelb sources`")
    })
    .collect()
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
    Some(Finding::new(Severity::Critical, Kind::PermissionMissing, what).evidence(evidence).remedy(ROLE))
}

/// Returns the missing answers without which no proxy can serve the service.
fn needed<'f>(context: &Context<'f>) -> Vec<&'f Denial> {
    let Some(cluster) = context.cluster else { return Vec::new() };
    [cluster.service.as_ref().err(), cluster.slices.as_ref().err()].into_iter().flatten().collect()
}

fn of_cluster(context: &Context<'_>) -> Vec<Finding> {
    let cluster = match &context.facts.cluster {
        Probe::Failed(why) => return silent_cluster(context, why).into_iter().collect(),
        Probe::Skipped => return Vec::new(),
        Probe::Ok(cluster) => cluster,
    };
    let mut found = Vec::new();
    if cluster.is_balanced {
        let what = format!(
            "nodelb balances {} itself: the answers of this command depend on the services that it examines",
            cluster.via
        );
        let remedy = "put a direct address first in [[kubernetes.apiserver]]";
        found
            .push(Finding::new(Severity::Info, Kind::Unanswered, what).evidence(cluster.failed.clone()).remedy(remedy));
    }
    let optional = [cluster.pods.as_ref().and_then(|pods| pods.as_ref().err()), cluster.events.as_ref().err()];
    let of_daemon = needed(context).into_iter().filter(|denial| context.daemon.is_some() || !denial.is_forbidden);
    let denials = optional.into_iter().flatten().chain(cluster.has_node.as_ref().err()).chain(of_daemon);
    let (forbidden, unanswered): (Vec<&Denial>, Vec<&Denial>) = denials.partition(|denial| denial.is_forbidden);
    found.extend(not_allowed(&forbidden, &cluster.identity));
    found.extend(unanswered.iter().map(|Denial { question, why, .. }| {
        let what = format!("no answer to `{question}`: related checks were skipped");
        Finding::new(Severity::Info, Kind::Unanswered, what).evidence([quoted(why)]).remedy("try again")
    }));
    found
}

fn not_allowed(denials: &[&Denial], identity: &str) -> Option<Finding> {
    let first = denials.first()?;
    let questions: Vec<&str> = denials.iter().map(|denial| denial.question).collect();
    let resources: Vec<&str> = questions.iter().filter_map(|it| Some(it.split_once(' ')?.1)).collect();
    let what = format!("{} may not {}: related checks were skipped", shown(identity), questions.join(", "));
    let remedy = format!(
        "use a kubeconfig that may (--kubeconfig FILE), or allow it: kubectl create clusterrole nodelb-diagnose --verb=list \
         --resource={}, and a clusterrolebinding of it",
        resources.join(",")
    );
    Some(Finding::new(Severity::Info, Kind::Unanswered, what).evidence([quoted(&first.why)]).remedy(remedy))
}

fn silent_cluster(context: &Context<'_>, why: &str) -> Option<Finding> {
    // Reported with the daemon's own loss of its apiservers.
    if context.daemon.is_some_and(is_away) {
        return None;
    }
    let severity = if context.daemon.is_some() { Severity::Info } else { Severity::Warning };
    let what = "this command could not query an apiserver: checks of Kubernetes objects were skipped";
    let remedy = "set --kubeconfig, or run this command as root so that it can read the kubeconfig of the daemon";
    Some(Finding::new(severity, Kind::ApiserverSilent, what).evidence([quoted(why)]).remedy(remedy))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age, shown to the second")]
fn lasting(seconds: f64) -> String {
    durations::human((seconds.max(0.0) * 1000.0) as u64)
}

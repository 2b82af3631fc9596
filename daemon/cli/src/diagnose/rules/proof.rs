//! What connections made from here show, and the DNS name of the service.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::{Context, shown, some};
use crate::diagnose::facts::{ConnectTest, FrontendRow, Outcome};
use crate::diagnose::objects::{spec, text};
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let connect_tests = &context.facts.connect_tests;
    let found =
        [unreachable(context, connect_tests), outside_cgroup(context), accepted(context, connect_tests), name(context)];
    found.into_iter().flatten().chain(fails(context)).collect()
}

/// The connections of this command are not translated, whatever the state of the service.
fn outside_cgroup(context: &Context<'_>) -> Option<Finding> {
    let cgroup = context.facts.outside_cgroup.as_ref()?;
    let what = format!(
        "this command is not in the cgroup {} of datapath.cgroup: its own connections are not translated",
        shown(cgroup)
    );
    Some(context.finding(Kind::OutsideCgroup, what))
}

fn failure(connect: &ConnectTest) -> Option<(&ConnectTest, &str, Duration)> {
    match &connect.outcome {
        Outcome::Failed(why, after) => Some((connect, why, *after)),
        _ => None,
    }
}

fn one_line((connect, why, after): &(&ConnectTest, &str, Duration)) -> String {
    format!("{}: {why} after {}", shown(&connect.to), millis(*after))
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn unreachable(context: &Context<'_>, connect_tests: &[ConnectTest]) -> Option<Finding> {
    let tried =
        connect_tests.iter().filter(|connect| connect.is_backend && connect.outcome != Outcome::Unprovable).count();
    let failed: Vec<_> = connect_tests.iter().filter(|connect| connect.is_backend).filter_map(failure).collect();
    if failed.is_empty() {
        return None;
    }
    let severity = if failed.len() == tried { Severity::Critical } else { Severity::Warning };
    let what = format!("cannot connect to {} of {} from here", failed.len(), counted(tried, "backend"));
    let case = if failed.iter().any(|(_, why, _)| why.contains("refused")) { "refused" } else { "silent" };
    let finding = context.finding_in(Kind::BackendUnreachable, what, case, &[]).severity(severity);
    Some(finding.evidence(failed.iter().take(10).map(one_line)))
}

/// Returns why a connection to an address of the service fails, and how bad that is.
fn judged(context: &Context<'_>, connect: &ConnectTest, why: &str) -> (Kind, Severity) {
    // A connection to a NodePort goes to an address of the node.
    let end = |text: &str| text.rsplit_once(':').map(|(host, end)| (host.starts_with('['), end.to_owned()));
    let is_meant = |row: &&FrontendRow| {
        row.address == connect.to || (row.kind == "NodePort" && end(&row.address) == end(&connect.to))
    };
    let row = context.daemon.and_then(|daemon| daemon.frontends.iter().find(is_meant));
    if row.is_some_and(|row| row.backends.is_empty())
        && ["ECONNREFUSED", "EHOSTUNREACH"].iter().any(|it| why.contains(it))
    {
        return (Kind::FrontendRefused, Severity::Critical);
    }
    let backends = row.map(|row| row.backends.as_slice()).unwrap_or_default();
    let is_backend = |it: &&ConnectTest| it.is_backend && (row.is_none() || backends.contains(&it.to));
    let tests: Vec<&ConnectTest> = context.facts.connect_tests.iter().filter(is_backend).collect();
    let fails_so = |connect: &&ConnectTest| failure(connect).is_some_and(|(_, reason, _)| reason == why);
    let answers = |connect: &&ConnectTest| matches!(connect.outcome, Outcome::Accepted(_));
    match (tests.iter().any(fails_so), tests.iter().any(answers)) {
        (true, true) => (Kind::FrontendAffected, Severity::Warning),
        (true, false) => (Kind::FrontendAffected, Severity::Critical),
        (false, _) => (Kind::FrontendFails, Severity::Critical),
    }
}

/// Whether the source ranges of the service exclude this host, which says nothing about other clients.
fn is_excluded(context: &Context<'_>, connect: &ConnectTest, why: &str) -> bool {
    let mut rows = context.daemon.iter().flat_map(|daemon| &daemon.frontends).filter(|row| row.address == connect.to);
    why.contains("EHOSTUNREACH") && rows.any(|row| row.flags.iter().any(|flag| flag.starts_with("SourceRanges=")))
}

/// The addresses to which connections fail, one finding for each kind of reason.
fn fails(context: &Context<'_>) -> Vec<Finding> {
    let connect_tests = &context.facts.connect_tests;
    let failed = connect_tests.iter().filter(|connect| !connect.is_backend).filter_map(failure);
    let failed = failed.filter(|(connect, why, _)| !is_excluded(context, connect, why));
    let mut by_kind: BTreeMap<(Kind, Severity), Vec<_>> = BTreeMap::new();
    for failure in failed {
        by_kind.entry(judged(context, failure.0, failure.1)).or_default().push(failure);
    }
    let does_a_backend =
        connect_tests.iter().any(|connect| connect.is_backend && matches!(connect.outcome, Outcome::Accepted(_)));
    let found = by_kind.into_iter().map(|((kind, severity), failed)| {
        let (first, why, _) = failed[0];
        let what = format!("a connection from here to {} fails: {why}", shown(&first.to));
        let backends = does_a_backend.then_some("a backend of it can be connected to directly");
        let finding = context.finding(kind, what).severity(severity);
        finding.evidence(failed.iter().skip(1).take(10).map(one_line)).evidence(backends)
    });
    found.collect()
}

fn accepted(context: &Context<'_>, connect_tests: &[ConnectTest]) -> Option<Finding> {
    let accepted = connect_tests.iter().filter_map(|connect| match connect.outcome {
        Outcome::Accepted(after) => Some((connect, after)),
        _ => None,
    });
    let (backends, frontends): (Vec<_>, Vec<_>) = accepted.partition(|(connect, _)| connect.is_backend);
    if backends.is_empty() && frontends.is_empty() {
        return None;
    }
    let what =
        format!("{} and {} answer from here", counted(frontends.len(), "frontend"), counted(backends.len(), "backend"));
    let each = frontends.iter().chain(&backends).take(20);
    let each = each.map(|(connect, after)| format!("{} accepted after {}", shown(&connect.to), millis(*after)));
    Some(context.finding(Kind::Works, what).evidence(each))
}

fn name(context: &Context<'_>) -> Option<Finding> {
    let dns = context.facts.dns.as_ref()?;
    let cluster_ip = context.service.map(|service| text(&spec(service).cluster_ip)).unwrap_or_default();
    let kind = Kind::DnsName;
    let addresses = match &dns.addresses {
        Err(why) => {
            let what = format!("its name in the cluster is {}; it does not resolve on this host", dns.name);
            return Some(context.finding_in(kind, what, "unresolved", &[]).evidence([why.clone()]));
        }
        Ok(addresses) => addresses,
    };
    if addresses.iter().any(|address| address == cluster_ip) {
        let what = format!("its name {} resolves to its clusterIP {}", dns.name, shown(cluster_ip));
        return Some(context.finding(kind, what));
    }
    let resolved = some(addresses.clone());
    let what = format!("its name {} resolves to {resolved}, not to its clusterIP {}", dns.name, shown(cluster_ip));
    Some(match &dns.another {
        Some(another) => Finding {
            is_detail: false,
            ..context
                .finding_in(kind, what, "another", &[])
                .severity(Severity::Warning)
                .evidence([format!("this is an address of {}", shown(another))])
        },
        None => context.finding_in(kind, what, "elsewhere", &[]),
    })
}

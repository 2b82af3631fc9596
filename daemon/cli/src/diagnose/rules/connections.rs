//! What connections made from here show, and the DNS name of the service.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::{Context, critical_if, some};
use crate::diagnose::facts::{ConnectTest, Daemon, FrontendRow, Outcome, is_ipv6};
use crate::diagnose::objects::{canonical, spec, text};
use nodelb_core::text::counted;
use nodelb_report::problems::Reason;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// The kernel of this node alone answers as fast as this.
const IMMEDIATE: Duration = Duration::from_millis(5);

/// The connections of this command are not translated, whatever the state of the service.
pub(super) fn outside_cgroup(context: &Context<'_>) -> Option<Finding> {
    let cgroup = context.facts.outside_cgroup.as_ref()?;
    let what = "of datapath.cgroup: its own connections are not translated";
    Some(context.finding(Kind::OutsideCgroup, format!("this command is not in the cgroup {cgroup} {what}")))
}

/// Returns the connections to backends or to frontends that failed, each with the error.
fn failed<'f>(context: &Context<'f>, is_backend: bool) -> impl Iterator<Item = (&'f ConnectTest, &'f str)> {
    let tests = context.facts.connect_tests.iter().filter(move |connect| connect.is_backend == is_backend);
    tests.filter_map(|connect| Some((connect, connect.failure()?.0)))
}

fn one_line((connect, why): &(&ConnectTest, &str)) -> Option<String> {
    Some(format!("{}: {why} after {}", connect.to, millis(connect.failure()?.1)))
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

pub(super) fn backend_unreachable(context: &Context<'_>) -> Option<Finding> {
    let failed: Vec<_> = failed(context, true).collect();
    failed.first()?;
    let tests = context.facts.connect_tests.iter();
    let tried = tests.filter(|connect| connect.is_backend && connect.outcome != Outcome::Unprovable).count();
    let what = format!("cannot connect to {} of {} from here", failed.len(), counted(tried, "backend"));
    let case = match failed.iter().any(|(_, why)| why.contains("refused")) {
        true if context.service.is_some() => "refused-pod",
        true => "refused",
        false if failed.iter().all(|(connect, why)| is_unrouted(connect, why)) => "no-route",
        false => "silent",
    };
    let finding = context.finding_in(Kind::BackendUnreachable, what, case, &[]);
    Some(finding.severity(critical_if(failed.len() == tried)).evidence(failed.iter().take(10).filter_map(one_line)))
}

/// Whether the kernel of this node has refused the connection, because it has no route: a neighbor that does not answer
/// takes it seconds to find.
fn is_unrouted(connect: &ConnectTest, why: &str) -> bool {
    let is_immediate = connect.failure().is_some_and(|(_, after)| after < IMMEDIATE);
    why.contains("ENETUNREACH") || why.contains("EHOSTUNREACH") && is_immediate
}

/// Returns the address of the service that a connection is meant for: one to a NodePort goes to an address of the node.
fn meant<'f>(context: &Context<'f>, connect: &ConnectTest) -> Option<&'f FrontendRow> {
    let end = |text: &str| text.rsplit_once(':').map(|(_, end)| (is_ipv6(text), end.to_owned()));
    let is_meant = |row: &&FrontendRow| {
        row.address == connect.to || (row.kind == "NodePort" && end(&row.address) == end(&connect.to))
    };
    context.daemon.and_then(|daemon| daemon.frontends.iter().find(is_meant))
}

/// Programs of other software run at the same hooks, and connections reach what is no backend of nodelb's.
pub(super) fn hooks_shared(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    daemon.problems.iter().find(|problem| problem.reason == Reason::HooksShared)?;
    let elsewhere = context.facts.connect_tests.iter().filter(|connect| !connect.is_backend).filter_map(|connect| {
        let (peer, row) = (connect.peer.as_ref()?, meant(context, connect)?);
        let is_other = *peer != connect.to && !daemon.reached(row).contains(peer);
        is_other.then(|| format!("a connection to {} reached {peer}, which is no backend that nodelb uses", connect.to))
    });
    let elsewhere: Vec<String> = elsewhere.take(10).collect();
    elsewhere.first()?;
    Some(context.finding(Kind::HooksShared, "").severity(Severity::Warning).evidence(elsewhere))
}

/// Returns why a connection to an address of the service fails, and how bad that is.
fn judged(context: &Context<'_>, connect: &ConnectTest, why: &str) -> (Kind, Severity) {
    let row = meant(context, connect);
    let backends = context.daemon.zip(row).map(|(daemon, row)| daemon.reached(row));
    let mut stored = context.facts.stored.iter().flat_map(|stored| &stored.frontends);
    if (backends.is_some_and(<[String]>::is_empty)
        || stored.any(|row| row.address == connect.to && row.backends.is_empty()))
        && ["ECONNREFUSED", "EHOSTUNREACH"].iter().any(|it| why.contains(it))
    {
        return (Kind::FrontendRefused, Severity::Critical);
    }
    let is_backend = |it: &&ConnectTest| it.is_backend && backends.is_none_or(|backends| backends.contains(&it.to));
    let tests: Vec<&ConnectTest> = context.facts.connect_tests.iter().filter(is_backend).collect();
    if !tests.iter().any(|connect| connect.failure().is_some_and(|(reason, _)| reason == why)) {
        return (Kind::FrontendFails, Severity::Critical);
    }
    (Kind::FrontendAffected, critical_if(!tests.iter().any(|connect| connect.accepted().is_some())))
}

/// Whether the source ranges of the service exclude this host, which says nothing about other clients.
fn is_excluded(context: &Context<'_>, connect: &ConnectTest, why: &str) -> bool {
    let has_ranges = |row: &FrontendRow| row.flags.iter().any(|flag| flag.starts_with("SourceRanges="));
    // Without a backend, every client gets the same error.
    let excludes = |daemon: &Daemon| {
        let mut rows = daemon.frontends.iter().filter(|row| row.address == connect.to);
        rows.any(|row| has_ranges(row) && !daemon.reached(row).is_empty())
    };
    why.contains("EHOSTUNREACH") && context.daemon.is_some_and(excludes)
}

pub(super) fn not_admitted(context: &Context<'_>) -> Option<Finding> {
    let excluded = failed(context, false).filter(|(connect, why)| is_excluded(context, connect, why));
    let to: Vec<&str> = excluded.map(|(connect, _)| &*connect.to).collect();
    to.first()?;
    let what = format!("connections from here to {} get EHOSTUNREACH: the source ranges exclude this host", some(&to));
    Some(context.finding(Kind::NotAdmitted, what))
}

/// The addresses to which connections fail, one finding for each kind of reason.
pub(super) fn frontends(context: &Context<'_>) -> Vec<Finding> {
    let mut by_kind: BTreeMap<(Kind, Severity), Vec<_>> = BTreeMap::new();
    for (connect, why) in failed(context, false).filter(|(connect, why)| !is_excluded(context, connect, why)) {
        by_kind.entry(judged(context, connect, why)).or_default().push((connect, why));
    }
    let accepted = context.facts.connect_tests.iter().filter(|connect| connect.accepted().is_some());
    let (backends, frontends): (Vec<_>, Vec<_>) = accepted.partition(|connect| connect.is_backend);
    let found = by_kind.into_iter().map(|((kind, severity), failed)| {
        let (first, why) = failed[0];
        let what = format!("a connection from here to {} fails: {why}", first.to);
        let backend = (!backends.is_empty()).then_some("a backend of it can be connected to directly");
        let case = if kind == Kind::FrontendFails && context.daemon.is_none() { "no-daemon" } else { "" };
        let finding = context.finding_in(kind, what, case, &[("address", &first.to)]);
        // As in `/status`: critical is what concerns all addresses of the service.
        let finding = finding.severity(if frontends.is_empty() { severity } else { Severity::Warning });
        finding.evidence(failed.iter().skip(1).take(10).filter_map(one_line)).evidence(backend)
    });
    found.collect()
}

pub(super) fn accepted(context: &Context<'_>) -> Option<Finding> {
    let tests = context.facts.connect_tests.iter();
    let accepted = tests.filter_map(|connect| Some((connect, connect.accepted()?)));
    let (backends, frontends): (Vec<_>, Vec<_>) = accepted.partition(|(connect, _)| connect.is_backend);
    if backends.is_empty() && frontends.is_empty() {
        return None;
    }
    let what =
        format!("{} and {} answer from here", counted(frontends.len(), "frontend"), counted(backends.len(), "backend"));
    let each = frontends.iter().chain(&backends).take(20);
    let each = each.map(|(connect, after)| format!("{} accepted after {}", connect.to, millis(*after)));
    Some(context.finding(Kind::Works, what).evidence(each))
}

pub(super) fn dns_name(context: &Context<'_>) -> Option<Finding> {
    let dns = context.facts.dns.as_ref()?;
    let cluster_ip = context.service.map(|service| text(&spec(service).cluster_ip)).unwrap_or_default();
    let kind = Kind::DnsName;
    let name = &dns.name;
    let addresses = match &dns.addresses {
        Ok(addresses) => addresses,
        Err(why) => {
            let what = format!("its name in the cluster is {name}; it does not resolve on this host");
            return Some(context.finding_in(kind, what, "unresolved", &[]).evidence([why]));
        }
    };
    if addresses.iter().any(|address| *address == canonical(cluster_ip)) {
        return Some(context.finding(kind, format!("its name {name} resolves to its clusterIP {cluster_ip}")));
    }
    let what = format!("its name {name} resolves to {}, not to its clusterIP {cluster_ip}", some(addresses));
    let Some(another) = &dns.another else { return Some(context.finding_in(kind, what, "elsewhere", &[])) };
    let finding = context.finding_in(kind, what, "another", &[]).severity(Severity::Warning);
    Some(Finding { is_detail: false, ..finding.evidence([format!("this is an address of {another}")]) })
}

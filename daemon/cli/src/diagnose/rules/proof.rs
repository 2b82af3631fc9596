//! What connections made from here show, and the DNS name of the service.

use std::time::Duration;

use super::{Context, count, shown, some};
use crate::diagnose::facts::{ConnectTest, FrontendRow, Outcome};
use crate::diagnose::finding::{Finding, Kind, Severity};
use crate::diagnose::objects::{spec, text};

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let connect_tests = &context.facts.connect_tests;
    let found =
        [unreachable(connect_tests), fails(context), accepted(connect_tests), unprovable(connect_tests), name(context)];
    found.into_iter().flatten().collect()
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

fn unreachable(connect_tests: &[ConnectTest]) -> Option<Finding> {
    let tried =
        connect_tests.iter().filter(|connect| connect.is_backend && connect.outcome != Outcome::Unprovable).count();
    let failed: Vec<_> = connect_tests.iter().filter(|connect| connect.is_backend).filter_map(failure).collect();
    if failed.is_empty() {
        return None;
    }
    let is_all = failed.len() == tried;
    let severity = if is_all { Severity::Critical } else { Severity::Warning };
    let what = format!("cannot connect to {} of {} from here", failed.len(), count(tried, "backend"));
    let remedy = if failed.iter().any(|(_, why, _)| why.contains("refused")) {
        "refused: no process listens there; check that the process listens on this port, and on the address of the pod \
         instead of 127.0.0.1"
    } else {
        "no response: check the path (routes, network plugin, network policies, firewalls) and the node"
    };
    Some(
        Finding::new(severity, Kind::BackendUnreachable, what)
            .evidence(failed.iter().take(10).map(one_line))
            .remedy(remedy),
    )
}

/// Whether the failure is explained by a backend that fails in the same way, while another one answers.
fn is_by_chance(context: &Context<'_>, connect: &ConnectTest, why: &str) -> bool {
    // A connection to a NodePort goes to an address of the node.
    let end = |text: &str| text.rsplit_once(':').map(|(host, end)| (host.starts_with('['), end.to_owned()));
    let is_meant = |row: &&FrontendRow| {
        row.address == connect.to || (row.kind == "NodePort" && end(&row.address) == end(&connect.to))
    };
    let row = context.daemon.and_then(|daemon| daemon.frontends.iter().find(is_meant));
    let backends = row.map(|row| row.backends.as_slice()).unwrap_or_default();
    let mut connect_tests =
        context.facts.connect_tests.iter().filter(|connect| connect.is_backend && backends.contains(&connect.to));
    let fails_so = |connect: &ConnectTest| failure(connect).is_some_and(|(_, reason, _)| reason == why);
    connect_tests.clone().any(|connect| matches!(connect.outcome, Outcome::Accepted(_))) && connect_tests.any(fails_so)
}

fn fails(context: &Context<'_>) -> Option<Finding> {
    let connect_tests = &context.facts.connect_tests;
    let mut failed: Vec<_> = connect_tests.iter().filter(|connect| !connect.is_backend).filter_map(failure).collect();
    failed.sort_by_key(|(connect, why, _)| is_by_chance(context, connect, why));
    let first = failed.first()?;
    let is_by_chance = is_by_chance(context, first.0, first.1);
    let severity = if is_by_chance { Severity::Warning } else { Severity::Critical };
    let chance = is_by_chance.then_some("a backend of it fails in the same way: connections to the others succeed");
    let what = format!("a connection from here to {} fails: {}", shown(&first.0.to), first.1);
    let does_a_backend =
        connect_tests.iter().any(|connect| connect.is_backend && matches!(connect.outcome, Outcome::Accepted(_)));
    let backends = does_a_backend.then_some("a backend of it can be connected to directly");
    Some(
        Finding::new(severity, Kind::FrontendFails, what)
            .evidence(failed.iter().skip(1).take(10).map(one_line))
            .evidence(backends)
            .evidence(chance)
            .remedy(
                "nodelb returns ECONNREFUSED or EHOSTUNREACH only without a usable backend; other errors come from the \
                 network. Check that this process is in the cgroup whose connections are translated",
            ),
    )
}

fn accepted(connect_tests: &[ConnectTest]) -> Option<Finding> {
    let accepted = connect_tests.iter().filter_map(|connect| match connect.outcome {
        Outcome::Accepted(after) => Some((connect, after)),
        _ => None,
    });
    let (backends, frontends): (Vec<_>, Vec<_>) = accepted.partition(|(connect, _)| connect.is_backend);
    if backends.is_empty() && frontends.is_empty() {
        return None;
    }
    let what =
        format!("{} and {} answer from here", count(frontends.len(), "frontend"), count(backends.len(), "backend"));
    let each = frontends.iter().chain(&backends).take(20);
    let each = each.map(|(connect, after)| format!("{} accepted after {}", shown(&connect.to), millis(*after)));
    Some(Finding::new(Severity::Ok, Kind::Works, what).evidence(each))
}

fn unprovable(connect_tests: &[ConnectTest]) -> Option<Finding> {
    let unprovable: Vec<_> = connect_tests.iter().filter(|connect| connect.outcome == Outcome::Unprovable).collect();
    if unprovable.is_empty() {
        return None;
    }
    let what = format!(
        "whether {} answers cannot be determined from here: UDP and SCTP have no connection to try",
        some(unprovable.iter().map(|connect| shown(&connect.to)))
    );
    Some(Finding::new(Severity::Info, Kind::Unprovable, what))
}

fn name(context: &Context<'_>) -> Option<Finding> {
    let dns = context.facts.dns.as_ref()?;
    let cluster_ip = context.service.map(|service| text(&spec(service).cluster_ip)).unwrap_or_default();
    let info = |what: String| Finding::new(Severity::Info, Kind::DnsName, what);
    Some(match &dns.addresses {
        Err(why) => info(format!("its name in the cluster is {}; it does not resolve on this host", dns.name))
            .evidence([why.clone()])
            .remedy("this is normal: only pods use the DNS of the cluster. Try it from a pod"),
        Ok(addresses) if addresses.iter().any(|address| address == cluster_ip) => {
            info(format!("its name {} resolves to its clusterIP {}", dns.name, shown(cluster_ip)))
        }
        Ok(addresses) => {
            let what = format!(
                "its name {} resolves to {}, not to its clusterIP {}",
                dns.name,
                some(addresses.clone()),
                shown(cluster_ip)
            );
            match &dns.another {
                Some(another) => Finding::new(Severity::Warning, Kind::DnsName, what)
                    .evidence([format!("this is an address of {}", shown(another))])
                    .remedy(
                        "a stale record, or the DNS of another cluster: check the DNS of the cluster and \
                         /etc/resolv.conf",
                    ),
                None => info(what).remedy(
                    "this is normal if this host does not use the DNS of the cluster, or if the cluster has another \
                     domain. Try it from a pod",
                ),
            }
        }
    })
}

//! What was not checked, and with which option it is. Pure.

use std::fmt::Display;

use nodelb_core::text::{self, listed};
use nodelb_report::rows::SkippedRow;

use super::facts::{Daemon, Denial, Facts, Outcome, Probe};
use super::objects::is_for_proxies;

const KUBECONFIG: &str = "--kubeconfig";
const VERBOSE: &str = "--verbose";

/// The maximum number of addresses in one row.
const SHOWN: usize = 3;

/// Returns what was not checked; subjects with the same option are neighbours.
pub(super) fn skipped(facts: &Facts) -> Vec<SkippedRow> {
    let mut rows = of_cluster(facts);
    if facts.kubernetes_service().is_some_and(is_for_proxies) && facts.dns.is_none() {
        rows.push(row("cluster DNS", "names of services usually resolve in pods only", Some(VERBOSE)));
    }
    let from_maps = facts.stored.iter().flat_map(|stored| &stored.frontends);
    let known = facts.daemon.ok().into_iter().flat_map(|daemon| &daemon.frontends).chain(from_maps);
    let outside = known.filter(|row| row.is_only_for_outside()).map(|row| text::name(&row.address));
    rows.extend(unanswered(outside, "only clients outside the node reach IPv6 backends from IPv4"));
    let unprovable = facts.connect_tests.iter().filter(|connect| connect.outcome == Outcome::Unprovable);
    let unprovable = unprovable.map(|connect| text::name(&connect.to));
    rows.extend(unanswered(unprovable, "UDP and SCTP have no connection to try"));
    rows
}

/// The row about addresses to which no connection was made; `None` if there are none.
fn unanswered(addresses: impl Iterator<Item = impl Display>, why: &str) -> Option<SkippedRow> {
    let mut addresses = addresses.peekable();
    addresses.peek()?;
    Some(row(&format!("whether {} answers", listed(addresses, SHOWN)), why, None))
}

fn of_cluster(facts: &Facts) -> Vec<SkippedRow> {
    if facts.daemon.ok().is_some_and(Daemon::is_of_file) {
        return Vec::new();
    }
    let cluster = match &facts.cluster {
        Probe::Skipped => return Vec::new(),
        Probe::Failed(why) => return vec![row("Kubernetes objects", &text::sentence(why), Some(KUBECONFIG))],
        Probe::Ok(cluster) => cluster,
    };
    let pods = cluster.pods.as_ref().and_then(|pods| pods.as_ref().err());
    let required = [cluster.service.as_ref().err(), cluster.slices.as_ref().err()];
    let optional = [cluster.events.as_ref().err(), pods, cluster.has_node.as_ref().err()];
    required.into_iter().chain(optional).flatten().map(of_denial).collect()
}

fn of_denial(Denial { question, why, is_forbidden }: &Denial) -> SkippedRow {
    let what = match *question {
        "list events" => "Events",
        "list pods" => "Pods",
        "list nodes" => "Nodes",
        "list services" => "Services",
        _ => "EndpointSlices",
    };
    row(what, &text::sentence(why), is_forbidden.then_some(KUBECONFIG))
}

fn row(what: &str, reason: &str, option: Option<&str>) -> SkippedRow {
    SkippedRow { what: what.into(), reason: reason.into(), option: option.map(Into::into) }
}

#[cfg(test)]
#[path = "tests/skipped.rs"]
mod tests;

//! From facts to findings: pure. Each rule checks for one problem, and is silent if its witness is missing. The
//! [`catalogue`] has the severities and remedies; [`finding`](super::finding) decides which finding explains another.

mod backends;
mod connections;
mod context;
mod direct;
mod events;
mod kernel;
mod packets;
mod service;
mod witnesses;

use context::Context;
use nodelb_core::text;
use nodelb_report::problems::Problem;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

use super::catalogue;
use super::facts::Facts;
use super::finding::relate;

/// Maximum number of characters in one text of a finding.
const MAX_TEXT: usize = 4096;

/// Returns all findings, the most likely cause first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let context = Context::new(facts);
    let mut found = by_rule(&context);
    let more = by_status(&context, &found);
    found.extend(more);
    found.iter_mut().for_each(make_printable);
    relate(&mut found);
    found
}

/// The rules, each with the witnesses that it needs. The catalogue orders the kinds of findings; the order here is that
/// of findings of the same kind.
fn by_rule(context: &Context<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(witnesses::daemon_silent(context));
    if let Some(daemon) = context.daemon {
        found.extend(witnesses::checks(context, daemon));
        found.extend(witnesses::source_absent(context, daemon));
        found.extend(witnesses::apiserver_away(context, daemon));
        found.extend(witnesses::file_not_served(context, daemon));
        found.extend(witnesses::sources(context, daemon));
    }
    found.extend(witnesses::permission_missing(context));
    found.extend(witnesses::apiserver(context));
    found.extend(service::missing(context));
    found.extend(service::not_for_proxies(context));
    if let Some(service) = context.proxied() {
        found.extend(service::unknown_to_daemon(context, service));
        found.extend(backends::selects_nothing(context, service));
        found.extend(backends::not_ready(context));
        found.extend(backends::by_condition(context));
        found.extend(backends::slices(context, service));
        found.extend(backends::ports(context, service));
        found.extend(service::no_local_backend(context, service));
        found.extend(service::load_balancer_pending(context, service));
    }
    if let Some(daemon) = context.daemon {
        found.extend(service::health_checks_off(context, daemon));
        found.extend(service::no_local_backend_of_file(context, daemon));
        found.extend(kernel::not_served(context, daemon));
        found.extend(kernel::defined_twice(context, daemon));
        found.extend(kernel::held(context, daemon));
        found.extend(kernel::pending(context, daemon));
        found.extend(kernel::kept(context, daemon));
        found.extend(kernel::kernel_differs(context, daemon));
        found.extend(kernel::backends_unusable(context, daemon));
        found.extend(kernel::memory_differs(context, daemon));
        found.extend(kernel::no_backends(context, daemon));
        found.extend(connections::hooks_shared(context, daemon));
    }
    found.extend(kernel::empty_in_maps(context));
    found.extend(packets::findings(context));
    found.extend(connections::outside_cgroup(context));
    found.extend(connections::backend_unreachable(context));
    found.extend(connections::frontends(context));
    found.extend(connections::not_admitted(context));
    found.extend(connections::accepted(context));
    found.extend(connections::dns_name(context));
    found.extend(events::findings(context));
    found
}

/// Returns the problems of `/status` that concern the service and have no finding yet.
fn by_status(context: &Context<'_>, found: &[Finding]) -> Vec<Finding> {
    let is_covered = |problem: &Problem| {
        let covers = |finding: &Finding| catalogue::finding(finding.kind).problems.contains(&problem.reason);
        found.iter().any(covers)
    };
    let all = context.daemon.iter().flat_map(|daemon| &daemon.problems);
    let new = all.filter(|problem| !is_covered(problem)).filter_map(|problem| {
        let entry = catalogue::findings().iter().find(|entry| entry.problems.contains(&problem.reason))?;
        let finding = || match entry.kind {
            Kind::LastResort | Kind::BackendsQuarantined => direct::failed_checks(context, entry.kind, &*problem.cause),
            kind => context.finding(kind, &*problem.cause),
        };
        context.concerns(entry, problem).then(finding)
    });
    let mut new: Vec<Finding> = new.collect();
    new.dedup_by_key(|finding| finding.kind);
    new
}

/// Replaces control characters, which names and messages of others may have.
fn make_printable(finding: &mut Finding) {
    let texts = [&mut finding.what].into_iter().chain(&mut finding.evidence).chain(&mut finding.remedy);
    texts.for_each(|text| *text = text::limited(text, MAX_TEXT).into_owned());
}

#[cfg(test)]
#[path = "tests/rules.rs"]
mod tests;

//! The problems of `/status`: the words of findings about the same situations, and those that no other rule finds.

use nodelb_report::problems::{Problem, Severity as ProblemSeverity};
use nodelb_report::rows::{FindingRow as Finding, FindingSeverity as Severity};

use super::Context;
use crate::diagnose::catalogue::{self, FindingEntry};

/// Returns the problems that concern the service and have no finding yet.
pub(super) fn findings(context: &Context<'_>, found: &[Finding]) -> Vec<Finding> {
    let is_covered = |problem: &Problem| {
        let covers = |finding: &Finding| catalogue::finding(finding.kind).problems.contains(&problem.reason);
        found.iter().any(covers)
    };
    let all = context.daemon.iter().flat_map(|daemon| &daemon.problems);
    let new = all.filter(|problem| !is_covered(problem)).filter_map(|problem| {
        let entry = catalogue::findings().iter().find(|entry| entry.problems.contains(&problem.reason))?;
        concerns(context, entry, problem).then(|| context.finding(entry.kind, &*problem.cause).severity(of(problem)))
    });
    let mut new: Vec<Finding> = new.collect();
    new.dedup_by_key(|finding| finding.kind);
    new
}

/// Returns the problem of `/status` for the same situation.
pub(super) fn same<'f>(context: &Context<'f>, entry: &FindingEntry) -> Option<&'f Problem> {
    let daemon = context.daemon?;
    let is_meant = |it: &&Problem| entry.of_node || concerns(context, entry, it);
    daemon.problems.iter().filter(|it| entry.problems.contains(&it.reason)).find(is_meant)
}

/// Returns the command that shows more; `None` if it is this one.
pub(super) fn command(problem: &Problem) -> Option<String> {
    (!problem.command.starts_with("nodelb diagnose")).then(|| problem.command.clone())
}

/// Whether a problem concerns the service: by its name, by one of its addresses, or as it concerns every service.
fn concerns(context: &Context<'_>, entry: &FindingEntry, problem: &Problem) -> bool {
    let is_address = || {
        let mut rows = context.daemon.iter().flat_map(|daemon| &daemon.frontends);
        rows.any(|row| row.address == problem.object)
    };
    entry.for_all || problem.object == context.facts.service.to_string() || is_address()
}

fn of(problem: &Problem) -> Severity {
    match problem.severity {
        ProblemSeverity::Notice => Severity::Info,
        ProblemSeverity::Warning => Severity::Warning,
        ProblemSeverity::Critical => Severity::Critical,
    }
}

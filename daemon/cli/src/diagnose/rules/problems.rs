//! The problems of `/status`: the words of findings about the same situations, and those that no other rule finds.

use nodelb_report::problems::{Problem, Severity as ProblemSeverity};
use nodelb_report::rows::{FindingRow as Finding, FindingSeverity as Severity};

use super::context::Context;
use crate::diagnose::catalogue;

/// Returns the problems that concern the service and have no finding yet.
pub(super) fn findings(context: &Context<'_>, found: &[Finding]) -> Vec<Finding> {
    let is_covered = |problem: &Problem| {
        let covers = |finding: &Finding| catalogue::finding(finding.kind).problems.contains(&problem.reason);
        found.iter().any(covers)
    };
    let all = context.daemon.iter().flat_map(|daemon| &daemon.problems);
    let new = all.filter(|problem| !is_covered(problem)).filter_map(|problem| {
        let entry = catalogue::findings().iter().find(|entry| entry.problems.contains(&problem.reason))?;
        context.concerns(entry, problem).then(|| context.finding(entry.kind, &*problem.cause).severity(of(problem)))
    });
    let mut new: Vec<Finding> = new.collect();
    new.dedup_by_key(|finding| finding.kind);
    new
}

fn of(problem: &Problem) -> Severity {
    match problem.severity {
        ProblemSeverity::Notice => Severity::Info,
        ProblemSeverity::Warning => Severity::Warning,
        ProblemSeverity::Critical => Severity::Critical,
    }
}

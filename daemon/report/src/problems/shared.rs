//! One cause is one problem: services that have a problem for the same cause, such as a dead host, share a row.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::model::addr::Addr;
use nodelb_core::text::listed;

use super::problem::Problem;
use super::reason::{Reason, Severity};

/// The maximum number of names in one line.
const SHOWN: usize = 3;

/// The maximum number of addresses in the name of what services share.
const SHOWN_HOSTS: usize = 2;

/// Joins the problems of several services with the same cause.
pub(super) fn join(found: Vec<Problem>) -> Vec<Problem> {
    let mut by_cause: BTreeMap<(Reason, Severity, BTreeSet<Addr>, String), Vec<Problem>> = BTreeMap::new();
    let mut joined = Vec::new();
    for problem in found {
        match &problem.shared {
            Some(cause) => {
                let key = (problem.reason, problem.severity, cause.of.clone(), cause.what.clone());
                by_cause.entry(key).or_default().push(problem);
            }
            None => joined.push(problem),
        }
    }
    for ((.., of, what), mut problems) in by_cause {
        let Some(mut problem) = problems.pop() else { continue };
        if !problems.is_empty() {
            problems.push(problem.clone());
            problem.services = problems.iter().map(|it| it.object.clone()).collect();
            problem.services.sort();
            problem.since = problems.iter().filter_map(|it| it.since).min();
            problem.cause = format!("{} services: {what}: {}", problems.len(), listed(&problem.services, SHOWN));
            problem.object = listed(&of, SHOWN_HOSTS);
            let command = problem.shared.take().map(|cause| cause.command).unwrap_or_default();
            problem.command = format!("{command} {}", listed(of.first(), 1));
        }
        joined.push(problem);
    }
    joined
}

#[cfg(test)]
#[path = "../tests/shared.rs"]
mod tests;

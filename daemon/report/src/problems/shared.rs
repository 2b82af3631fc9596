//! One cause is one problem: services that have a problem for the same cause, such as a dead host, share a row.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::text::listed;

use super::problem::{Problem, Shared};
use super::reason::{Reason, Severity};

/// The maximum number of names in one line.
const SHOWN: usize = 3;

/// The maximum number of addresses in the name of what services share.
const SHOWN_HOSTS: usize = 2;

/// Joins the problems of several services with the same cause.
pub(super) fn join(found: Vec<Problem>) -> Vec<Problem> {
    let mut by_cause: BTreeMap<(Reason, Severity, Shared, String), Vec<Problem>> = BTreeMap::new();
    let mut joined = Vec::new();
    for problem in found {
        match &problem.shared {
            // What is known of some services does not say which backends failed.
            Some(cause) if cause.of != Shared::Hosts(BTreeSet::new()) => {
                let key = (problem.reason, problem.severity, cause.of.clone(), cause.what.clone());
                by_cause.entry(key).or_default().push(problem);
            }
            _ => joined.push(problem),
        }
    }
    for ((.., of, what), mut problems) in by_cause {
        let [first, _, ..] = &problems[..] else {
            joined.append(&mut problems);
            continue;
        };
        let mut services: Vec<String> = problems.iter().map(|it| it.object.clone()).collect();
        services.sort();
        let command = first.shared.as_ref().map(|cause| cause.command).unwrap_or_default();
        let (object, command) = match &of {
            Shared::Hosts(hosts) => (listed(hosts, SHOWN_HOSTS), format!("{command} {}", listed(hosts.first(), 1))),
            Shared::Part(name) => ((*name).to_owned(), command.to_owned()),
        };
        joined.push(Problem {
            object,
            since: problems.iter().filter_map(|it| it.since).min(),
            cause: format!("{} services: {what}: {}", services.len(), listed(&services, SHOWN)),
            command,
            services,
            shared: None,
            ..first.clone()
        });
    }
    joined
}

#[cfg(test)]
#[path = "../tests/shared.rs"]
mod tests;

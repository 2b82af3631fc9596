//! From facts to findings: pure. Each rule checks for one problem, and is silent if its witness is missing. The
//! [`catalogue`] has the severities and remedies; [`finding`](super::finding) decides which finding explains another.

mod context;
mod endpoints;
mod events;
mod facts;
mod kernel;
mod packets;
mod policy;
mod problems;
mod proof;
mod service;
mod slices;

use context::Context;
use nodelb_report::rows::FindingRow as Finding;

use super::facts::Facts;
use super::finding::relate;

/// Returns all findings, the most likely cause first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let context = Context::new(facts);
    let rules: &[fn(&Context<'_>) -> Vec<Finding>] = &[
        facts::findings,
        service::findings,
        endpoints::findings,
        slices::findings,
        policy::findings,
        kernel::findings,
        packets::findings,
        proof::findings,
        events::findings,
    ];
    let mut found: Vec<Finding> = rules.iter().flat_map(|rule| rule(&context)).collect();
    let more = problems::findings(&context, &found);
    found.extend(more);
    relate(&mut found);
    found
}

#[cfg(test)]
#[path = "tests/rules.rs"]
mod tests;

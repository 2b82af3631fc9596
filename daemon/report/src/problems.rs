//! What is wrong on this node: one list of problems, computed from what the daemon's parts report. Everything that
//! reports whether something is wrong reads it: `/status`, `/readyz`, the metrics. Pure: the time is an argument.

use crate::check::Check;

mod daemon;
mod effect;
mod problem;
mod reason;
mod services;

pub use problem::{ApiserverState, DroppedPackets, HOOKS, Observed, Problem, Reloads, TableUsage};
pub use reason::{Reason, ReasonEntry, Severity};

/// Every problem, the worst first: what blocks readiness, then by severity, kind, and time, the latest first.
pub fn problems(observed: &Observed) -> Vec<Problem> {
    let mut found = daemon::problems(observed);
    found.extend(services::problems(observed));
    found.sort_by(|a, b| {
        let by_weight = b.blocks_readiness.cmp(&a.blocks_readiness).then(b.severity.cmp(&a.severity));
        by_weight.then(a.reason.cmp(&b.reason)).then(b.since.cmp(&a.since)).then(a.object.cmp(&b.object))
    });
    found
}

/// Whether the checks allow traffic: no problem that follows from them blocks readiness. Cheaper than [`problems`], and
/// consistent with it.
pub fn is_ready(checks: &[Check]) -> bool {
    !checks.iter().any(daemon::blocks_readiness)
}

#[cfg(test)]
#[path = "tests/problems.rs"]
mod tests;

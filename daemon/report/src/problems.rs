//! What is wrong on this node: one list of problems, computed from what the daemon's parts report. Everything that
//! reports whether something is wrong reads it: `/status`, `/readyz`, the metrics. Pure: the time is an argument.

use crate::time::Time;
use nodelb_core::source_report::SourceReport;

use crate::check::Check;

mod daemon;
mod earlier;
mod effect;
mod ipsec;
mod outside;
mod problem;
mod reason;
mod services;
mod shared;

pub use earlier::{Beginnings, Earlier, Found};
pub use outside::{Gateway, Unforwarded, behind_firewall, gateways, needed_strict, strict, unforwarded};
pub use problem::{
    ApiserverState, DroppedPackets, DroppingChain, Firewall, HOOKS, NotForwarding, Observed, Problem, Reloads,
    TableUsage, Untranslated, Ways,
};
pub use reason::{Reason, ReasonEntry, Severity};

/// Every problem, the worst first: what blocks readiness, then by severity, kind, and time, the latest first.
pub fn problems(observed: &Observed) -> Vec<Problem> {
    let mut found = daemon::problems(observed);
    for problem in &mut found {
        problem.since = observed.earlier.since(problem.reason, &problem.object, problem.since);
    }
    found.extend(shared::join(services::problems(observed)));
    found.sort_by(|a, b| {
        let by_weight = b.blocks_readiness.cmp(&a.blocks_readiness).then(b.severity.cmp(&a.severity));
        by_weight.then(a.reason.cmp(&b.reason)).then(b.since.cmp(&a.since)).then(a.object.cmp(&b.object))
    });
    found
}

/// The problems of the daemon and the node, with the times that this run has found.
pub fn of_node(observed: &Observed) -> Vec<Found> {
    daemon::problems(observed).into_iter().map(|it| ((it.reason, it.object), it.since)).collect()
}

/// The time since which the place has been in its state, also before the start if that is a problem.
pub fn source_since(report: &SourceReport, observed: &Observed) -> Time {
    // A stale watch is no state of the place.
    let problem = daemon::source(report, observed).filter(|problem| problem.reason != Reason::WatchStale);
    let since = problem.and_then(|it| observed.earlier.since(it.reason, &it.object, it.since));
    since.unwrap_or(Time::from_seconds(report.since))
}

/// Whether the checks allow traffic: no problem that follows from them blocks readiness. Cheaper than [`problems`], and
/// consistent with it.
pub fn is_ready(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.passed)
}

#[cfg(test)]
#[path = "tests/problems.rs"]
mod tests;

//! The counters of the health checks, for metrics.

use std::collections::BTreeMap;
use std::fmt;

pub use super::state::Condition;

/// The state of the checks, and their results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of targets in each condition.
    pub targets: BTreeMap<Condition, usize>,
    /// Number of finished checks by outcome.
    pub done: BTreeMap<Outcome, u64>,
    /// Number of checks that wait for an answer.
    pub open: usize,
    /// The sum of the delays by which checks began later than they were due, in milliseconds.
    pub late_millis: u64,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A good answer.
    Passed,
    /// The connection was refused, or it was reset before an answer arrived.
    Refused,
    /// No connection or no answer in time.
    Timeout,
    /// There is no route to the backend.
    Unreachable,
    /// An answer with a status that is not expected.
    Status,
    /// An answer that is not HTTP, or no answer.
    Protocol,
    /// This host could not ask, because it had no file descriptor or no memory. Says nothing about the backend.
    Unasked,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 7] =
        [Self::Passed, Self::Refused, Self::Timeout, Self::Unreachable, Self::Status, Self::Protocol, Self::Unasked];
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

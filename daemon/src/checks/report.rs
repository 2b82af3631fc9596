//! What there is to count of the checks, for metrics.

use std::collections::BTreeMap;
use std::fmt;

pub use super::state::Condition;

/// How checks stand and went so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Targets by how they stand.
    pub targets: BTreeMap<Condition, usize>,
    /// Checks that are over, by what came of them.
    pub done: BTreeMap<Outcome, u64>,
    /// Checks that wait for an answer.
    pub open: usize,
    /// By how much checks began later than they were due, all together, in milliseconds.
    pub late_millis: u64,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A good answer.
    Passed,
    /// The connection was refused, or reset before there was an answer.
    Refused,
    /// No connection or no answer in time.
    Timeout,
    /// There is no way to the backend.
    Unreachable,
    /// An answer, with a status that is not expected.
    Status,
    /// An answer that is not HTTP, or none.
    Protocol,
    /// This host could not ask: no file descriptor, no memory. Says nothing about the backend.
    Unasked,
}

impl Outcome {
    /// Every one of them.
    pub const ALL: [Self; 7] =
        [Self::Passed, Self::Refused, Self::Timeout, Self::Unreachable, Self::Status, Self::Protocol, Self::Unasked];
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

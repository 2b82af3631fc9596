//! The health of a backend, and its changes by answers: the rise and fall counts. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The error of a backend that may not be used before its first answer.
const UNASKED: &str = "not checked yet";

/// The health of a backend.
///
/// The first answer decides alone, as in HAProxy and Envoy, because there is no earlier knowledge to outweigh. After
/// that, `rise` or `fall` consecutive answers are needed to turn the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthState {
    is_healthy: bool,
    is_decided: bool,
    /// The number of consecutive answers that contradict the present state.
    against: u8,
    /// The last bad answer; meaningful while the backend is unhealthy.
    error: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum Condition {
    Healthy,
    Unhealthy,
    /// The backend has not answered yet, or not to its present check.
    Unchecked,
}

impl HealthState {
    /// Creates the state of an unknown backend. If it `continues`, the backend was healthy when nodelb ended a moment
    /// ago, and as many bad answers turn it as without the restart.
    pub(super) fn new(starts_healthy: bool, continues: bool) -> Self {
        let is_healthy = starts_healthy || continues;
        Self { is_healthy, is_decided: continues, against: 0, error: UNASKED.into() }
    }

    /// Creates the state of a backend that was unhealthy when nodelb ended. It needs as many good answers as without
    /// the restart.
    pub(super) fn unhealthy(error: Arc<str>) -> Self {
        Self { is_healthy: false, is_decided: true, against: 0, error }
    }

    /// Returns the state for a changed check: it stays until the first answer to the new check, which decides.
    pub(super) fn undecided(mut self) -> Self {
        (self.is_decided, self.against) = (false, 0);
        self
    }

    /// Takes an answer. Returns whether it turned the state.
    pub(super) fn record(&mut self, answer: Result<(), Arc<str>>, rise: u8, fall: u8) -> bool {
        let is_good = answer.is_ok();
        if let Err(error) = answer {
            self.error = error;
        }
        let was_decided = std::mem::replace(&mut self.is_decided, true);
        if is_good == self.is_healthy {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let enough = if is_good { rise } else { fall };
        let turns = !was_decided || self.against >= enough;
        if turns {
            (self.is_healthy, self.against) = (is_good, 0);
        }
        turns
    }

    /// Returns why the backend is not to be used; `None` while it is healthy.
    pub(super) fn failure(&self) -> Option<&Arc<str>> {
        (!self.is_healthy).then_some(&self.error)
    }

    pub(super) fn condition(&self) -> Condition {
        match (self.is_decided, self.is_healthy) {
            (false, _) => Condition::Unchecked,
            (true, true) => Condition::Healthy,
            (true, false) => Condition::Unhealthy,
        }
    }
}

/// The state of the checks, and their results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub targets: BTreeMap<Condition, usize>,
    pub done: BTreeMap<CheckOutcome, u64>,
    /// Number of checks that wait for an answer.
    pub open: usize,
    /// The sum of the delays of checks that began later than they were due, in milliseconds.
    pub late_millis: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum CheckOutcome {
    Passed,
    /// The connection was refused, or it was reset before an answer arrived.
    Refused,
    /// No connection or no answer in time.
    Timeout,
    Unreachable,
    Status,
    /// An answer that is not HTTP, or no answer.
    Protocol,
    /// This host had no file descriptor or no memory for the check. Shows nothing about the backend.
    Unasked,
}

#[cfg(test)]
#[path = "tests/state.rs"]
mod tests;

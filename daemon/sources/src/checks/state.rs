//! The health of a backend, and its changes by answers: the rise and fall counts. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;

/// The health of a backend.
///
/// The first answer decides alone, as in HAProxy and Envoy, because there is no earlier knowledge to outweigh. After
/// that, `rise` or `fall` consecutive answers are needed to turn the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HealthState {
    /// What the answers so far amount to, with the last bad one; `None` before the first.
    verdict: Option<Verdict>,
    is_decided: bool,
    /// The number of consecutive answers that contradict the present state.
    against: u8,
}

/// Whether a backend is healthy, or else its error.
pub(super) type Verdict = Result<(), Arc<str>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum Condition {
    Healthy,
    Unhealthy,
    /// The backend has not answered yet, or not to its present check.
    Unchecked,
}

impl HealthState {
    /// Creates the state of a backend as it was when nodelb ended a moment ago. As many answers turn it as without the
    /// restart.
    pub(super) fn continued(verdict: Verdict) -> Self {
        Self { verdict: Some(verdict), is_decided: true, against: 0 }
    }

    /// Returns the state for a changed check: it stays until the first answer to the new check, which decides.
    pub(super) fn undecided(mut self) -> Self {
        (self.is_decided, self.against) = (false, 0);
        self
    }

    /// Takes an answer. Returns whether it turned the state.
    pub(super) fn record(&mut self, answer: Verdict, check: &HealthCheck) -> bool {
        let was_decided = std::mem::replace(&mut self.is_decided, true);
        if answer.is_ok() == self.is_healthy(check) {
            (self.verdict, self.against) = (Some(answer), 0);
            return false;
        }
        self.against = self.against.saturating_add(1);
        let enough = if answer.is_ok() { check.rise } else { check.fall };
        let turns = !was_decided || self.against >= enough;
        if turns {
            (self.verdict, self.against) = (Some(answer), 0);
        }
        turns
    }

    pub(super) fn is_healthy(&self, check: &HealthCheck) -> bool {
        self.verdict.as_ref().map_or(check.starts_healthy, Result::is_ok)
    }

    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    pub(super) fn condition(&self) -> Condition {
        match &self.verdict {
            Some(Ok(())) if self.is_decided => Condition::Healthy,
            Some(Err(_)) if self.is_decided => Condition::Unhealthy,
            _ => Condition::Unchecked,
        }
    }
}

/// Since when checks cannot be made, and why.
pub type Unsent = (Moment, Arc<str>);

/// The last check of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCheck {
    pub outcome: CheckOutcome,
    /// The time of its end.
    pub at: Moment,
    /// The time that it took.
    pub took: Duration,
}

/// The last check of each backend of a service.
pub(super) type LastChecks = OrdMap<(ServiceName, (Addr, u16)), LastCheck>;

/// The state of the checks, and their results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub targets: BTreeMap<Condition, usize>,
    pub done: BTreeMap<CheckOutcome, u64>,
    /// Number of checks that wait for an answer.
    pub open: usize,
    /// The sum of the delays of checks that began later than they were due, in milliseconds.
    pub late_millis: u64,
    /// Why this host cannot make checks, if that is so.
    pub unsent: Option<Unsent>,
    /// The last check of each backend that has been checked.
    pub last: OrdMap<(ServiceName, (Addr, u16)), LastCheck>,
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

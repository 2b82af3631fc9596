//! Decides when to log that one kind keeps failing although an apiserver is connected, and that it works again; each
//! once. Pure. Missing permissions and a missing apiserver are logged elsewhere.

use std::time::Duration;

use tokio::time::Instant;

use super::watch::State;
use crate::apiserver::error::LinkError;

/// The number of consecutive failures before a message.
const FEW: u32 = 3;

/// The time for which a kind must fail before that is logged, and work before its recovery counts: a watch may be
/// accepted and fail immediately, every time.
const STEADY: Duration = Duration::from_secs(5);

/// A message to log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The number of consecutive failures, and the latest error.
    Failing(u32, LinkError),
    /// The kind works again.
    Works,
}

/// The failures of one kind.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failures: u32,
    failing_since: Option<Instant>,
    working_since: Option<Instant>,
    error: Option<LinkError>,
    is_reported: bool,
}

impl Trouble {
    /// Records the state of the watch.
    pub(super) fn note(&mut self, now: Instant, state: &State) {
        match state {
            State::Failing(LinkError::Forbidden(_)) => self.working_since = None,
            State::Failing(error) => {
                self.failures = self.failures.saturating_add(1);
                self.failing_since = self.failing_since.or(Some(now));
                self.working_since = None;
                self.error = Some(error.clone());
            }
            State::Watching => self.working_since = self.working_since.or(Some(now)),
            State::Waiting if !self.is_reported => *self = Self::default(),
            State::Waiting | State::Asking => {}
        }
    }

    /// The message to log now, if any.
    pub(super) fn tick(&mut self, now: Instant, is_connected: bool) -> Option<Transition> {
        let is_long = |since: Option<Instant>| since.is_some_and(|since| now.duration_since(since) >= STEADY);
        if is_long(self.working_since) {
            return std::mem::take(self).is_reported.then_some(Transition::Works);
        }
        if self.is_reported || !is_connected || self.failures < FEW || !is_long(self.failing_since) {
            return None;
        }
        let error = self.error.clone()?;
        self.is_reported = true;
        Some(Transition::Failing(self.failures, error))
    }
}

#[cfg(test)]
#[path = "tests/trouble.rs"]
mod tests;

//! Whether one kind fails again and again while the apiserver is connected: then the journal tells once, and once more when
//! that is over. Pure. A missing permission and a missing apiserver are told elsewhere.

use std::time::Duration;

use tokio::time::Instant;

use super::watch::State;
use crate::apiserver::error::LinkError;

/// Fewer failures in a row are not told.
const FEW: u32 = 3;

/// For so long a kind must fail before that is told, and work before that is believed: a watch that is accepted may yet
/// fail at once, every time.
const STEADY: Duration = Duration::from_secs(5);

/// What to tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// So many requests failed in a row, the last one like this.
    Failing(u32, LinkError),
    /// It works again.
    Works,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    failures: u32,
    failing_since: Option<Instant>,
    working_since: Option<Instant>,
    error: Option<LinkError>,
    is_told: bool,
}

impl Trouble {
    /// Takes note of how the watch goes.
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
            State::Waiting if !self.is_told => *self = Self::default(),
            State::Waiting | State::Asking => {}
        }
    }

    /// What is to be told now, if anything.
    pub(super) fn beat(&mut self, now: Instant, is_connected: bool) -> Option<Turn> {
        let is_long = |since: Option<Instant>| since.is_some_and(|since| now.duration_since(since) >= STEADY);
        if is_long(self.working_since) {
            return std::mem::take(self).is_told.then_some(Turn::Works);
        }
        if self.is_told || !is_connected || self.failures < FEW || !is_long(self.failing_since) {
            return None;
        }
        let error = self.error.clone()?;
        self.is_told = true;
        Some(Turn::Failing(self.failures, error))
    }
}

#[cfg(test)]
mod tests;

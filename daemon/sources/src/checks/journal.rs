//! Messages about backends that turn: a few are logged by name, more than that as a number. A thousand backends that
//! flap cause a few lines a second; a steady state causes none. Owns the number of messages; pure except for logging.

use std::sync::Arc;

use nodelb_core::text::counted;
use nodelb_host::messages;
use tracing::{info, warn};

use super::board::Transition;

/// Maximum number of turns that are logged by name between two beats.
const BY_NAME: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Journal {
    /// The number of turns that were logged by name since the last tick.
    reported: u32,
    /// The number of other turns: to unhealthy, and to healthy.
    unhealthy: usize,
    healthy: usize,
    /// The number of checks that this host could not make, and the reason of the last one.
    unasked: usize,
    why: Option<Arc<str>>,
    has_asked: bool,
    /// Whether it was logged that checks cannot be made, and this is still so.
    is_unable: bool,
}

impl Journal {
    /// Logs the turn, or counts it.
    pub(super) fn log(&mut self, turn: &Transition) {
        if !self.admits(turn) {
            return;
        }
        let Transition { service, backend, failure } = turn;
        match failure {
            Some(error) => {
                warn!(
                    message_id = %messages::BACKEND_QUARANTINED,
                    %service, %backend, "backend {backend} of {service} is quarantined: health check failed: {error}"
                );
            }
            None => info!(
                message_id = %messages::BACKEND_PASSES,
                %service, %backend, "backend {backend} of {service} passes its health check again and receives traffic"
            ),
        }
    }

    fn admits(&mut self, turn: &Transition) -> bool {
        if self.reported < BY_NAME {
            self.reported += 1;
            return true;
        }
        *(if turn.failure.is_some() { &mut self.unhealthy } else { &mut self.healthy }) += 1;
        false
    }

    /// Logs what was counted. The caller must call it once a second.
    pub(super) fn tick(&mut self) {
        if let Some(summary) = self.summary() {
            warn!(message_id = %messages::BACKEND_QUARANTINED, "{summary}");
        }
        match self.ability() {
            Some(Ok(())) => info!(message_id = %messages::CHECKS_POSSIBLE, "health checks work again"),
            Some(Err((count, why))) => {
                warn!(
                    message_id = %messages::CHECKS_IMPOSSIBLE,
                    "{count} health checks could not be sent: {why}; their backends keep their state"
                );
            }
            None => {}
        }
    }

    /// Returns whether checks can be made, if that has changed.
    fn ability(&mut self) -> Option<Result<(), (usize, Arc<str>)>> {
        let (count, has_asked) = (std::mem::take(&mut self.unasked), std::mem::take(&mut self.has_asked));
        match self.why.take() {
            Some(why) => (!std::mem::replace(&mut self.is_unable, true)).then_some(Err((count, why))),
            None => (has_asked && std::mem::take(&mut self.is_unable)).then_some(Ok(())),
        }
    }

    pub(super) fn note_asked(&mut self) {
        self.has_asked = true;
    }

    pub(super) fn cannot_ask(&mut self, why: &Arc<str>) {
        self.unasked += 1;
        self.why = Some(Arc::clone(why));
    }

    fn summary(&mut self) -> Option<String> {
        self.reported = 0;
        let (unhealthy, healthy) = (std::mem::take(&mut self.unhealthy), std::mem::take(&mut self.healthy));
        let is_quarantined = || format!("{} quarantined", counted(unhealthy, "more backend"));
        let is_used = || format!("{} used again", counted(healthy, "more backend"));
        let what = match (unhealthy, healthy) {
            (0, 0) => return None,
            (_, 0) => is_quarantined(),
            (0, _) => is_used(),
            _ => format!("{}, {}", is_quarantined(), is_used()),
        };
        Some(format!("health checks: {what}; see `nodelb backends`"))
    }
}

#[cfg(test)]
#[path = "tests/journal.rs"]
mod tests;

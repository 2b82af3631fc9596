//! Messages about backends that turn: a few are logged by name, more than that as a number. A thousand backends that
//! flap cause a few lines a second; a steady state causes none. Owns the number of messages; pure except for logging.

use std::sync::Arc;

use nodelb_core::model::moment::Moment;
use nodelb_core::text::counted;
use nodelb_host::messages;
use tracing::{info, warn};

use super::board::Transition;
use super::state::Unsent;

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
    /// What was logged about checks that cannot be made, and since when, if this is still so.
    unable: Option<Unsent>,
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

    /// Logs what was counted. The caller must call it once a second. Returns why checks cannot be made, if that is so.
    pub(super) fn tick(&mut self, now: Moment) -> Option<Unsent> {
        if let Some(summary) = self.summary() {
            warn!(message_id = %messages::BACKEND_QUARANTINED, "{summary}");
        }
        let (count, has_asked) = (std::mem::take(&mut self.unasked), std::mem::take(&mut self.has_asked));
        match self.why.take() {
            Some(why) if self.unable.is_none() => {
                let effect = format!("could not be sent: {why}; their backends keep their state");
                warn!(message_id = %messages::CHECKS_IMPOSSIBLE, "{count} health checks {effect}");
                self.unable = Some((now, format!("health checks {effect}").into()));
            }
            None if has_asked && self.unable.take().is_some() => {
                info!(message_id = %messages::CHECKS_POSSIBLE, "health checks work again");
            }
            _ => {}
        }
        self.unable.clone()
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

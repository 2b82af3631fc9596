//! The clock behind every [`Moment`]: milliseconds since the daemon started. The one place that reads it.

use std::time::{Duration, SystemTime};

use nodelb_core::datapath::Moment;
use tokio::time::Instant;

/// A clock that starts at 0 and never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// How long it has been running.
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// When the moment is, for a timer.
    pub fn instant_of(&self, moment: Moment) -> Instant {
        self.start + Duration::from_millis(moment.0)
    }
}

/// The time in seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

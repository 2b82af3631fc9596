//! The clock behind every [`Moment`]: milliseconds since the daemon started. The one place that reads it. And the timers
//! that loops wait on.

use std::time::{Duration, SystemTime};

use nodelb_core::model::moment::Moment;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

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

/// When something began, on the clock of the world and on one that never goes back: what latencies are counted from.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// In milliseconds since 1970.
    pub unix_millis: u64,
    at: Instant,
}

impl Taken {
    /// It begins now.
    pub fn now() -> Self {
        Self { unix_millis: unix_millis(), at: Instant::now() }
    }

    /// How long ago that was.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The time now in milliseconds since 1970.
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time in seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Ticks now, and from then on this often; a tick that comes late puts off those after it.
pub fn ticking(every: Duration) -> Interval {
    let mut interval = interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits until then; for ever without a time.
pub async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

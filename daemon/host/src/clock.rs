//! The monotonic clock behind every moment, as the time since the daemon started, and timers for loops. No
//! other module reads the clock.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

/// A monotonic clock that starts at 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time since the start, in the type that the caller uses for it.
    pub fn now<T: From<Duration>>(&self) -> T {
        self.start.elapsed().into()
    }

    /// The instant of a time since the start, for a timer.
    pub fn instant_of(&self, since_start: impl Into<Duration>) -> Instant {
        self.start + since_start.into()
    }
}

/// When an operation began, as wall-clock time and on the monotonic clock. Latencies are measured from it.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Wall-clock time in milliseconds since 1970.
    pub unix_millis: u64,
    at: Instant,
}

impl Taken {
    pub fn now() -> Self {
        Self { unix_millis: unix_millis(), at: Instant::now() }
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The current time in milliseconds since 1970.
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time in seconds since 1970; 0 for an earlier time.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An interval that ticks immediately and then at the period `every`. A late tick delays all later ticks.
pub fn ticking(every: Duration) -> Interval {
    let mut interval = interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits until `instant`; forever if it is `None`.
pub async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Runs a task until it ends or `stop` resolves.
pub async fn until(stop: impl Future<Output = ()>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = stop => {}
        () = task => {}
    }
}

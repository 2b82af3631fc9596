//! The monotonic clock behind every moment, as the time since the boot, and timers for loops. No other module reads the
//! clock.

use std::time::{Duration, SystemTime};
use std::{fs, io};

use nix::time::ClockId;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

/// A monotonic clock. Its times begin at [`Self::start`], or at the boot of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    at_start: Duration,
}

impl Clock {
    /// A clock that starts now, at 0.
    pub fn start() -> Self {
        Self { start: Instant::now(), at_start: Duration::ZERO }
    }

    /// The clock that starts at the boot, so that its times can be compared with those of earlier runs.
    pub fn since_boot() -> Self {
        // It never fails. Without it, nothing of an earlier run is believed, because its times are in the future.
        let at_start = nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        Self { start: Instant::now(), at_start }
    }

    /// The time, in the type that the caller uses for it.
    pub fn now<T: From<Duration>>(&self) -> T {
        (self.at_start + self.start.elapsed()).into()
    }

    pub fn started<T: From<Duration>>(&self) -> T {
        self.at_start.into()
    }

    /// The instant of a time, for a timer. A time before the start is the start.
    pub fn instant_of(&self, time: impl Into<Duration>) -> Instant {
        self.start + time.into().saturating_sub(self.at_start)
    }
}

pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When an operation began, as wall-clock time and on the monotonic clock. Latencies are measured from it.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub unix_millis: u64,
    at: Instant,
}

impl Taken {
    pub fn now() -> Self {
        Self { unix_millis: unix_millis(), at: Instant::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

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

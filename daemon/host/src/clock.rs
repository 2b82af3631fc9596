//! The monotonic clock behind every moment, as the time since the boot, timers for loops, and time limits that a pause of
//! this process does not use up. No other module reads the clock.

use std::time::{Duration, SystemTime};
use std::{fs, io};

use nix::time::ClockId;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};

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

/// The wall-clock time in seconds since 1970.
pub fn unix_now() -> u64 {
    unix_seconds(SystemTime::now())
}

/// The wall-clock time of the boot, in seconds, according to the clock that also runs while the machine is suspended: it
/// changes when the wall clock is set.
pub fn unix_of_boot() -> i64 {
    // It never fails.
    let since_boot = nix::time::clock_gettime(ClockId::CLOCK_BOOTTIME).map(|time| time.tv_sec()).unwrap_or_default();
    unix_now().cast_signed() - since_boot
}

/// How many seconds the wall clock must have moved, compared with the monotonic one, to have been set.
const CLOCK_SET: u64 = 2;

/// Whether the wall clock was set between two such times of the zero of a monotonic clock.
pub const fn was_set(before: i64, now: i64) -> bool {
    before.abs_diff(now) > CLOCK_SET
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

/// A time limit that ends this long after its deadline shows that the process did not run: a timer of the runtime is late
/// by some milliseconds, also on a busy machine.
const PAUSE: Duration = Duration::from_millis(250);

/// Why work has no result at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It took too long.
    Work,
    /// This process did not run (a signal, a frozen cgroup, a suspended machine), which is no fault of others.
    Process,
}

/// Waits for work until the deadline. After a pause of this process, time limits end before the runtime has looked at what
/// arrived meanwhile: the work gets another moment to look at it.
pub fn by<T>(deadline: Instant, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Late>> {
    // On the heap, because futures of the callers would contain it twice.
    let mut work = Box::pin(work);
    async move {
        if let Ok(done) = timeout_at(deadline, &mut work).await {
            return Ok(done);
        }
        if Instant::now() <= deadline + PAUSE {
            return Err(Late::Work);
        }
        timeout(PAUSE, work).await.map_err(|_elapsed| Late::Process)
    }
}

/// Runs a task until it ends or `stop` resolves.
pub async fn until(stop: impl Future<Output = ()>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = stop => {}
        () = task => {}
    }
}

#[cfg(test)]
#[path = "tests/clock.rs"]
mod tests;

//! Points in time on the command line: ages, times of day in the time zone of this host, and RFC 3339.

use std::path::Path;
use std::sync::LazyLock;

use jiff::civil::{self, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use nodelb_core::durations;
use nodelb_report::time::Time;

const ZONES: &str = "/usr/share/zoneinfo";
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// The time zone of this process, as the C library determines it: `TZ`, then `/etc/localtime`, then UTC.
pub(super) static ZONE: LazyLock<TimeZone> = LazyLock::new(|| {
    let set = std::env::var("TZ").ok();
    let found = match set.as_deref() {
        None => from_file(Path::new("/etc/localtime")),
        Some(name) => {
            let name = name.strip_prefix(':').unwrap_or(name);
            from_file(&Path::new(ZONES).join(name)).or_else(|| TimeZone::posix(name).ok())
        }
    };
    found.unwrap_or(TimeZone::UTC)
});

fn from_file(path: &Path) -> Option<TimeZone> {
    TimeZone::tzif("Local", &std::fs::read(path).ok()?).ok()
}

/// A point in time as a user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// This time before now, in milliseconds.
    Ago(u64),
    At(Time),
    Local(DateTime),
    /// The time of day, of today or yesterday.
    Clock(civil::Time),
}

pub(super) fn when(text: &str) -> Result<When, String> {
    let age = durations::parse(text).filter(|_| !text.is_empty());
    if let Some(age) = age {
        return Ok(When::Ago(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
    }
    let at = text.parse::<Timestamp>().ok().and_then(|at| u64::try_from(at.as_millisecond()).ok());
    let local = || text.parse().ok().filter(|_| text.contains(':')).map(When::Local);
    let clock = || text.parse().ok().filter(|_| text.contains(':')).map(When::Clock);
    let found = at.map(|at| When::At(Time(at))).or_else(local).or_else(clock);
    found.ok_or_else(|| {
        format!("`{text}` is not a time, such as 10m (ago), 03:10, \"2026-11-20 03:10\" or 2026-11-20T03:10:00Z")
    })
}

/// The first and the last point in time of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) since: Time,
    pub(super) until: Time,
}

impl Range {
    /// A time of day is the last one before now; the end of a range that begins at a given time is the first one after it.
    pub(super) fn new((since, until): (Option<When>, Option<When>), now: Time, zone: &TimeZone) -> Self {
        let since = since.map(|since| resolve(since, None, now, zone));
        let until = until.map(|until| resolve(until, since, now, zone));
        Self { since: since.unwrap_or(Time(0)), until: until.unwrap_or(Time(u64::MAX)) }
    }

    pub(super) fn contains(&self, time: Time) -> bool {
        (self.since..=self.until).contains(&time)
    }
}

fn resolve(when: When, since: Option<Time>, now: Time, zone: &TimeZone) -> Time {
    let time = |local: DateTime| {
        let millis = zone.to_timestamp(local).map(Timestamp::as_millisecond).unwrap_or_default();
        Time(u64::try_from(millis).unwrap_or_default())
    };
    match when {
        When::Ago(age) => Time(now.0.saturating_sub(age)),
        When::At(time) => time,
        When::Local(local) => time(local),
        When::Clock(clock) => {
            let reference = since.unwrap_or(now);
            let day = i64::try_from(reference.0).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
            let local = zone.to_datetime(day.unwrap_or_default()).date().to_datetime(clock);
            let found = time(local);
            match since {
                Some(since) if found < since => time(local.saturating_add(DAY)),
                None if found > now => time(local.saturating_sub(DAY)),
                _ => found,
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/times.rs"]
mod tests;

//! Kubernetes timestamps: RFC 3339 to time since 1970.

use std::time::Duration;

use jiff::Timestamp;

/// Seconds since 1970 of a text such as `2024-05-01T12:00:00Z`; fractions are cut off. `None` for anything else, and
/// for times before 1970.
pub fn seconds(text: &str) -> Option<u64> {
    since_1970(text).map(|since| since.as_secs())
}

/// The same in milliseconds.
pub fn millis(text: &str) -> Option<u64> {
    u64::try_from(since_1970(text)?.as_millis()).ok()
}

fn since_1970(text: &str) -> Option<Duration> {
    let time: Timestamp = text.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
mod tests;

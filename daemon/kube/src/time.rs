//! Parses Kubernetes timestamps (RFC 3339).

use std::time::Duration;

use jiff::Timestamp;

/// Parses a timestamp such as `2024-05-01T12:00:00Z` into seconds since 1970 and drops fractions. `None` for other
/// texts and for times before 1970.
pub fn seconds(text: &str) -> Option<u64> {
    since_1970(text).map(|since| since.as_secs())
}

/// Like [`seconds`], in milliseconds.
pub fn millis(text: &str) -> Option<u64> {
    u64::try_from(since_1970(text)?.as_millis()).ok()
}

fn since_1970(text: &str) -> Option<Duration> {
    let time: Timestamp = text.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

#[cfg(test)]
#[path = "tests/time.rs"]
mod tests;

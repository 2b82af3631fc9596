//! Timestamps as in Kubernetes objects.

use std::time::SystemTime;

/// RFC 3339 in UTC, with a resolution of one second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    format!("{:.0}", jiff::Timestamp::try_from(time).unwrap_or_default())
}

#[cfg(test)]
#[path = "tests/clock.rs"]
mod tests;

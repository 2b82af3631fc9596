//! Converts seconds since 1970 to dates and times in readable form (RFC 3339), in UTC.

use jiff::Timestamp;

/// Formats seconds since 1970 as `2026-11-20T12:03:04Z`; `None` from the last day of the year 9999 on.
pub fn utc(seconds: u64) -> Option<String> {
    let time = Timestamp::from_second(i64::try_from(seconds).ok()?);
    Some(time.ok()?.to_string())
}

#[cfg(test)]
#[path = "tests/calendar.rs"]
mod tests;

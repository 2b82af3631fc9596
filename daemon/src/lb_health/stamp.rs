//! Times as Go's HTTP server and JSON encoder write them, in UTC. Pure.

use std::time::{Duration, SystemTime};

use nodelb_core::model::calendar::{self, DAY};

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// 1970 began with a Thursday.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// As `2026-11-20T15:04:05.000000001Z`, without zeros at the end of the fraction (RFC 3339, Go's `RFC3339Nano`).
pub(super) fn rfc3339(time: SystemTime) -> String {
    let since = since_1970(time);
    let (year, month, day) = calendar::date(since.as_secs() / DAY);
    let fraction = format!("{:09}", since.subsec_nanos());
    let fraction = match fraction.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{}{fraction}Z", calendar::time(since.as_secs()))
}

/// As `Fri, 20 Nov 2026 15:04:05 GMT` (RFC 9110, IMF-fixdate).
pub(super) fn http_date(time: SystemTime) -> String {
    let since = since_1970(time);
    let days = since.as_secs() / DAY;
    let (year, month, day) = calendar::date(days);
    let (weekday, month) = (name(&WEEKDAYS, days % 7), name(&MONTHS, month - 1));
    format!("{weekday}, {day:02} {month} {year:04} {} GMT", calendar::time(since.as_secs()))
}

fn name(names: &[&'static str], number: u64) -> &'static str {
    usize::try_from(number).ok().and_then(|number| names.get(number)).copied().unwrap_or_default()
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;

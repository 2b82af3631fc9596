//! Times as Go's HTTP server and JSON encoder write them, in UTC. Pure.

use std::time::{Duration, SystemTime};

const DAY: u64 = 86_400;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// 1970 began with a Thursday.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// As `2026-11-20T15:04:05.000000001Z`, without zeros at the end of the fraction (RFC 3339, Go's `RFC3339Nano`).
pub(super) fn rfc3339(time: SystemTime) -> String {
    let since = since_1970(time);
    let (year, month, day) = date(since.as_secs() / DAY);
    let fraction = format!("{:09}", since.subsec_nanos());
    let fraction = match fraction.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{}{fraction}Z", clock(since))
}

/// As `Fri, 20 Nov 2026 15:04:05 GMT` (RFC 9110, IMF-fixdate).
pub(super) fn http_date(time: SystemTime) -> String {
    let since = since_1970(time);
    let days = since.as_secs() / DAY;
    let (year, month, day) = date(days);
    let (weekday, month) = (name(&WEEKDAYS, days % 7), name(&MONTHS, month - 1));
    format!("{weekday}, {day:02} {month} {year:04} {} GMT", clock(since))
}

fn name(names: &[&'static str], number: u64) -> &'static str {
    usize::try_from(number).ok().and_then(|number| names.get(number)).copied().unwrap_or_default()
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn clock(since: Duration) -> String {
    let second = since.as_secs() % DAY;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Year, month and day of the Gregorian calendar. Years are counted from March, so that the leap day is the last of its
/// year; 153 days are the five months from March to July, a pattern that repeats.
fn date(days: u64) -> (u64, u64, u64) {
    // From the first of March of the year 0; an era is the 400 years after which the calendar repeats.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month < 3), month, day)
}

#[cfg(test)]
mod tests;

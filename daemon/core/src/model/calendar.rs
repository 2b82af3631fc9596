//! The calendar: seconds since 1970 as dates and times people read, in UTC.

/// Seconds of a day, leap seconds left out as in Unix time.
pub const DAY: u64 = 86_400;

/// `2026-11-20T12:03:04Z` of seconds since 1970 (RFC 3339); `None` beyond the year 9999.
pub fn utc(seconds: u64) -> Option<String> {
    const LAST: u64 = 253_402_300_799;
    if seconds > LAST {
        return None;
    }
    let (year, month, day) = date(seconds / DAY);
    Some(format!("{year:04}-{month:02}-{day:02}T{}Z", time(seconds)))
}

/// `12:03:04` of seconds since 1970.
pub fn time(seconds: u64) -> String {
    let second = seconds % DAY;
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// Year, month and day of the proleptic Gregorian calendar, of days since 1970. Years are counted from March, so that the
/// leap day is the last of its year; 153 days are the five months from March to July, a pattern that repeats.
pub fn date(days: u64) -> (u64, u64, u64) {
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

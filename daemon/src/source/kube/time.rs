//! Kubernetes timestamps: RFC 3339 to time since 1970.

/// Seconds since 1970 of a text such as `2024-05-01T12:00:00Z`; fractions are cut off. `None` for anything else, and
/// for times before 1970.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    millis(text).map(|millis| millis / 1_000)
}

/// The same in milliseconds.
pub(crate) fn millis(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't'])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(whole, ':', [2, 2, 2])?;
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = hour < 24 && minute < 60 && second <= 60 && fraction.bytes().all(|b| b.is_ascii_digit());
    if !is_date || !is_time {
        return None;
    }
    let local = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(local - zone_offset(zone)?).ok()?;
    let thousandths: String = fraction.chars().chain("00".chars()).take(3).collect();
    Some(seconds * 1_000 + thousandths.parse::<u64>().ok()?)
}

/// Seconds east of UTC of `Z` or `+hh:mm`.
fn zone_offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let [hours, minutes] = numbers(zone.get(1..)?, ':', [2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Decimal numbers of exactly these widths.
fn numbers<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar. Years are counted from March, so that the leap
/// day is the last of its year; 153 days are the five months from March to July, a pattern that repeats.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month_from_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests;

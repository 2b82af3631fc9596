//! Durations as users write and read them: exact, and rounded in the form of the AGE column of `kubectl get`, so that the
//! two are easy to compare.

use std::time::Duration;

/// The units and their milliseconds, the largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses numbers with a unit of `d`, `h`, `m`, `s` or `ms` each, the largest unit first, such as `1h30m`.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0_u64;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (name, left) = after.split_at(after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len()));
        let (_, unit) = units.find(|(unit, _)| *unit == name)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*unit)?)?;
        rest = left;
    }
    Some(Duration::from_millis(total))
}

/// The duration in whole milliseconds, in the form that [`parse`] accepts.
pub fn exact(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in UNITS {
        if rest >= millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

const SECONDS_PER_MINUTE: u64 = 60;
const MINUTES_PER_HOUR: u64 = 60;
const HOURS_PER_DAY: u64 = 24;
const DAYS_PER_YEAR: u64 = 365;

/// Formats as `4m20s`, `3h12m` or `5d`: the larger unit, and the smaller one while it is significant.
pub fn human(millis: u64) -> String {
    let seconds = millis / 1000;
    let minutes = seconds / SECONDS_PER_MINUTE;
    let hours = minutes / MINUTES_PER_HOUR;
    let days = hours / HOURS_PER_DAY;
    if minutes < 2 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two_units((minutes, "m"), (seconds % SECONDS_PER_MINUTE, "s"))
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        two_units((hours, "h"), (minutes % MINUTES_PER_HOUR, "m"))
    } else if days < 2 {
        format!("{hours}h")
    } else if days < 8 {
        two_units((days, "d"), (hours % HOURS_PER_DAY, "h"))
    } else if days < 2 * DAYS_PER_YEAR {
        format!("{days}d")
    } else {
        two_units((days / DAYS_PER_YEAR, "y"), (days % DAYS_PER_YEAR, "d"))
    }
}

/// Formats as `350us`, `12.3ms` or `4.2s`; more than two minutes as [`human`] does.
pub fn short(micros: u64) -> String {
    match micros {
        ..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}.{}ms", micros / 1_000, micros % 1_000 / 100),
        1_000_000..120_000_000 => format!("{}.{}s", micros / 1_000_000, micros % 1_000_000 / 100_000),
        _ => human(micros / 1_000),
    }
}

fn two_units((large, large_unit): (u64, &str), (small, small_unit): (u64, &str)) -> String {
    match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    }
}

#[cfg(test)]
#[path = "tests/durations.rs"]
mod tests;

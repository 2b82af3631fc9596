//! Durations as users read them: rounded in the form of the AGE column of `kubectl get`, so that the two are easy to
//! compare.

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

//! Durations as users write them, and as they are written back: exact.

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

#[cfg(test)]
#[path = "tests/durations.rs"]
mod tests;

//! Compares figures with a stored baseline.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// The figures of a part: the names of its costs with the values.
pub(crate) type Figures = BTreeMap<&'static str, u64>;

/// Prints every cost with the change; returns whether none differs by more than its tolerance in percent.
pub(crate) fn compare(
    before: &Table,
    after: &BTreeMap<impl AsRef<str>, Figures>,
    tolerance: impl Fn(&str) -> f64,
) -> bool {
    let mut is_same = true;
    println!("{:18} {:13} {:>14} {:>14} {:>9}", "part", "cost", "baseline", "now", "change");
    for (part, figures) in after {
        let part = part.as_ref();
        for (cost, &now) in figures {
            let stored = before.get(part).and_then(|part| part.get(cost)).and_then(Value::as_integer);
            let Some(stored) = stored else {
                println!("{part:18} {cost:13} {:>14} {now:>14}   NEW", "");
                is_same = false;
                continue;
            };
            let percent = (now as f64 - stored as f64) / stored.max(1) as f64 * 100.0;
            let is_different = percent.abs() > tolerance(cost);
            is_same &= !is_different;
            let mark = if is_different { "  DIFFERS" } else { "" };
            println!("{part:18} {cost:13} {stored:>14} {now:>14} {percent:>+7.2} %{mark}");
        }
    }
    for part in before.iter().filter(|(_, value)| value.is_table()).map(|(name, _)| name) {
        if !after.keys().any(|measured| measured.as_ref() == part) {
            println!("{part:18} is no longer measured: REMOVED");
            is_same = false;
        }
    }
    is_same
}

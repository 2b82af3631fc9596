//! Rows of the admin API that are mainly quoted, as text. Pure, and tolerant, because a daemon of another version has
//! other columns.

use nodelb_core::text;
use nodelb_report::time::Time;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::facts::Difference;

/// Maximum number of values of a list that are shown.
const MOST: usize = 12;

impl Difference {
    pub(super) fn text(&self) -> String {
        let sides = [("source", &self.source), ("memory", &self.memory), ("kernel", &self.kernel)];
        let sides = sides.into_iter().filter_map(|(side, value)| Some(format!("{side}: {}", quoted(value)?)));
        let sides: Vec<String> = sides.collect();
        let cause = quoted(&self.likely_cause).map(|cause| format!("; {cause}")).unwrap_or_default();
        format!("nodelb diff: {}: {}{cause}", text::sentence(&self.what), sides.join(", "))
    }

    /// Whether a hook is not attached where it should be.
    pub(super) fn is_about_hooks(&self) -> bool {
        self.what == "hooks"
    }

    /// Whether that is because its pin cannot be opened.
    pub(super) fn is_about_pin(&self) -> bool {
        self.kernel
            .as_deref()
            .is_some_and(|fault| fault.contains(": its pin ") && fault.contains(" cannot be opened: "))
    }

    /// Whether a map does not contain what the daemon wants.
    pub(super) fn is_about_maps(&self) -> bool {
        self.between == "memory/kernel" && !self.is_about_hooks()
    }

    /// Returns the source if the row concerns a source as a whole, such as one that is not configured.
    pub(super) fn whole_source(&self) -> Option<&str> {
        self.what.strip_prefix("source ")
    }
}

fn quoted(column: &Option<String>) -> Option<String> {
    column.as_deref().filter(|value| !value.is_empty()).map(|value| text::sentence(value).into_owned())
}

/// Returns the verdict of `/trace` as text; `None` without a verdict.
pub(super) fn trace(row: &Value) -> Option<String> {
    let errno = column(row, "errno").map(|errno| format!(" with {errno}")).unwrap_or_default();
    Some(format!("nodelb trace {}: {}{errno}", column(row, "to")?, column(row, "verdict")?))
}

/// Returns a row of `/history` as text: the time, the actor, and what was removed.
pub(super) fn step(row: &Value) -> String {
    let named = [
        ("time", ""),
        ("what", ""),
        ("removed", "removed "),
        ("held", "held "),
        ("object", "by "),
        ("resource_version", "resourceVersion "),
        ("writer", "written by "),
    ];
    let words = named.into_iter().filter_map(|(name, word)| Some(format!("{word}{}", column(row, name)?)));
    format!("nodelb history: {}", words.collect::<Vec<_>>().join(", "))
}

/// Whether a row of `/history` says that backends were removed.
pub(super) fn takes_away(row: &Value) -> bool {
    column(row, "removed").or(column(row, "held")).is_some()
}

/// Returns a column as text; `None` if it is missing or empty.
fn column(row: &Value, name: &str) -> Option<String> {
    let text =
        |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text::sentence(text).into_owned());
    let text = match row.get(name)? {
        Value::Null => return None,
        Value::Array(list) => list.iter().take(MOST).map(text).collect::<Vec<_>>().join(" "),
        value => text(value),
    };
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the rows of a table of an answer, or its only row, without empty columns; no rows if the answer does not have the table.
pub(super) fn of(answer: &Value, table: &str) -> Vec<Value> {
    let mut rows = match answer.get(table) {
        Some(Value::Array(rows)) => rows.clone(),
        Some(row @ Value::Object(_)) => vec![row.clone()],
        _ => Vec::new(),
    };
    rows.iter_mut().filter_map(Value::as_object_mut).for_each(|row| row.retain(|_, value| !value.is_null()));
    rows
}

/// Returns the rows of this type. A row with another form is left out.
pub(super) fn typed<T: DeserializeOwned>(rows: Vec<Value>) -> Vec<T> {
    rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect()
}

/// Replaces the times of a row by the seconds since then.
pub(super) fn to_ages(row: &mut Value, now: Time) {
    for name in ["since", "last_response", "last", "first_packet"] {
        let Some(time) = row.get(name).and_then(|time| serde_json::from_value::<Time>(time.clone()).ok()) else {
            continue;
        };
        row[name] = (time.age(now) as f64 / 1_000.0).into();
    }
}

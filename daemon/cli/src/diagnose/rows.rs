//! Rows of the admin API that are only quoted, as text. Pure, and tolerant, because a daemon of another version has other
//! columns.

use nodelb_core::model::time::Time;
use nodelb_core::text;
use serde_json::Value;

/// Maximum number of values of a list that are shown.
const MOST: usize = 12;

/// Returns a row of `/diff` as text: what differs, and the likely cause.
pub(super) fn difference(row: &Value) -> String {
    let column = |name: &str| row.get(name).filter(|value| !is_empty(value)).map(text);
    let sides = ["source", "memory", "kernel"];
    let sides = sides.into_iter().filter_map(|side| Some(format!("{side}: {}", column(side)?)));
    let sides: Vec<String> = sides.collect();
    let what = column("what").unwrap_or_default();
    let cause = column("likely_cause").map(|cause| format!("; {cause}")).unwrap_or_default();
    format!("nodelb diff: {what}: {}{cause}", sides.join(", "))
}

/// Returns the verdict of `/trace` as text; `None` without a verdict.
pub(super) fn trace(row: &Value) -> Option<String> {
    let column = |name: &str| row.get(name).filter(|value| !is_empty(value)).map(text);
    let errno = column("errno").map(|errno| format!(" with {errno}")).unwrap_or_default();
    Some(format!("nodelb trace {}: {}{errno}", column("to")?, column("verdict")?))
}

/// Returns a row of `/history` as text: the time, the actor, and what was removed.
pub(super) fn step(row: &Value) -> String {
    let column = |name: &str| row.get(name).filter(|value| !is_empty(value)).map(text);
    let mut words: Vec<String> = ["time", "what"].into_iter().filter_map(column).collect();
    let named = [
        ("removed", "removed"),
        ("held", "held"),
        ("object", "by"),
        ("resource_version", "resourceVersion"),
        ("writer", "written by"),
    ];
    words.extend(named.into_iter().filter_map(|(name, word)| Some(format!("{word} {}", column(name)?))));
    format!("nodelb history: {}", words.join(", "))
}

/// Whether a row of `/history` says that backends were removed.
pub(super) fn takes_away(row: &Value) -> bool {
    ["removed", "held"].iter().any(|column| row.get(column).is_some_and(|value| !is_empty(value)))
}

/// Whether a row of `/diff` says that a hook is not attached where it should be.
pub(super) fn is_about_hooks(row: &Value) -> bool {
    row["what"] == "hooks"
}

/// Returns the source of a row of `/diff` that concerns a source as a whole, such as one that is not configured.
pub(super) fn source(row: &Value) -> Option<&str> {
    row["what"].as_str()?.strip_prefix("source ")
}

/// Whether a row of `/diff` says that a map does not contain what the daemon wants.
pub(super) fn is_about_maps(row: &Value) -> bool {
    row["between"] == "memory/kernel" && !is_about_hooks(row)
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

/// Replaces the times of a row by the seconds since then.
pub(super) fn to_ages(row: &mut Value, now: Time) {
    for name in ["since", "last_response", "first", "last"] {
        let Some(time) = row.get(name).and_then(|time| serde_json::from_value::<Time>(time.clone()).ok()) else {
            continue;
        };
        row[name] = (time.age(now) as f64 / 1_000.0).into();
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(columns) => columns.is_empty(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text::sentence(text).into_owned(),
        Value::Array(list) => {
            let each: Vec<String> = list.iter().take(MOST).map(text).collect();
            each.join(" ")
        }
        Value::Object(columns) => columns.values().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

//! The differences between two versions of a Service or EndpointSlice. Compares the JSON that the apiserver sends,
//! including fields that nodelb does not decode: such a field, for example an annotation, may explain an update. Pure.
//! The objects are untrusted, therefore the output is bounded and printable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use nodelb_core::text;

/// The maximum number of differences reported for one event; further ones are only counted.
const MOST: usize = 40;

/// Objects are compared field by field to this depth. Deeper values are compared as a whole.
const DEPTH: usize = 5;

/// The maximum length of a value, in characters.
const MAX_VALUE: usize = 120;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// The field: `backends`, `ports`, `annotations`, `labels`, or a path such as `spec.type`.
    pub field: String,
    /// The old value; `None` if the field is new.
    pub from: Option<String>,
    /// The new value; `None` if the field was removed.
    pub to: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, from, to } = self;
        match (from, to) {
            (None, Some(to)) => write!(f, "{field} +{to}"),
            (Some(from), None) => write!(f, "{field} -{from}"),
            (Some(from), Some(to)) if from == to => write!(f, "{field} ~{to}"),
            (Some(from), Some(to)) => write!(f, "{field} {from} -> {to}"),
            (None, None) => f.write_str(field),
        }
    }
}

/// All differences, sorted by field and limited, and the number of omitted ones. Fields that every write changes, such
/// as resourceVersion and managedFields, are ignored. `before` is `None` for a new object, `after` for a deleted one.
pub fn differences(before: Option<&Value>, after: Option<&Value>) -> (Vec<Difference>, usize) {
    let (before, after) = (before.unwrap_or(&Value::Null), after.unwrap_or(&Value::Null));
    let mut found = BTreeSet::new();
    keyed("labels", [before, after].map(|it| &it["metadata"]["labels"]), false, &mut found);
    keyed("annotations", [before, after].map(|it| &it["metadata"]["annotations"]), true, &mut found);
    if is_slice(before) || is_slice(after) {
        backend_changes([before, after], &mut found);
        without_endpoints(before, after, &mut found);
    }
    let [rest_before, rest_after] = [before, after].map(rest);
    fields("", (&rest_before, &rest_after), DEPTH, &mut found);
    let more = found.len().saturating_sub(MOST);
    (found.into_iter().take(MOST).collect(), more)
}

/// Whether there are differences, and all of them are in annotations.
pub fn is_annotations_only(differences: &[Difference]) -> bool {
    !differences.is_empty() && differences.iter().all(|difference| difference.field == "annotations")
}

fn is_slice(object: &Value) -> bool {
    object["addressType"].is_string() || object["kind"] == "EndpointSlice"
}

/// The object without the parts that are compared separately, and without the fields that every write changes.
fn rest(object: &Value) -> Value {
    let Value::Object(fields) = object else { return Value::Null };
    let mut rest: Map<String, Value> = Map::new();
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("kind" | "apiVersion", _) => {}
            ("endpoints", _) if is_slice(object) => {}
            ("metadata", Value::Object(metadata)) => {
                let ignored =
                    ["labels", "annotations", "managedFields", "resourceVersion", "generation", "name", "namespace"];
                let kept = metadata.iter().filter(|(name, _)| !ignored.contains(&name.as_str()));
                rest.insert(name.clone(), kept.map(|(name, value)| (name.clone(), value.clone())).collect());
            }
            _ => drop(rest.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(rest)
}

/// Compares maps of strings. The values of annotations may be confidential, therefore only their keys are reported.
fn keyed(field: &str, [before, after]: [&Value; 2], keys_only: bool, found: &mut BTreeSet<Difference>) {
    let empty = Map::new();
    let [before, after] = [before, after].map(|map| map.as_object().unwrap_or(&empty));
    let shown = |key: &str, value: &Value| match value {
        _ if keys_only => text::name(key).into_owned(),
        value => format!("{}={}", text::name(key), text(value)),
    };
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (from, to) = (before.get(key), after.get(key));
        if from != to {
            let [from, to] = [from, to].map(|value| value.map(|value| shown(key, value)));
            found.insert(Difference { field: field.into(), from, to });
        }
    }
}

fn backends(slice: &Value) -> BTreeMap<String, String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let each = endpoints.flat_map(|endpoint| {
        let addresses = endpoint["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str);
        addresses.map(move |address| (text::name(address).into_owned(), state(endpoint)))
    });
    each.collect()
}

/// The state of an endpoint: `ready`, `not ready` or `terminating, serving`; then its pod, node and hints.
fn state(endpoint: &Value) -> String {
    let condition = |name: &str| endpoint["conditions"][name].as_bool();
    let is_ready = condition("ready").unwrap_or(true);
    let mut state = vec![match (condition("terminating"), condition("serving")) {
        (Some(true), Some(true)) => "terminating, serving".to_owned(),
        (Some(true), _) => "terminating".to_owned(),
        _ if is_ready => "ready".to_owned(),
        _ => "not ready".to_owned(),
    }];
    for (field, value) in [("pod", &endpoint["targetRef"]["name"]), ("node", &endpoint["nodeName"])] {
        state.extend(value.as_str().map(|value| format!("{field} {}", text::name(value))));
    }
    state.extend(
        Some(text(&endpoint["hints"])).filter(|_| !endpoint["hints"].is_null()).map(|hints| format!("hints {hints}")),
    );
    state.join(", ")
}

fn backend_changes(slices: [&Value; 2], found: &mut BTreeSet<Difference>) {
    let [before, after] = slices.map(backends);
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let shown = |state: &String| format!("{name} ({state})");
        let (from, to) = (before.get(name), after.get(name));
        if from != to {
            // A change of state shows the address only once.
            let to_shown = match (from, to) {
                (Some(_), Some(to)) => Some(to.clone()),
                _ => to.map(shown),
            };
            found.insert(Difference { field: "backends".into(), from: from.map(shown), to: to_shown });
        }
    }
}

/// Reports a slice that has lost all endpoints: such an update was once the first step of an outage.
fn without_endpoints(before: &Value, after: &Value, found: &mut BTreeSet<Difference>) {
    let has_none = |slice: &Value| slice["endpoints"].as_array().is_none_or(Vec::is_empty);
    if after.is_object() && has_none(after) && (before.is_null() || !has_none(before)) {
        let form = if after["endpoints"].is_null() { "endpoints: null" } else { "endpoints: []" };
        found.insert(Difference { field: form.into(), from: None, to: None });
    }
}

fn fields(path: &str, (before, after): (&Value, &Value), depth: usize, found: &mut BTreeSet<Difference>) {
    if before == after {
        return;
    }
    let empty = Map::new();
    let sides = [before, after].map(|side| match side {
        Value::Object(fields) => Some(fields),
        Value::Null => Some(&empty),
        _ => None,
    });
    if let ([Some(before), Some(after)], true) = (sides, depth > 0) {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let shown = text::name(name);
            let inner = if path.is_empty() { shown.into_owned() } else { format!("{path}.{shown}") };
            let values = [before, after].map(|side| side.get(name).unwrap_or(&Value::Null));
            fields(&inner, (values[0], values[1]), depth - 1, found);
        }
        return;
    }
    let empty = Vec::new();
    let items = [before, after].map(|side| match side {
        Value::Array(items) => Some(items),
        Value::Null => Some(&empty),
        _ => None,
    });
    let mut add = |from: Option<String>, to: Option<String>| {
        found.insert(Difference { field: path.into(), from, to });
    };
    match items {
        [Some(before), Some(after)] => {
            before.iter().filter(|item| !after.contains(item)).for_each(|item| add(Some(text(item)), None));
            after.iter().filter(|item| !before.contains(item)).for_each(|item| add(None, Some(text(item))));
        }
        _ => {
            let [from, to] = [before, after].map(|side| Some(side).filter(|side| !side.is_null()).map(text));
            add(from, to);
        }
    }
}

/// A short text for a value. A port is shown as `name=port/protocol`.
fn text(value: &Value) -> String {
    let port = || {
        let number = value.get("port")?.as_u64()?;
        let name = value.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.map(|name| format!("{name}=")).unwrap_or_default();
        let protocol = value.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
        let more = ["nodePort", "targetPort"].iter().filter_map(|field| {
            value
                .get(field)
                .filter(|it| !it.is_null())
                .map(|it| format!(" {field} {}", it.to_string().trim_matches('"')))
        });
        Some(format!("{name}{number}/{protocol}{}", more.collect::<String>()))
    };
    let whole = match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => port().unwrap_or_else(|| value.to_string()),
        other => other.to_string(),
    };
    text::limited(&whole, MAX_VALUE).into_owned()
}

#[cfg(test)]
#[path = "tests/difference.rs"]
mod tests;

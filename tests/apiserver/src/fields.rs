//! `metadata.managedFields`: who wrote which fields last, and when.

use serde_json::{Map, Value, json};

/// The author of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// `manager`: the `fieldManager` of the request, or the first word of its `User-Agent`.
    pub name: String,
    /// `operation`
    pub operation: Operation,
    /// `subresource`, where one was written.
    pub subresource: Option<&'static str>,
}

/// How fields were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Create, update and every kind of patch except server-side apply.
    Update,
    /// Server-side apply.
    Apply,
}

impl Writer {
    /// A writer that creates and updates objects.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), operation: Operation::Update, subresource: None }
    }

    fn operation(&self) -> &'static str {
        match self.operation {
            Operation::Update => "Update",
            Operation::Apply => "Apply",
        }
    }
}

/// Records in `new` who owns its fields, given the previous object. The writer's entry moves to the
/// end.
pub(crate) fn record(old: Option<&Value>, new: &mut Value, writer: &Writer, now: &str) {
    let mut entries = match old.map(|old| &old["metadata"]["managedFields"]) {
        Some(Value::Array(entries)) => entries.clone(),
        _ => Vec::new(),
    };
    let written = changed(old, new);
    let is_writer = |entry: &Value| {
        entry["manager"] == writer.name.as_str()
            && entry["operation"] == writer.operation()
            && entry.get("subresource").and_then(Value::as_str) == writer.subresource
    };
    let mut owned = Value::Object(Map::new());
    entries.retain_mut(|entry| {
        if is_writer(entry) {
            owned = entry["fieldsV1"].take();
            return false;
        }
        subtract(&mut entry["fieldsV1"], &written);
        entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty())
    });
    crate::patch::merge(&mut owned, &written);
    keep_existing(&mut owned, new);
    let mut entry = json!({
        "manager": writer.name,
        "operation": writer.operation(),
        "apiVersion": new["apiVersion"],
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned,
    });
    if let Some(subresource) = writer.subresource {
        entry["subresource"] = subresource.into();
    }
    entries.push(entry);
    new["metadata"]["managedFields"] = Value::Array(entries);
}

/// Fields without an owner.
const UNOWNED: [&str; 9] = [
    "apiVersion",
    "kind",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
];

/// The fields of `new` that differ from `old`, as a `fieldsV1` tree. A list counts as one field.
fn changed(old: Option<&Value>, new: &Value) -> Value {
    let Value::Object(new) = new else { return json!({}) };
    let mut tree = Map::new();
    for (name, value) in new {
        let before = old.and_then(|old| old.get(name));
        if before == Some(value) || UNOWNED.contains(&name.as_str()) {
            continue;
        }
        tree.insert(format!("f:{name}"), changed(before, value));
    }
    Value::Object(tree)
}

/// Removes from a tree everything that another tree contains.
fn subtract(tree: &mut Value, gone: &Value) {
    let (Value::Object(tree), Value::Object(gone)) = (tree, gone) else { return };
    for (name, below) in gone {
        let Some(mine) = tree.get_mut(name) else { continue };
        subtract(mine, below);
        if mine.as_object().is_none_or(Map::is_empty) {
            tree.remove(name);
        }
    }
}

/// Removes from a tree the fields that the object no longer has.
fn keep_existing(tree: &mut Value, object: &Value) {
    let Value::Object(tree) = tree else { return };
    tree.retain(|name, below| {
        let Some(value) = name.strip_prefix("f:").and_then(|name| object.get(name)) else { return false };
        keep_existing(below, value);
        true
    });
}

#[cfg(test)]
#[path = "tests/fields.rs"]
mod tests;

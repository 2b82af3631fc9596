//! Strategic merge patch: like a merge patch, except that some lists are merged element by element
//! and `$` directives express deletion, replacement and order.

use serde_json::{Map, Value};

use super::object;

/// How a list is merged.
enum ListKind {
    /// Replaced as a whole.
    Atomic,
    /// Merged by a key of the elements.
    Keyed(&'static str),
    /// A set of scalar values.
    Set,
}

/// The merge strategy of a list in the resources served here, by the last two names of its path.
fn list_kind(parent: &str, name: &str) -> ListKind {
    match (parent, name) {
        ("spec", "ports") => ListKind::Keyed("port"),
        ("status", "conditions" | "addresses") => ListKind::Keyed("type"),
        ("metadata", "ownerReferences") => ListKind::Keyed("uid"),
        ("metadata", "finalizers") | ("spec", "podCIDRs") => ListKind::Set,
        _ => ListKind::Atomic,
    }
}

/// Applies a strategic merge patch.
pub(crate) fn strategic(target: &mut Value, patch: &Value) {
    merge_at("", target, patch);
}

fn merge_at(at: &str, target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = without_directives(patch);
            return;
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return;
        }
        _ => {}
    }
    let map = object(target);
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let Some(Value::Array(items)) = map.get_mut(list) {
                items.retain(|item| !value.as_array().is_some_and(|gone| gone.contains(item)));
            }
        } else if !name.starts_with('$') {
            merge_field(at, map, name, value);
        }
    }
    for (name, order) in patch {
        if let (Some(list), Value::Array(order)) = (name.strip_prefix("$setElementOrder/"), order)
            && let Some(Value::Array(items)) = map.get_mut(list)
        {
            reorder(items, order, &list_kind(at, list));
        }
    }
    if let Some(Value::Array(kept)) = patch.get("$retainKeys") {
        map.retain(|name, _| kept.iter().any(|it| it == name.as_str()));
    }
}

fn merge_field(at: &str, map: &mut Map<String, Value>, name: &str, value: &Value) {
    match value {
        Value::Null => drop(map.remove(name)),
        Value::Array(patch) => {
            let target = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if !target.is_array() {
                *target = Value::Array(Vec::new());
            }
            if let Value::Array(items) = target {
                merge_list(name, items, patch, &list_kind(at, name));
            }
        }
        value => merge_at(name, map.entry(name).or_insert(Value::Null), value),
    }
}

fn merge_list(at: &str, items: &mut Vec<Value>, patch: &[Value], kind: &ListKind) {
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    let replaces = patch.iter().any(|item| directive(item).as_deref() == Some("replace"));
    match kind {
        ListKind::Atomic => *items = patch.to_vec(),
        _ if replaces => {
            *items = patch.iter().filter(|item| directive(item).is_none()).cloned().collect();
        }
        ListKind::Set => {
            for item in patch {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
        }
        ListKind::Keyed(key) => merge_keyed(at, items, patch, key),
    }
}

/// Inserts a new element after the one that precedes it in the patch, or first, as an apiserver
/// does.
fn merge_keyed(at: &str, items: &mut Vec<Value>, patch: &[Value], key: &str) {
    let mut place = 0;
    for item in patch {
        if item.get("$patch").is_some_and(|directive| directive == "delete") {
            items.retain(|it| it.get(key) != item.get(key));
            place = place.min(items.len());
            continue;
        }
        let index = items.iter().position(|it| it.get(key) == item.get(key) && it.get(key).is_some());
        let index = index.unwrap_or_else(|| {
            items.insert(place, Value::Null);
            place
        });
        merge_at(at, &mut items[index], item);
        place = index + 1;
    }
}

/// Sorts the listed elements as listed; the others follow in their previous order.
fn reorder(items: &mut [Value], order: &[Value], kind: &ListKind) {
    let place = |item: &Value| {
        let same = |named: &Value| match kind {
            ListKind::Keyed(key) => named.get(key) == item.get(key),
            ListKind::Set | ListKind::Atomic => named == item,
        };
        order.iter().position(same).unwrap_or(order.len())
    };
    items.sort_by_key(place);
}

fn without_directives(patch: &Map<String, Value>) -> Value {
    Value::Object(
        patch.iter().filter(|(name, _)| !name.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect(),
    )
}

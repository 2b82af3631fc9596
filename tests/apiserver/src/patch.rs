//! The three kinds of patch: JSON patch (RFC 6902), merge patch (RFC 7396) and Kubernetes'
//! strategic merge patch. The functions are pure: they take a document and a patch and return a
//! document.

mod strategic;

use serde_json::{Map, Value};

use crate::status::Status;

pub(crate) use strategic::strategic;

/// Applies a merge patch (RFC 7396): values of the patch replace those of the target, `null`
/// removes a field.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object(target);
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Returns the value as an object; replaces any other value by an empty object.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object above"),
    }
}

/// Applies a JSON patch (RFC 6902), a list of operations.
///
/// # Errors
/// 400: malformed patch; 422: an operation cannot be applied, or a test failed.
pub(crate) fn json(target: &mut Value, patch: &Value) -> Result<(), Status> {
    let operations = patch.as_array().ok_or_else(|| Status::new(400, "a JSON patch is a list of operations"))?;
    for operation in operations {
        step(target, operation)
            .map_err(|why| Status::new(422, format!("the patch cannot be applied: {why}: {operation}")))?;
    }
    Ok(())
}

fn step(target: &mut Value, operation: &Value) -> Result<(), &'static str> {
    let path = operation["path"].as_str().ok_or("no path")?;
    let from = || operation["from"].as_str().ok_or("no from");
    let value = || operation.get("value").cloned().ok_or("no value");
    match operation["op"].as_str().ok_or("no op")? {
        "add" => add(target, path, value()?),
        "remove" => remove(target, path).map(drop),
        "replace" => {
            *target.pointer_mut(path).ok_or("nothing at path")? = value()?;
            Ok(())
        }
        "move" => {
            let moved = remove(target, from()?)?;
            add(target, path, moved)
        }
        "copy" => {
            let copied = target.pointer(from()?).ok_or("nothing at from")?.clone();
            add(target, path, copied)
        }
        "test" if target.pointer(path) == Some(&value()?) => Ok(()),
        "test" => Err("test failed"),
        _ => Err("unknown op"),
    }
}

/// The pointer to the parent and the last token, unescaped.
fn parent(path: &str) -> Result<(&str, String), &'static str> {
    let (parent, last) = path.rsplit_once('/').ok_or("path is not a pointer")?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), &'static str> {
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, last) = parent(path)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.insert(last, value)),
        Some(Value::Array(list)) if last == "-" => list.push(value),
        Some(Value::Array(list)) => {
            let at: usize = last.parse().or(Err("not an index"))?;
            if at > list.len() {
                return Err("index out of range");
            }
            list.insert(at, value);
        }
        _ => return Err("nothing at path"),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, &'static str> {
    let (parent, last) = parent(path)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => map.remove(&last).ok_or("nothing at path"),
        Some(Value::Array(list)) => match last.parse::<usize>() {
            Ok(at) if at < list.len() => Ok(list.remove(at)),
            _ => Err("index out of range"),
        },
        _ => Err("nothing at path"),
    }
}

#[cfg(test)]
#[path = "tests/patch.rs"]
mod tests;

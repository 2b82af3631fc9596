//! Data as YAML. Keys are plain, and texts are quoted as in JSON, which YAML contains.

use serde_json::Value;

pub(super) fn text(value: &Value) -> String {
    let mut out = String::new();
    push(&mut out, value, 0);
    out
}

fn push(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if is_nested(value) => {
            for (key, value) in fields {
                out.push_str(&format!("{indent}{key}:"));
                if is_nested(value) {
                    out.push('\n');
                    push(out, value, depth + 1);
                } else {
                    out.push_str(&format!(" {value}\n"));
                }
            }
        }
        Value::Array(values) if is_nested(value) => {
            for value in values {
                let mut item = String::new();
                push(&mut item, value, depth + 1);
                out.push_str(&format!("{indent}- {}", item.trim_start()));
            }
        }
        scalar => out.push_str(&format!("{indent}{scalar}\n")),
    }
}

fn is_nested(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|values| !values.is_empty())
}

#[cfg(test)]
#[path = "tests/yaml.rs"]
mod tests;

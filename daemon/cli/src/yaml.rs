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
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                out.push_str(&format!("{indent}{key}:"));
                push_nested(out, value, depth + 1);
            }
        }
        Value::Array(values) if !values.is_empty() => {
            for value in values {
                let mut item = String::new();
                push(&mut item, value, depth + 1);
                out.push_str(&format!("{indent}- {}", item.trim_start()));
            }
        }
        scalar => out.push_str(&format!("{indent}{scalar}\n")),
    }
}

fn push_nested(out: &mut String, value: &Value, depth: usize) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(values) => !values.is_empty(),
        _ => false,
    };
    if is_nested {
        out.push('\n');
        push(out, value, depth);
    } else {
        out.push_str(&format!(" {value}\n"));
    }
}

#[cfg(test)]
#[path = "tests/yaml.rs"]
mod tests;

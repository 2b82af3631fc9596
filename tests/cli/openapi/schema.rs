//! JSON Schema, as much of it as the document uses.

use serde_json::Value;

/// The keywords that say nothing about what is valid.
const ABOUT: [&str; 5] = ["description", "title", "format", "default", "examples"];

/// Follows a reference.
pub(crate) fn resolved<'d>(schema: &'d Value, document: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("the reference has a target"),
        None => schema,
    }
}

/// Whether the value is valid, or else why not.
pub(crate) fn fits(value: &Value, schema: &Value, document: &Value) -> Result<(), String> {
    if schema["$ref"].is_string() {
        return fits(value, resolved(schema, document), document);
    }
    let Some(keywords) = schema.as_object() else {
        return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{value} is not described")) };
    };
    for (keyword, wanted) in keywords {
        let is_valid = match keyword.as_str() {
            "type" => has_type(value, wanted),
            "enum" => wanted.as_array().is_some_and(|names| names.contains(value)),
            "const" => value == wanted,
            "minimum" => value.as_f64().is_none_or(|number| wanted.as_f64().is_some_and(|least| number >= least)),
            "maximum" => value.as_f64().is_none_or(|number| wanted.as_f64().is_some_and(|most| number <= most)),
            "pattern" => value.as_str().is_none_or(|text| super::values::expression(wanted).is_match(text)),
            "anyOf" | "oneOf" => {
                let fitting = wanted.as_array().into_iter().flatten().filter(|it| fits(value, it, document).is_ok());
                let number = fitting.count();
                number == 1 || (number > 1 && keyword == "anyOf")
            }
            "items" => {
                value.as_array().into_iter().flatten().try_for_each(|it| fits(it, wanted, document))?;
                true
            }
            "required" => {
                let names = wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
                let missing: Vec<&str> = names.filter(|name| value.get(name).is_none()).collect();
                if !missing.is_empty() && value.is_object() {
                    return Err(format!("{missing:?} is missing in {value}"));
                }
                true
            }
            "properties" | "additionalProperties" => true,
            about => {
                assert!(ABOUT.contains(&about), "the keyword {about} is not known to this test");
                true
            }
        };
        if !is_valid {
            return Err(format!("{value} is not as {keyword} = {wanted} says"));
        }
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    fields.iter().try_for_each(|(name, field)| {
        let other = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        match schema["properties"].get(name) {
            Some(property) => fits(field, property, document).map_err(|reason| format!("{name}: {reason}")),
            // What is not described is not sent.
            None if *other == Value::Bool(true) && schema["properties"].is_object() => {
                Err(format!("{name} is not described"))
            }
            None => fits(field, other, document).map_err(|reason| format!("{name}: {reason}")),
        }
    })
}

fn has_type(value: &Value, wanted: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let names = wanted.as_array().map_or_else(|| std::slice::from_ref(wanted), Vec::as_slice);
    names.iter().filter_map(Value::as_str).any(is)
}

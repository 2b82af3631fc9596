//! Label and field selectors.

use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// The selectors of a list or watch; the default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// Label requirements, all of which must be met.
    labels: Vec<Requirement>,
    /// Field requirements (path, value, whether it must be equal), all of which must be met.
    fields: Vec<(String, String, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// Parses `labelSelector` and `fieldSelector`, either of which may be empty.
    ///
    /// # Errors
    /// 400: not a selector, or the resource does not support the field.
    pub(crate) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = split(labels).map(requirement).collect::<Result<_, _>>()?;
        let fields = split(fields).map(|term| field(resource, fields, term)).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Reports whether the object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.holds(labels))
            && self.fields.iter().all(|(path, value, equal)| (text(object, path) == *value) == *equal)
    }
}

impl Requirement {
    fn holds(&self, labels: &Value) -> bool {
        let is_in = |key: &str, values: &[String]| {
            labels.get(key).and_then(Value::as_str).is_some_and(|value| values.iter().any(|it| it == value))
        };
        match self {
            Self::In(key, values) => is_in(key, values),
            Self::NotIn(key, values) => !is_in(key, values),
            Self::Exists(key) => labels.get(key).is_some(),
            Self::Missing(key) => labels.get(key).is_none(),
        }
    }
}

/// Splits at commas outside parentheses.
fn split(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    selector
        .split(move |c| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(str::trim)
        .filter(|term| !term.is_empty())
}

fn requirement(term: &str) -> Result<Requirement, Status> {
    let one = |value: &str| vec![value.trim().to_owned()];
    let key = |key: &str| key.trim().to_owned();
    if let Some((name, value)) = term.split_once("!=") {
        return Ok(Requirement::NotIn(key(name), one(value)));
    }
    if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Requirement::In(key(name), one(value)));
    }
    if let Some(name) = term.strip_prefix('!') {
        return Ok(Requirement::Missing(key(name)));
    }
    let Some((head, values)) = term.split_once('(') else {
        return match term.split_whitespace().count() {
            1 => Ok(Requirement::Exists(key(term))),
            _ => Err(unparsable(term)),
        };
    };
    let values = values.strip_suffix(')').ok_or_else(|| unparsable(term))?;
    let values = values.split(',').map(key).collect();
    match head.split_whitespace().collect::<Vec<_>>().as_slice() {
        [name, "in"] => Ok(Requirement::In(key(name), values)),
        [name, "notin"] => Ok(Requirement::NotIn(key(name), values)),
        _ => Err(unparsable(term)),
    }
}

fn unparsable(term: &str) -> Status {
    Status::new(400, format!("unable to parse requirement: found {term:?}"))
}

fn field(resource: &Resource, selector: &str, term: &str) -> Result<(String, String, bool), Status> {
    let (path, value, equal) = if let Some((path, value)) = term.split_once("!=") {
        (path, value, false)
    } else if let Some((path, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (path, value, true)
    } else {
        return Err(Status::new(400, format!("invalid selector: {selector:?}; can't understand {term:?}")));
    };
    let known = path == "metadata.name"
        || (path == "metadata.namespace" && resource.namespaced)
        || resource.selectable.contains(&path);
    if !known {
        let version = format!("{}/{}", resource.group, resource.version);
        return Err(Status::new(
            400,
            format!(
                "Unable to find \"{version}, Resource={}\" that match label selector \"\", field selector \"{selector}\": \
                 field label not supported: {path}",
                resource.plural
            ),
        ));
    }
    Ok((path.into(), value.into(), equal))
}

/// The value of a field at a dotted path, as field selectors see it; empty if missing.
fn text(object: &Value, path: &str) -> String {
    match path.split('.').fold(object, |value, name| &value[name]) {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "tests/selector.rs"]
mod tests;

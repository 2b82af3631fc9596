//! The few protobuf requests that `kubectl create` and `kubectl auth can-i` send, decoded into
//! JSON. Responses are always JSON. Field numbers are those of Kubernetes' `generated.proto` files.

use serde_json::{Map, Value, json};

/// The type of a field.
enum Shape {
    Text,
    Number,
    Message(&'static [Field]),
    /// A map of strings, one entry per occurrence.
    Texts,
    IntOrString,
}

/// Number, name, type, and whether the field is repeated.
type Field = (u64, &'static str, Shape, bool);

const METADATA: &[Field] = &[
    (1, "name", Shape::Text, false),
    (2, "generateName", Shape::Text, false),
    (3, "namespace", Shape::Text, false),
    (11, "labels", Shape::Texts, false),
    (12, "annotations", Shape::Texts, false),
];

const PORT: &[Field] = &[
    (1, "name", Shape::Text, false),
    (2, "protocol", Shape::Text, false),
    (3, "port", Shape::Number, false),
    (4, "targetPort", Shape::IntOrString, false),
    (5, "nodePort", Shape::Number, false),
];

const SERVICE: &[Field] = &[
    (1, "ports", Shape::Message(PORT), true),
    (2, "selector", Shape::Texts, false),
    (3, "clusterIP", Shape::Text, false),
    (4, "type", Shape::Text, false),
    (5, "externalIPs", Shape::Text, true),
    (7, "sessionAffinity", Shape::Text, false),
    (8, "loadBalancerIP", Shape::Text, false),
    (10, "externalName", Shape::Text, false),
    (18, "clusterIPs", Shape::Text, true),
];

const REVIEW: &[Field] = &[(
    1,
    "resourceAttributes",
    Shape::Message(&[
        (1, "namespace", Shape::Text, false),
        (2, "verb", Shape::Text, false),
        (3, "group", Shape::Text, false),
        (4, "version", Shape::Text, false),
        (5, "resource", Shape::Text, false),
        (6, "subresource", Shape::Text, false),
        (7, "name", Shape::Text, false),
    ]),
    false,
)];

/// The fields of a supported kind.
fn kind(name: &str) -> Option<&'static [Field]> {
    const METADATA_FIELD: Field = (1, "metadata", Shape::Message(METADATA), false);
    match name {
        "Namespace" => Some(const { &[METADATA_FIELD] }),
        "Service" => Some(const { &[METADATA_FIELD, (2, "spec", Shape::Message(SERVICE), false)] }),
        "SelfSubjectAccessReview" => Some(const { &[METADATA_FIELD, (2, "spec", Shape::Message(REVIEW), false)] }),
        _ => None,
    }
}

/// Decodes a body that starts with the magic number of Kubernetes' protobuf; `None` if it does not,
/// or for an unknown kind.
pub(crate) fn decode(body: &[u8]) -> Option<Value> {
    let envelope = body.strip_prefix(b"k8s\0")?;
    let (mut object, mut raw) = (Value::Null, None);
    for (number, item) in Items(envelope) {
        match (number, item) {
            (1, Item::Bytes(bytes)) => {
                object = message(&[(1, "apiVersion", Shape::Text, false), (2, "kind", Shape::Text, false)], bytes);
            }
            (2, Item::Bytes(bytes)) => raw = Some(bytes),
            _ => {}
        }
    }
    let Value::Object(mut content) = message(kind(object["kind"].as_str()?)?, raw?) else { return None };
    content.append(object.as_object_mut()?);
    Some(Value::Object(content))
}

/// Decodes a message; skips unknown fields and treats empty strings as missing.
fn message(fields: &[Field], bytes: &[u8]) -> Value {
    let mut object = Map::new();
    for (number, item) in Items(bytes) {
        let Some((_, name, shape, is_list)) = fields.iter().find(|field| field.0 == number) else { continue };
        let value = match (shape, item) {
            (Shape::Text, Item::Bytes(b"")) => continue,
            (Shape::Text, Item::Bytes(bytes)) => String::from_utf8_lossy(bytes).into(),
            (Shape::Number, Item::Number(0)) => continue,
            (Shape::Number, Item::Number(number)) => number.into(),
            (Shape::Message(fields), Item::Bytes(bytes)) => message(fields, bytes),
            (Shape::IntOrString, Item::Bytes(bytes)) => int_or_string(bytes),
            (Shape::Texts, Item::Bytes(bytes)) => {
                let pair = message(&[(1, "key", Shape::Text, false), (2, "value", Shape::Text, false)], bytes);
                let part = |name: &str| pair[name].as_str().unwrap_or_default().to_owned();
                let mut texts = object.remove(*name).unwrap_or_else(|| json!({}));
                texts[part("key")] = part("value").into();
                texts
            }
            _ => continue,
        };
        match object.get_mut(*name) {
            Some(Value::Array(list)) if *is_list => list.push(value),
            _ if *is_list => drop(object.insert((*name).into(), Value::Array(vec![value]))),
            _ => drop(object.insert((*name).into(), value)),
        }
    }
    Value::Object(object)
}

fn int_or_string(bytes: &[u8]) -> Value {
    let (mut is_text, mut value) = (false, json!(0));
    for (number, item) in Items(bytes) {
        match (number, item) {
            (1, Item::Number(kind)) => is_text = kind == 1,
            (2, Item::Number(number)) if !is_text => value = number.into(),
            (3, Item::Bytes(text)) if is_text => value = String::from_utf8_lossy(text).into(),
            _ => {}
        }
    }
    value
}

/// The encoded value of one field.
enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed-size value, which no field here has.
    Skipped,
}

/// Iterates over the fields of a message; ends at the first truncated one.
struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = (u64, Item<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.number()?;
        let item = match tag & 7 {
            0 => Item::Number(self.number()?),
            1 => self.take(8).map(|_| Item::Skipped)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Item::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Item::Skipped)?,
            _ => return None,
        };
        Some((tag >> 3, item))
    }
}

#[cfg(test)]
#[path = "tests/protobuf.rs"]
mod tests;

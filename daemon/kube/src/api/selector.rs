//! Label selectors: checks them before an apiserver gets them, and matches them for explanations. The syntax is that of
//! `kubectl get --selector`, without comparisons of numbers.

use std::collections::BTreeMap;

/// The maximum length of a selector in bytes; it is a part of each URL.
const MAX_SELECTOR: usize = 1024;

/// The maximum length of a name or a value of a label in bytes.
const MAX_PART: usize = 63;

/// The maximum length of the prefix of a label in bytes.
const MAX_PREFIX: usize = 253;

/// Checks a label selector; the empty one selects everything.
///
/// # Errors
/// The part that is wrong, and what is expected.
pub fn check(selector: &str) -> Result<(), String> {
    if selector.len() > MAX_SELECTOR {
        return Err(format!("a label selector has at most {MAX_SELECTOR} bytes, not {}; shorten it", selector.len()));
    }
    let wrong = terms(selector).into_iter().find(|term| Requirement::parse(term).is_none());
    wrong.map_or(Ok(()), |wrong| {
        let wrong = wrong.trim().escape_debug();
        let what = "is not a requirement of a label selector; correct it, or leave the key out";
        Err(format!("`{wrong}` {what} (expected like team=shop, tier!=test or !team)"))
    })
}

pub fn matches(selector: &str, labels: &BTreeMap<String, String>) -> bool {
    terms(selector).into_iter().filter_map(Requirement::parse).all(|requirement| requirement.holds(labels))
}

/// The parts between commas outside parentheses.
fn terms(selector: &str) -> Vec<&str> {
    if selector.trim().is_empty() {
        return Vec::new();
    }
    let mut is_in_list = false;
    let is_separator = |c: char| {
        match c {
            '(' => is_in_list = true,
            ')' => is_in_list = false,
            _ => {}
        }
        c == ',' && !is_in_list
    };
    selector.split(is_separator).collect()
}

struct Requirement<'a> {
    label: &'a str,
    /// The values that fulfil it; `None` for any.
    values: Option<Vec<&'a str>>,
    /// Whether the label must not be as described.
    is_negated: bool,
}

impl<'a> Requirement<'a> {
    fn parse(term: &'a str) -> Option<Self> {
        let (label, values, is_negated) = Self::parts(term.trim())?;
        let is_valid = is_label(label) && values.iter().flatten().all(|value| is_value(value));
        is_valid.then_some(Self { label, values, is_negated })
    }

    fn parts(term: &'a str) -> Option<(&'a str, Option<Vec<&'a str>>, bool)> {
        if let Some(label) = term.strip_prefix('!') {
            return Some((label.trim(), None, true));
        }
        let comparison = ["!=", "==", "="].into_iter().find_map(|it| Some((term.split_once(it)?, it == "!=")));
        if let Some(((label, value), is_negated)) = comparison {
            return Some((label.trim(), Some(vec![value.trim()]), is_negated));
        }
        let Some((head, values)) = term.split_once('(') else { return Some((term, None, false)) };
        let values = values.strip_suffix(')')?.split(',').map(str::trim).collect();
        match head.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [label, "in"] => Some((label, Some(values), false)),
            [label, "notin"] => Some((label, Some(values), true)),
            _ => None,
        }
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let is_one = |value: &String| self.values.as_ref().is_none_or(|values| values.contains(&value.as_str()));
        labels.get(self.label).is_some_and(is_one) != self.is_negated
    }
}

/// Whether this can be the name of a label, or of what is named like one: `team`, `example.com/team`.
pub fn is_label(text: &str) -> bool {
    match text.rsplit_once('/') {
        Some((prefix, name)) => {
            let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            let is_part = |part: &str| is_between(part, is_word, |b| is_word(b) || b == b'-');
            prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_part) && !name.is_empty() && is_value(name)
        }
        None => !text.is_empty() && is_value(text),
    }
}

/// Whether this can be the value of a label, which may be empty.
fn is_value(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric();
    text.is_empty()
        || text.len() <= MAX_PART && is_between(text, is_word, |b| is_word(b) || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether the text begins and ends with such a byte, and has only the others in between.
fn is_between(text: &str, is_end: impl Fn(u8) -> bool, is_inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|b| is_inner(*b))
        && bytes.first().is_some_and(|b| is_end(*b))
        && bytes.last().is_some_and(|b| is_end(*b))
}

/// Whether this can be the name of a namespace or a Service (RFC 1123, as Kubernetes checks it).
pub fn is_object_name(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= MAX_PART && is_between(text, is_word, |b| is_word(b) || b == b'-')
}

#[cfg(test)]
#[path = "tests/selector.rs"]
mod tests;

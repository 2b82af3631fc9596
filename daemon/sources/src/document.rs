//! Deserializes TOML documents and reports all problems of a document with their lines, instead of stopping at the first.
//! Owns [`Problem`], the form in which problems of all files are reported. Knows no keys: the configuration and the
//! service files define theirs as serde structs.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A problem in a file: the position, what is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, counted from 1; `None` for the whole file.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Problem {
    pub fn whole(message: impl Into<String>) -> Self {
        Self { line: None, message: message.into() }
    }

    pub(crate) fn at_line(line: usize, message: impl Into<String>) -> Self {
        Self { line: Some(line), message: message.into() }
    }

    /// As `PATH:LINE: problem`.
    pub fn of(&self, path: &Path) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}: {}", path.display(), self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The maximum number of problems that are kept for one file: a user does not read more, and a corrupt file must not
/// fill memory.
const MAX_PROBLEMS: usize = 100;

/// Collects the problems of one text, and finds the line of each byte.
pub struct Problems {
    line_starts: Vec<usize>,
    list: Vec<Problem>,
    has_more: bool,
}

impl Problems {
    pub fn new(text: &str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { line_starts, list: Vec::new(), has_more: false }
    }

    /// The line of a byte offset, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    pub fn push(&mut self, at: &Range<usize>, message: impl Into<String>) {
        let problem = Problem::at_line(self.line(at.start), message);
        if self.list.len() == MAX_PROBLEMS {
            self.has_more = true;
        } else if !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All problems, sorted by line.
    pub fn into_list(mut self) -> Vec<Problem> {
        self.list.sort_by_key(|problem| problem.line);
        if self.has_more {
            self.list.push(Problem::whole("there are more problems; correct these first"));
        }
        self.list
    }
}

/// Files larger than this stop at the first syntax error: each error takes memory, and such a large file is generated.
const RECOVER_UP_TO_BYTES: usize = 256 << 10;

/// Parses a text. Syntax errors become problems, and the table contains everything that could be parsed in spite of
/// them.
pub fn parse<'t>(text: &'t str, problems: &mut Problems) -> Spanned<DeTable<'t>> {
    let (table, errors) = if text.len() <= RECOVER_UP_TO_BYTES {
        DeTable::parse_recoverable(text)
    } else {
        match DeTable::parse(text) {
            Ok(table) => (table, Vec::new()),
            Err(error) => (Spanned::new(0..0, DeTable::new()), vec![error]),
        }
    };
    for error in errors {
        let message = error.message().trim_end().replace('\n', ", ");
        problems.push(&error.span().unwrap_or(0..0), format!("not valid TOML: {message}"));
    }
    table
}

/// What [`read`] found in a table.
pub struct Read<T> {
    /// The value of everything that the type accepts.
    pub value: T,
    /// The paths of the keys with a value, or a part of it, that the type does not accept.
    pub(crate) refused: Vec<String>,
}

/// Deserializes a table at a position. Reports every key and value that `T` does not accept, as a problem of `object`
/// (empty, or such as `service shop/web: `), and continues without it.
pub fn read<T>(at: Range<usize>, table: &DeTable<'_>, object: &str, problems: &mut Problems) -> Read<T>
where
    T: DeserializeOwned + Default,
{
    let original = || Spanned::new(at.clone(), DeValue::Table(table.clone()));
    // The table without what was refused; `None` until something is.
    let mut rest = None;
    let mut refused = Vec::new();
    let mut removed = BTreeSet::new();
    while !problems.has_more {
        let error = match T::deserialize(ValueDeserializer::from(rest.clone().unwrap_or_else(original))) {
            Ok(value) => return Read { value, refused },
            Err(error) => error,
        };
        let error_at = error.span().unwrap_or_else(|| at.clone());
        let Some(Removed { path, table_start }) = remove(rest.get_or_insert_with(original), &error_at) else {
            problems.push(&error_at, format!("{object}{}", error.message()));
            break;
        };
        let path = path.join(".");
        let is_removed = |field: &str| removed.contains(&(error_at.start, field.to_owned()));
        if !error.message().strip_prefix("missing field ").is_some_and(|field| is_removed(field.trim_matches('`'))) {
            problems.push(&error_at, format!("{object}{}", explain(error.message(), &path)));
        }
        removed.insert((table_start, path.rsplit('.').next().unwrap_or_default().to_owned()));
        if !is_unknown_key(error.message()) {
            refused.push(path);
        }
    }
    Read { value: T::default(), refused }
}

struct Removed {
    /// The path of keys to it.
    path: Vec<String>,
    /// The position of the innermost table around it.
    table_start: usize,
}

/// Removes the key or the array element at the position.
fn remove(value: &mut Spanned<DeValue<'_>>, at: &Range<usize>) -> Option<Removed> {
    let table_start = value.span().start;
    match value.get_mut() {
        DeValue::Table(table) => {
            for (key, value) in table.iter_mut() {
                if let Some(removed) = remove(value, at) {
                    return Some(Removed { path: [vec![key.get_ref().to_string()], removed.path].concat(), ..removed });
                }
            }
            let is_at = |(key, value): &(&Spanned<_>, &Spanned<_>)| key.span() == *at || value.span() == *at;
            let key = table.iter().find(is_at).map(|(key, _)| key.get_ref().to_string())?;
            table.remove(key.as_str());
            Some(Removed { path: vec![key], table_start })
        }
        DeValue::Array(items) => {
            if let Some(removed) = items.iter_mut().find_map(|item| remove(item, at)) {
                return Some(removed);
            }
            items.iter().find(|item| item.span() == *at)?;
            *items = items.iter().filter(|item| item.span() != *at).cloned().collect();
            Some(Removed { path: Vec::new(), table_start })
        }
        _ => None,
    }
}

fn is_unknown_key(message: &str) -> bool {
    message.starts_with("unknown field ")
}

/// A message of serde in the words of TOML, with the key that it is about and a remedy.
fn explain(message: &str, key: &str) -> String {
    let (head, expected) = message.rsplit_once(", expected ").unwrap_or((message, ""));
    let names = || expected.split('`').skip(1).step_by(2);
    if is_unknown_key(message) {
        let written = key.rsplit('.').next().unwrap_or(key);
        let remedy = match nearest(names(), written) {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => format!("known here: {}", names().collect::<Vec<_>>().join(", ")),
        };
        return format!("unknown key `{key}`; {remedy}");
    }
    let explained = if let Some(written) = head.strip_prefix("unknown variant ") {
        let choices: Vec<_> = names().map(|name| format!("\"{name}\"")).collect();
        let (last, others) = choices.split_last().map_or((String::new(), &[][..]), |(last, rest)| (last.clone(), rest));
        format!("{written} is not one of the choices (expected {} or {last})", others.join(", "))
    } else if let Some(found) = head.strip_prefix("invalid type: ") {
        let found = match found.split(' ').next().unwrap_or_default() {
            "string" => "a string",
            "integer" => "an integer",
            "floating" => "a float",
            "boolean" => "a boolean",
            "sequence" => "an array",
            _ => "a table",
        };
        format!("expected {}, found {found}", noun(expected))
    } else if let Some(found) = head.strip_prefix("invalid value: integer ") {
        format!("{} is not in {}", found.trim_matches('`'), range(expected))
    } else if message == "wanted string or table" {
        "expected a string".to_owned()
    } else if let Some(field) = head.strip_prefix("missing field ") {
        let field = field.trim_matches('`');
        let example = if field == "address" { "ADDRESS:PORT" } else { "…" };
        format!("has no {field}; add {field} = \"{example}\"")
    } else {
        message.to_owned()
    };
    format!("{key}: {explained}")
}

/// The type of value that serde expects, in the words of TOML.
fn noun(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "a nonzero u16" | "u32" => "an integer",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "path string" => "a string",
        expected => expected,
    }
}

/// The range of an unsigned integer type, as serde names it.
fn range(expected: &str) -> String {
    let first = u8::from(expected.starts_with("a nonzero "));
    let bits = expected.rsplit('u').next().and_then(|bits| bits.parse::<u32>().ok());
    let end = bits.and_then(|bits| 1_u64.checked_shl(bits));
    end.map_or_else(|| expected.to_owned(), |end| format!("{first}..={}", end - 1))
}

/// The known key that is probably intended: it differs in letter case, in `_` for `-`, or in at most two letters.
pub fn nearest<'k>(known: impl Iterator<Item = &'k str>, written: &str) -> Option<&'k str> {
    let normal = |key: &str| key.to_ascii_lowercase().replace('_', "-");
    let candidates = known.filter(|known| written.len() <= known.len() + 2);
    let nearest = candidates.map(|known| (strsim::levenshtein(&normal(known), &normal(written)), known)).min();
    nearest.filter(|(distance, _)| *distance <= 2).map(|(_, known)| known)
}

/// Deserializes a string that `parse` accepts. `expected` describes it in the message about another type, such as `a
/// string`.
pub fn text<'de, D, T, E>(from: D, expected: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    from.deserialize_str(Text { expected, unit: None, parse })
}

/// Like [`text`], but an integer is accepted, too: as a string with this unit.
pub(crate) fn text_or_integer<'de, D, T, E>(
    from: D,
    expected: &str,
    unit: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    from.deserialize_any(Text { expected, unit: Some(unit), parse })
}

struct Text<'e, P> {
    expected: &'e str,
    unit: Option<&'e str>,
    parse: P,
}

impl<T, E: fmt::Display, P: Fn(&str) -> Result<T, E>> Visitor<'_> for Text<'_, P> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<F: de::Error>(self, text: &str) -> Result<T, F> {
        (self.parse)(text).map_err(F::custom)
    }

    fn visit_i64<F: de::Error>(self, number: i64) -> Result<T, F> {
        match self.unit {
            Some(unit) => self.visit_str(&format!("{number}{unit}")),
            None => Err(F::invalid_type(de::Unexpected::Signed(number), &self)),
        }
    }
}

/// A struct that is written as a table: serde accepts arrays for structs, too.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Table<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        table(from).map(Self)
    }
}

pub fn table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    table_such_as(from, "a table")
}

/// Deserializes a [`Table`]. `expected` describes it in the message about another type.
pub fn table_such_as<'de, D, T>(from: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Fields<T>(&'static str, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    from.deserialize_map(Fields(expected, PhantomData))
}

#[cfg(test)]
#[path = "tests/document.rs"]
mod tests;

//! Reads a TOML document key by key and collects every problem with its line, instead of stopping at the first. Owns
//! [`Problem`], the form in which problems of all files are reported. Knows no keys: the configuration and the service
//! files define theirs.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of a document with its position.
pub(crate) type Value<'t> = Spanned<DeValue<'t>>;

/// A problem in a file: the position, what is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Line, counted from 1; `None` for the whole file.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Problem {
    /// A problem of the whole file.
    pub fn whole(message: impl Into<String>) -> Self {
        Self { line: None, message: message.into() }
    }

    /// A problem at a line, counted from 1.
    pub fn at_line(line: usize, message: impl Into<String>) -> Self {
        Self { line: Some(line), message: message.into() }
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
pub(crate) struct Problems {
    line_starts: Vec<usize>,
    list: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub(crate) fn of(text: &str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { line_starts, list: Vec::new(), more: 0 }
    }

    /// The line of a byte offset, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    pub(crate) fn push(&mut self, at: &Range<usize>, message: impl Into<String>) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(Problem::at_line(self.line(at.start), message));
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All problems, sorted by line.
    pub(crate) fn into_list(mut self) -> Vec<Problem> {
        self.list.sort_by_key(|problem| problem.line);
        if self.more > 0 {
            self.list.push(Problem::whole(format!("{} more problems; correct the first ones", self.more)));
        }
        self.list
    }
}

/// Files larger than this stop at the first syntax error: each error takes memory, and such a large file is generated.
const RECOVER_UP_TO_BYTES: usize = 256 << 10;

/// Parses a text. Syntax errors become problems, and the table contains everything that could be parsed in spite of
/// them.
pub(crate) fn parse<'t>(text: &'t str, problems: &mut Problems) -> Spanned<DeTable<'t>> {
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

/// The values that their keys do not accept: position and problem.
pub(crate) type Mismatches = Vec<(Range<usize>, String)>;

/// A type of configuration value.
pub(crate) trait Setting: Sized {
    /// Reads the value. Returns `None` exactly if it adds something to `mismatches`.
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self>;
}

/// Reads a string value through [`FromStr`]. `expected` describes the value in the message, such as `a string`.
pub(crate) fn read_text<T>(value: &Value<'_>, expected: &str, mismatches: &mut Mismatches) -> Option<T>
where
    T: FromStr<Err: fmt::Display>,
{
    let Some(text) = value.get_ref().as_str() else {
        return wrong_type(value, expected, mismatches);
    };
    text.parse().map_err(|error: T::Err| mismatches.push((value.span(), error.to_string()))).ok()
}

/// Records that the value has another type than expected.
pub(crate) fn wrong_type<T>(value: &Value<'_>, expected: &str, mismatches: &mut Mismatches) -> Option<T> {
    let found = match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    mismatches.push((value.span(), format!("expected {expected}, found {found}")));
    None
}

impl Setting for String {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_text(value, "a string", mismatches)
    }
}

impl Setting for PathBuf {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        String::read(value, mismatches).map(Self::from)
    }
}

impl Setting for u32 {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(integer) = value.get_ref().as_integer() else {
            return wrong_type(value, "an integer", mismatches);
        };
        let number = Self::from_str_radix(integer.as_str(), integer.radix());
        number
            .map_err(|_out_of_range| mismatches.push((value.span(), format!("{integer} is not in 0..={}", Self::MAX))))
            .ok()
    }
}

impl Setting for bool {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        value.get_ref().as_bool().or_else(|| wrong_type(value, "true or false", mismatches))
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(items) = value.get_ref().as_array() else {
            return wrong_type(value, "an array", mismatches);
        };
        let before = mismatches.len();
        let read = items.iter().filter_map(|item| T::read(item, mismatches)).collect();
        (mismatches.len() == before).then_some(read)
    }
}

/// One table of a document while it is read. Remembers the keys that were read, to reject all others.
pub(crate) struct Fields<'a, 't> {
    table: &'a DeTable<'t>,
    /// The beginning of messages, such as `service shop/web: `.
    object: String,
    /// The prefix of keys in messages, such as `datapath.`.
    prefix: String,
    known: Vec<String>,
}

impl<'a, 't> Fields<'a, 't> {
    /// The keys of a table. `prefix` is its path of keys, such as `datapath.`.
    pub(crate) fn of(table: &'a DeTable<'t>, prefix: impl Into<String>) -> Self {
        Self { table, object: String::new(), prefix: prefix.into(), known: Vec::new() }
    }

    /// Sets the name of the object that the table describes: all following messages begin with it.
    pub(crate) fn describe(&mut self, object: impl Into<String>) {
        self.object = object.into();
    }

    /// Adds a problem of the object.
    pub(crate) fn problem(&self, at: &Range<usize>, message: impl fmt::Display, problems: &mut Problems) {
        problems.push(at, format!("{}{message}", self.object));
    }

    /// The raw value of a key, if the table has it. Marks the key as known.
    pub(crate) fn value(&mut self, key: &str) -> Option<&'a Value<'t>> {
        if !self.known.iter().any(|known| known == key) {
            self.known.push(key.to_owned());
        }
        self.table.get(key)
    }

    /// The value of a key. `None` if the table does not have the key, or has a value of another type, which is added as
    /// a problem.
    pub(crate) fn read<T: Setting>(&mut self, key: &str, problems: &mut Problems) -> Option<T> {
        let mut mismatches = Mismatches::new();
        let value = self.value(key)?;
        let read = T::read(value, &mut mismatches);
        for (at, message) in mismatches {
            self.refuse(key, &at, &message, problems);
        }
        read
    }

    /// The value of a key in a table that is itself a value. Its problems are reported for the key of the table.
    pub(crate) fn setting<T: Setting>(&mut self, key: &str, mismatches: &mut Mismatches) -> Option<T> {
        let value = self.value(key)?;
        let before = mismatches.len();
        let read = T::read(value, mismatches);
        for (_, message) in &mut mismatches[before..] {
            message.insert_str(0, &format!("{key}: "));
        }
        read
    }

    /// The keys of a nested table of the same object.
    pub(crate) fn nested(&self, table: &'a DeTable<'t>, prefix: &str) -> Self {
        Self { table, object: self.object.clone(), prefix: prefix.to_owned(), known: Vec::new() }
    }

    /// Adds a problem if the check of the value of an existing key failed.
    pub(crate) fn check(&self, key: &str, checked: Result<(), String>, problems: &mut Problems) {
        if let (Err(message), Some(value)) = (checked, self.table.get(key)) {
            self.refuse(key, &value.span(), &message, problems);
        }
    }

    /// Adds a problem of the value of a key.
    fn refuse(&self, key: &str, at: &Range<usize>, message: &str, problems: &mut Problems) {
        problems.push(at, format!("{}{}{key}: {message}", self.object, self.prefix));
    }

    /// The table under a key.
    pub(crate) fn table(&mut self, key: &str, problems: &mut Problems) -> Option<&'a DeTable<'t>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.refuse(key, &value.span(), "expected a table", problems);
        }
        table
    }

    /// The tables under a key, written `[[key]]`.
    pub(crate) fn tables(&mut self, key: &str, problems: &mut Problems) -> Vec<(Range<usize>, &'a DeTable<'t>)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let table_of = |item: &'a Value<'t>| Some((item.span(), item.get_ref().as_table()?));
        let tables = value.get_ref().as_array().and_then(|items| items.iter().map(table_of).collect());
        tables.unwrap_or_else(|| {
            self.refuse(key, &value.span(), "expected an array of tables", problems);
            Vec::new()
        })
    }

    /// Adds a problem for every key that was not read.
    pub(crate) fn refuse_others(self, problems: &mut Problems) {
        for (at, message) in self.unknown() {
            problems.push(&at, format!("{}{message}", self.object));
        }
    }

    /// The keys that were not read.
    pub(crate) fn unknown(&self) -> Mismatches {
        let is_known = |name: &str| self.known.iter().any(|known| known == name);
        let unknown = self.table.keys().filter(|key| !is_known(key.get_ref()));
        let reported = unknown.map(|key| {
            let remedy = match nearest(&self.known, key.get_ref()) {
                Some(similar) => format!("did you mean `{similar}`?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            (key.span(), format!("unknown key `{}{}`; {remedy}", self.prefix, key.get_ref()))
        });
        reported.collect()
    }
}

/// The known key that is probably meant: it differs in letter case, in `_` for `-`, or in at most two letters.
fn nearest<'k>(known: &'k [String], written: &str) -> Option<&'k String> {
    let normal = |key: &str| key.to_ascii_lowercase().replace('_', "-");
    let candidates = known.iter().filter(|known| written.len() <= known.len() + 2);
    let nearest = candidates.map(|known| (strsim::levenshtein(&normal(known), &normal(written)), known)).min();
    nearest.filter(|(distance, _)| *distance <= 2).map(|(_, known)| known)
}

#[cfg(test)]
#[path = "tests/document.rs"]
mod tests;

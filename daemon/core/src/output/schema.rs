//! The names and columns of the tables, defined once and known without any row. This module contains their texts;
//! [`super::table`] adds the rows, and `/openapi.json` describes them.

/// A table's name and columns. `C` is an array where rows are created, so that the compiler checks the number of cells,
/// and a slice everywhere else.
#[derive(Debug, PartialEq, Eq)]
pub struct Schema<C: ?Sized = [Column]> {
    /// The key of the table in JSON, and its heading in a response with several tables.
    pub name: &'static str,
    /// The columns in the order of display.
    pub columns: C,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The heading in text.
    pub heading: &'static str,
    /// The kind of its cells, apart from empty ones.
    pub kind: Kind,
}

/// The kind of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or an address, which is never shortened.
    Name,
    /// A text.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number.
    Number,
    /// Yes or no.
    Flag,
    /// Several texts.
    List,
    /// The time since an event; seconds in JSON.
    Age,
    /// The duration of an operation; seconds in JSON, with a fraction.
    Duration,
}

impl Column {
    /// A column of names or addresses.
    pub const fn name(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Name }
    }

    /// A column of texts.
    pub const fn text(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Text }
    }

    /// A column of words from a fixed set.
    pub const fn one_of(heading: &'static str, words: &'static [&'static str]) -> Self {
        Self { heading, kind: Kind::OneOf(words) }
    }

    /// A column of numbers.
    pub const fn number(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Number }
    }

    /// A column of booleans.
    pub const fn flag(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Flag }
    }

    /// A column of lists.
    pub const fn list(heading: &'static str) -> Self {
        Self { heading, kind: Kind::List }
    }

    /// A column of times since an event.
    pub const fn age(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Age }
    }

    /// A column of durations of operations.
    pub const fn duration(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Duration }
    }

    /// The key in JSON: the heading in lower case with `_` instead of `-`.
    pub fn key(&self) -> String {
        self.heading.to_ascii_lowercase().replace('-', "_")
    }
}

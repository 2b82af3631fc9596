//! What tables are made of: each table's name and columns, once, known without a row of it. Owns the words for them;
//! [`super::table`] fills them, `/openapi.json` describes them.

/// A table's name and columns. `C` is an array where rows are made, so that the compiler counts their cells, and a slice
/// everywhere else.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape<C: ?Sized = [Column]> {
    /// Its key in JSON, and its heading where an answer has several tables.
    pub name: &'static str,
    /// In the order shown.
    pub columns: C,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// As text shows it.
    pub heading: &'static str,
    /// What its cells are, unless there is nothing to say.
    pub kind: Kind,
}

/// What the cells of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or an address: never shortened.
    Name,
    /// Words.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A count.
    Number,
    /// Yes or no.
    Flag,
    /// Several words.
    List,
    /// How long something has lasted; seconds in JSON.
    Age,
    /// How long something took; seconds in JSON, not only whole ones.
    Took,
}

impl Column {
    /// A column of names or addresses.
    pub const fn name(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Name }
    }

    /// A column of words.
    pub const fn text(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Text }
    }

    /// A column of a few known words.
    pub const fn one_of(heading: &'static str, words: &'static [&'static str]) -> Self {
        Self { heading, kind: Kind::OneOf(words) }
    }

    /// A column of counts.
    pub const fn number(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Number }
    }

    /// A column of yes and no.
    pub const fn flag(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Flag }
    }

    /// A column of lists.
    pub const fn list(heading: &'static str) -> Self {
        Self { heading, kind: Kind::List }
    }

    /// A column of times that have passed.
    pub const fn age(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Age }
    }

    /// A column of times that something took.
    pub const fn took(heading: &'static str) -> Self {
        Self { heading, kind: Kind::Took }
    }

    /// Its key in JSON: the heading in lower case with `_` for `-`.
    pub fn key(&self) -> String {
        self.heading.to_ascii_lowercase().replace('-', "_")
    }
}

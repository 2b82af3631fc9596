//! The names and columns of the tables, defined once and known without any row. [`crate::rows`]
//! defines them, and [`super::table`] adds the rows.

#[derive(Debug, PartialEq, Eq)]
pub struct Schema {
    /// The heading of the table in a response with several tables.
    pub name: &'static str,
    pub columns: &'static [Column],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub heading: &'static str,
    /// The kind of its cells, apart from empty ones.
    pub kind: ColumnKind,
    /// Whether only the wide form of text contains the column.
    pub is_wide: bool,
    /// Whether text leaves the column out if it does not fit.
    pub is_spare: bool,
    /// Words that text shows only if another row has a different one.
    pub usual: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A name or an address, which is never shortened.
    Name,
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    Number,
    Flag,
    List,
    /// Sentences. A last column of them is shown whole, like text.
    Texts,
    Age,
    Duration,
}

/// The constructors of columns of each kind, with the heading.
macro_rules! constructors {
    ($($name:ident => $kind:ident),+) => {
        impl Column {
            $(pub const fn $name(heading: &'static str) -> Self {
                Self::new(heading, ColumnKind::$kind)
            })+
        }
    };
}

constructors!(name => Name, text => Text, number => Number, flag => Flag, list => List, texts => Texts, age => Age,
    duration => Duration);

impl Column {
    const fn new(heading: &'static str, kind: ColumnKind) -> Self {
        Self { heading, kind, is_wide: false, is_spare: false, usual: &[] }
    }

    pub const fn one_of(heading: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(heading, ColumnKind::OneOf(words))
    }

    /// A column of words from a fixed set, left out of text if every row has one of the usual ones.
    pub const fn exceptions(
        heading: &'static str,
        words: &'static [&'static str],
        usual: &'static [&'static str],
    ) -> Self {
        Self { usual, ..Self::one_of(heading, words) }
    }

    /// This column, only in the wide form of text.
    #[must_use]
    pub const fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }

    /// This column, left out of text that would otherwise be too wide. The last such column goes first.
    #[must_use]
    pub const fn spare(self) -> Self {
        Self { is_spare: true, ..self }
    }
}

//! The one form every answer takes: named tables of typed cells, rendered as text for people ([`text`]) or as JSON for
//! programs. What the columns are is said in the table's [`Shape`], once for both forms.

use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::shape::{Column, Shape};
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
pub use text::{COLOURS, Lines, Style};

mod text;

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing to say: `-` in text, `null` in JSON.
    None,
    /// Words; an empty one prints `-` in text.
    Text(String),
    /// Words somebody else owns too.
    Shared(Arc<str>),
    /// A count.
    Number(u64),
    /// `yes` or `no` in text.
    Flag(bool),
    /// Several values; at most five of them in text, then how many more there are.
    List(Vec<String>),
    /// The same of addresses, of which there may be thousands.
    Addresses(Vec<L4Addr>),
    /// How long something has lasted, in milliseconds: `4m20s` in text, seconds in JSON.
    Age(u64),
    /// How long something took, in microseconds: `350us` in text, seconds in JSON.
    Took(u64),
}

impl Cell {
    /// The cell of anything that prints.
    pub fn text(value: &(impl ToString + ?Sized)) -> Self {
        Self::Text(value.to_string())
    }

    /// The cell of something that may be missing.
    pub fn optional(value: Option<impl ToString>) -> Self {
        value.map_or(Self::None, |value| Self::text(&value))
    }

    /// The cell of a count.
    pub fn count(value: usize) -> Self {
        Self::Number(value as u64)
    }

    /// The cell of a number that may be missing.
    pub fn optional_number(value: Option<impl Into<u64>>) -> Self {
        value.map_or(Self::None, |number| Self::Number(number.into()))
    }

    /// The cell of a list, in the order given.
    pub fn list(values: impl IntoIterator<Item = impl ToString>) -> Self {
        Self::List(values.into_iter().map(|value| value.to_string()).collect())
    }

    /// The cell of the time from `since` to `now`; a `since` in the future counts as now.
    pub fn age(since: Moment, now: Moment) -> Self {
        Self::Age(now.0.saturating_sub(since.0))
    }
}

/// An address as JSON shows it.
struct Printed<'a>(&'a L4Addr);

impl Serialize for Printed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Shared(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(values) => values.serialize(serializer),
            Self::Addresses(values) => serializer.collect_seq(values.iter().map(Printed)),
            Self::Age(millis) => serializer.serialize_u64(millis / 1000),
            Self::Took(micros) => serializer.serialize_f64(*micros as f64 / 1e6),
        }
    }
}

/// Rows of equal length under one set of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    shape: &'static Shape,
    cells: Vec<Cell>,
    /// What text says in place of the headings where there is no row.
    instead: Option<String>,
    /// Whether text leaves it out.
    is_for_programs: bool,
}

impl Table {
    /// A table of the rows in the order given.
    pub fn new<const N: usize>(shape: &'static Shape<[Column; N]>, rows: impl IntoIterator<Item = [Cell; N]>) -> Self {
        const { assert!(N > 0, "a table has columns") };
        let cells = rows.into_iter().flatten().collect();
        Self { shape, cells, instead: None, is_for_programs: false }
    }

    /// Says this, and nothing else, where text would be headings without a row.
    #[must_use]
    pub fn or_say(mut self, text: String) -> Self {
        self.instead = Some(text);
        self
    }

    /// Leaves it out of text.
    #[must_use]
    pub fn for_programs(mut self) -> Self {
        self.is_for_programs = true;
        self
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.cells.len() / self.shape.columns.len()
    }

    /// The table as aligned columns, the headings first, one line per row.
    pub fn write_text(&self, out: &mut String) {
        text::write(self, &Style::default(), out);
    }

    /// The same in this style; what is returned writes further rows into the same columns.
    pub fn write_lines(&self, style: &Style, out: &mut String) -> Lines {
        text::write(self, style, out)
    }

    /// The columns.
    pub fn shape(&self) -> &'static Shape {
        self.shape
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks_exact(self.shape.columns.len())
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keys: Vec<String> = self.shape.columns.iter().map(Column::key).collect();
        let mut rows = serializer.serialize_seq(Some(self.len()))?;
        for row in self.rows() {
            rows.serialize_element(&Row { keys: &keys, cells: row })?;
        }
        rows.end()
    }
}

/// A row of these columns as an object on one line.
///
/// # Errors
/// As [`Page::to_json`].
pub fn row_to_json(shape: &Shape, cells: &[Cell]) -> serde_json::Result<String> {
    let keys: Vec<String> = shape.columns.iter().map(Column::key).collect();
    serde_json::to_string(&Row { keys: &keys, cells })
}

struct Row<'a> {
    keys: &'a [String],
    cells: &'a [Cell],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.keys.iter().zip(self.cells))
    }
}

/// An answer: one table, or several under headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page(pub Vec<Table>);

impl Page {
    /// For people, as wide as it is and without colour.
    pub fn to_text(&self) -> String {
        self.to_styled_text(&Style::default())
    }

    /// For people. A single table stands alone; of several, each has its name as a heading.
    pub fn to_styled_text(&self, style: &Style) -> String {
        let mut out = String::new();
        let shown: Vec<&Table> = self.0.iter().filter(|table| !table.is_for_programs).collect();
        for (position, table) in shown.iter().enumerate() {
            if position > 0 {
                out.push('\n');
            }
            if shown.len() > 1 {
                out.push_str(table.shape.name);
                out.push_str(":\n");
            }
            text::write(table, style, &mut out);
        }
        out
    }

    /// For programs: an object with one list of objects per table, on one line.
    ///
    /// # Errors
    /// When a table cannot be written as JSON, which no cell of today can cause.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut json = serde_json::to_string(self)?;
        json.push('\n');
        Ok(json)
    }
}

impl From<Table> for Page {
    fn from(table: Table) -> Self {
        Self(vec![table])
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tables = serializer.serialize_map(Some(self.0.len()))?;
        for table in &self.0 {
            tables.serialize_entry(table.shape.name, table)?;
        }
        tables.end()
    }
}

#[cfg(test)]
mod tests;

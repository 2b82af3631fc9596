//! The one form every answer takes: named tables of typed cells, rendered as text for people or as JSON for programs.
//! Owns the rendering; what the columns are is decided where a [`Table`] is built, once for both forms.

use std::fmt::{self, Write};
use std::sync::Arc;

use nodelb_core::datapath::Moment;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::age;

/// How many elements of a list a text cell shows; JSON shows all.
const SHOWN_IN_TEXT: usize = 5;
const GAP: &str = "  ";

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
    /// How long something has lasted, in milliseconds: `4m20s` in text, seconds in JSON.
    Age(u64),
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

    fn write_text(&self, out: &mut String) {
        let start = out.len();
        match self {
            Self::None => {}
            Self::Text(text) => push_printable(out, text),
            Self::Shared(text) => push_printable(out, text),
            Self::Number(number) => push_display(out, number),
            Self::Flag(flag) => out.push_str(if *flag { "yes" } else { "no" }),
            Self::List(values) => push_list(out, values),
            Self::Age(millis) => out.push_str(&age::human(*millis)),
        }
        if out.len() == start {
            out.push('-');
        }
    }
}

fn push_display(out: &mut String, value: impl fmt::Display) {
    write!(out, "{value}").expect("invariant: writing to a String does not fail");
}

fn push_list(out: &mut String, values: &[String]) {
    for (position, value) in values.iter().take(SHOWN_IN_TEXT).enumerate() {
        if position > 0 {
            out.push_str(", ");
        }
        push_printable(out, value);
    }
    if values.len() > SHOWN_IN_TEXT {
        push_display(out, format_args!(" + {} more", values.len() - SHOWN_IN_TEXT));
    }
}

/// Control characters are escaped: what a source wrote into a name or a path must neither break the table nor reach
/// the operator's terminal as a command.
fn push_printable(out: &mut String, text: &str) {
    if text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        out.push_str(text);
        return;
    }
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
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
            Self::Age(millis) => serializer.serialize_u64(millis / 1000),
        }
    }
}

/// Rows of equal length under one set of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    name: &'static str,
    columns: Vec<&'static str>,
    cells: Vec<Cell>,
}

impl Table {
    /// A table of the rows in the order given. `name` is its key in JSON and its heading where an answer has several;
    /// a column's key in JSON is its heading in lower case with `_` for `-`.
    pub fn new<const N: usize>(
        name: &'static str,
        columns: [&'static str; N],
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) -> Self {
        const { assert!(N > 0, "a table has columns") };
        Self { name, columns: columns.to_vec(), cells: rows.into_iter().flatten().collect() }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.cells.len() / self.columns.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks_exact(self.columns.len())
    }

    /// The table as aligned columns, the headings first, one line per row.
    pub fn write_text(&self, out: &mut String) {
        let mut plain = String::new();
        let mut ends = Vec::with_capacity(self.cells.len());
        for cell in &self.cells {
            cell.write_text(&mut plain);
            ends.push(plain.len());
        }
        let mut widths: Vec<usize> = self.columns.iter().map(|heading| heading.chars().count()).collect();
        self.for_each_row(&plain, &ends, |row| {
            for (width, text) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        });
        push_line(out, &self.columns, &widths);
        self.for_each_row(&plain, &ends, |row| push_line(out, row, &widths));
    }

    /// Cuts `plain` at the `ends` of its cells and hands the texts on row by row.
    fn for_each_row(&self, plain: &str, ends: &[usize], mut each: impl FnMut(&[&str])) {
        let mut row = Vec::with_capacity(self.columns.len());
        let mut start = 0;
        for cells in ends.chunks_exact(self.columns.len()) {
            row.clear();
            for &end in cells {
                row.push(&plain[start..end]);
                start = end;
            }
            each(&row);
        }
    }
}

/// No spaces after the last column.
fn push_line(out: &mut String, row: &[&str], widths: &[usize]) {
    let (last, padded) = row.split_last().expect("invariant: a table has columns");
    for (text, width) in padded.iter().zip(widths) {
        out.push_str(text);
        out.extend(std::iter::repeat_n(' ', width - text.chars().count()));
        out.push_str(GAP);
    }
    out.push_str(last);
    out.push('\n');
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keys: Vec<String> =
            self.columns.iter().map(|heading| heading.to_ascii_lowercase().replace('-', "_")).collect();
        let mut rows = serializer.serialize_seq(Some(self.len()))?;
        for row in self.rows() {
            rows.serialize_element(&Row { keys: &keys, cells: row })?;
        }
        rows.end()
    }
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
    /// For people. A single table stands alone; of several, each has its name as a heading.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let headed = self.0.len() > 1;
        for (position, table) in self.0.iter().enumerate() {
            if position > 0 {
                out.push('\n');
            }
            if headed {
                push_display(&mut out, format_args!("{}:\n", table.name));
            }
            table.write_text(&mut out);
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
            tables.serialize_entry(table.name, table)?;
        }
        tables.end()
    }
}

#[cfg(test)]
mod tests;

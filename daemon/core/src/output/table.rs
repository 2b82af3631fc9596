//! The common form of all responses: named tables of typed cells, rendered as text for people ([`text`]) or as JSON for
//! programs. The table's [`Schema`] defines the columns for both forms.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

pub use super::cell::Cell;
use super::schema::{Column, Schema};
pub use text::{COLOURS, Lines, Style};

mod text;

/// Rows of equal length with one set of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    schema: &'static Schema,
    cells: Vec<Cell>,
    /// The text that replaces the headings if the table has no rows.
    instead: Option<String>,
    /// Whether text output omits the table.
    is_for_programs: bool,
}

impl Table {
    /// A table of the rows in the given order.
    pub fn new<const N: usize>(
        schema: &'static Schema<[Column; N]>,
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) -> Self {
        const { assert!(N > 0, "a table has columns") };
        let cells = rows.into_iter().flatten().collect();
        Self { schema, cells, instead: None, is_for_programs: false }
    }

    /// Sets the text that replaces the headings in text output if there are no rows.
    #[must_use]
    pub fn or_text(mut self, text: String) -> Self {
        self.instead = Some(text);
        self
    }

    /// Omits the table from text output.
    #[must_use]
    pub fn for_programs(mut self) -> Self {
        self.is_for_programs = true;
        self
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.cells.len() / self.schema.columns.len()
    }

    /// Writes the table as aligned columns, the headings first, one line per row.
    pub fn write_text(&self, out: &mut String) {
        self.write_lines(&Style::default(), out);
    }

    /// Writes the table in this style. The result can write further rows in the same columns.
    pub fn write_lines(&self, style: &Style, out: &mut String) -> Lines {
        text::write(self.schema, &self.cells, (style, self.instead.as_deref()), out)
    }

    /// The name and columns.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks_exact(self.schema.columns.len())
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keys: Vec<String> = self.schema.columns.iter().map(Column::key).collect();
        let mut rows = serializer.serialize_seq(Some(self.len()))?;
        for row in self.rows() {
            rows.serialize_element(&Row { keys: &keys, cells: row })?;
        }
        rows.end()
    }
}

/// Formats a row of these columns as a JSON object on one line.
///
/// # Errors
/// As [`Page::to_json`].
pub fn row_to_json(schema: &Schema, cells: &[Cell]) -> serde_json::Result<String> {
    let keys: Vec<String> = schema.columns.iter().map(Column::key).collect();
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

/// A response: one table, or several with headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page(pub Vec<Table>);

impl Page {
    /// The text form without a width limit and without colour.
    pub fn to_text(&self) -> String {
        self.to_styled_text(&Style::default())
    }

    /// The text form. With several tables, each has its name as a heading; a single table has none.
    pub fn to_styled_text(&self, style: &Style) -> String {
        let mut out = String::new();
        let shown: Vec<&Table> = self.0.iter().filter(|table| !table.is_for_programs).collect();
        for (position, table) in shown.iter().enumerate() {
            if position > 0 {
                out.push('\n');
            }
            if shown.len() > 1 {
                out.push_str(table.schema.name);
                out.push_str(":\n");
            }
            table.write_lines(style, &mut out);
        }
        out
    }

    /// The JSON form: an object with one list of objects per table, on one line.
    ///
    /// # Errors
    /// If a table cannot be written as JSON, which no existing kind of cell can cause.
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
            tables.serialize_entry(table.schema.name, table)?;
        }
        tables.end()
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;

//! The text form of all responses: named tables of typed cells. The table's [`Schema`] defines the columns;
//! [`crate::rows`] defines the tables, and their form in JSON.

pub use super::cell::Cell;
use super::schema::{Column, Schema};
pub(crate) use text::Texts;
pub use text::{COLOURS, Lines, Style};

mod text;

/// Rows of equal length with one set of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    schema: &'static Schema,
    cells: Vec<Cell<'a>>,
    /// The text that replaces the headings if the table has no rows.
    instead: Option<String>,
}

impl<'a> Table<'a> {
    /// A table of the rows in the given order.
    pub fn new<const N: usize>(
        schema: &'static Schema<[Column; N]>,
        rows: impl IntoIterator<Item = [Cell<'a>; N]>,
    ) -> Self {
        const { assert!(N > 0, "a table has columns") };
        let cells = rows.into_iter().flatten().collect();
        Self { schema, cells, instead: None }
    }

    /// A table of these cells, which are as many for each row as there are columns.
    pub(crate) fn of_cells(schema: &'static Schema, cells: Vec<Cell<'a>>) -> Self {
        Self { schema, cells, instead: None }
    }

    /// The text form in this style.
    pub fn to_text_with(&self, style: &Style) -> String {
        let mut out = String::new();
        self.write_lines(style, &mut out);
        out
    }

    /// Sets the text that replaces the headings in text output if there are no rows.
    #[must_use]
    pub fn or_text(mut self, text: String) -> Self {
        self.instead = Some(text);
        self
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.cells.len() / self.schema.columns.len()
    }

    /// Writes the table in this style. The result can write further rows in the same columns.
    pub fn write_lines(&self, style: &Style, out: &mut String) -> Lines {
        let mut texts = Texts::new(self.schema, style);
        self.cells.chunks_exact(self.schema.columns.len()).for_each(|row| texts.push(row));
        texts.write(self.instead.as_deref(), out)
    }

    /// The name and columns.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

/// A response: one table, or several with headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<'a>(pub Vec<Table<'a>>);

impl Page<'_> {
    /// The text form without a width limit and without colour.
    pub fn to_text(&self) -> String {
        self.to_styled_text(&Style::default())
    }

    /// The text form. With several tables, each has its name as a heading; a single table has none.
    pub fn to_styled_text(&self, style: &Style) -> String {
        let mut out = String::new();
        for (position, table) in self.0.iter().enumerate() {
            if position > 0 {
                out.push('\n');
            }
            if self.0.len() > 1 {
                out.push_str(table.schema.name);
                out.push_str(":\n");
            }
            table.write_lines(style, &mut out);
        }
        out
    }
}

impl<'a> From<Table<'a>> for Page<'a> {
    fn from(table: Table<'a>) -> Self {
        Self(vec![table])
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;

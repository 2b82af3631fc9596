//! Answers that continue with changes: events in JSON, printed as they are or as lines of a table.

use std::marker::PhantomData;

use nodelb_core::model::calendar::utc;
use nodelb_report::output::table::{Cell, Lines, Style, Table};
use nodelb_report::rows::{self, Frontends, HistoryAnswer, HistoryRow, Row};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::answer::{Format, decode, now};
use super::print::{Sanitizer, print_on};
use super::yaml;
use crate::exit::Failure;

pub(super) trait Followed: DeserializeOwned {
    type Row: DeserializeOwned;

    fn table(&self, style: &Style) -> Table;

    fn cells<'a>(row: &'a Self::Row, style: &Style) -> Vec<Cell<'a>>;
}

impl Followed for Frontends {
    type Row = rows::FrontendRow;

    fn table(&self, style: &Style) -> Table {
        rows::table(&self.frontends, now(), style)
    }

    fn cells<'a>(row: &'a Self::Row, _: &Style) -> Vec<Cell<'a>> {
        row.cells(now())
    }
}

impl Followed for HistoryAnswer {
    type Row = HistoryRow;

    fn table(&self, style: &Style) -> Table {
        HistoryRow::table(&self.history, now(), style)
    }

    fn cells<'a>(row: &'a Self::Row, style: &Style) -> Vec<Cell<'a>> {
        row.shown(now(), style)
    }
}

/// An event. The data of the first one are all rows.
#[derive(Deserialize)]
pub(super) struct Event {
    pub(super) event: String,
    pub(super) data: serde_json::Value,
}

pub(super) struct Printer<F> {
    output: Format,
    style: Style,
    /// The beginning of an event that is not complete yet.
    kept: Vec<u8>,
    /// The alignment of lines; `None` before the first event.
    lines: Option<Lines>,
    text: Sanitizer,
    of: PhantomData<F>,
}

impl<F: Followed> Printer<F> {
    pub(super) fn new(output: Format, style: Style) -> Self {
        Self { output, style, kept: Vec::new(), lines: None, text: Sanitizer::default(), of: PhantomData }
    }

    /// Prints the events that this piece completes. Returns whether the output still has a reader.
    pub(super) fn print(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        if self.output == Format::Json {
            return print_on(&mut self.text, piece);
        }
        self.kept.extend_from_slice(piece);
        let mut out = String::new();
        while let Some(end) = self.kept.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.kept.drain(..=end).collect();
            if self.output == Format::Yaml {
                out.push_str(&format!("---\n{}", yaml::text(&decode(&line)?)));
            } else {
                self.push(&decode(&line)?, &mut out)?;
            }
        }
        print_on(&mut self.text, out.as_bytes())
    }

    fn push(&mut self, event: &Event, out: &mut String) -> Result<(), Failure> {
        let data = event.data.to_string();
        let Some(lines) = &self.lines else {
            let all: F = decode(data.as_bytes())?;
            self.lines = Some(all.table(&self.style).write_lines(out));
            return Ok(());
        };
        out.push_str(match event.event.as_str() {
            "added" => "+ ",
            "removed" => "- ",
            _ => "~ ",
        });
        out.push_str(&utc(now().0 / 1_000).unwrap_or_default());
        out.push_str("  ");
        let row = decode(data.as_bytes())?;
        lines.push_row(&F::cells(&row, &self.style), out);
        Ok(())
    }
}

//! Tables as text: aligned columns that can be fitted to a terminal, with optional colours. The table's [`Schema`] defines
//! the columns; [`crate::rows`] defines the tables, and their form in JSON. This module defines the display of cells. Names
//! and addresses are never shortened, and the last column always shows its whole text.

pub use super::cell::Cell;
use super::schema::{Column, ColumnKind, Schema};
use super::wrap::{push_display, push_printable, push_spaces, push_words};
use crate::durations;
use crate::time::Time;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The number of list elements that are shown if the width is limited, unless all are requested.
const SHOWN: usize = 5;
const GAP: &str = "  ";
/// The character at the end of a shortened cell.
const CUT: char = '…';
/// If the width is not limited, other rows of a column of lists are padded to at most this width. A single list of
/// thousands of addresses would otherwise make every line as long.
const MAX_PADDED: usize = 120;
/// The width of an address. If a list is narrower, spare columns are left out first.
const ADDRESS: usize = 24;
/// The minimum width of a column, however narrow the terminal is.
const LEAST: usize = 8;
/// The minimum width that keeps a last column of texts in its row.
const ENOUGH: usize = 40;
/// The indentation of text that does not fit in its row and follows below it.
const BELOW: &str = "    ";
/// A space at which no line ends.
const TIE: &str = "\u{a0}";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The maximum width of lines in characters; `None` for no limit.
    pub width: Option<usize>,
    /// Whether to show every column, complete lists and times of day, and to shorten nothing.
    pub wide: bool,
    /// Whether further rows follow, so that a column that is empty now stays.
    pub is_stream: bool,
    /// Whether to colour words that show a status, with terminal escape sequences.
    pub colour: bool,
    /// The time zone in which times are shown; `None` to show how long ago they were.
    pub zone: Option<&'static TimeZone>,
}

impl Style {
    /// The word in this colour; unchanged if the colour is empty.
    pub(crate) fn paint(&self, colour: &str, word: &str) -> String {
        if self.colour && !colour.is_empty() { format!("{colour}{word}{RESET}") } else { word.to_owned() }
    }
}

/// Writes lines in the columns of an existing table.
#[derive(Debug)]
pub struct Lines {
    schema: &'static Schema,
    columns: Vec<Column>,
    /// The positions of the columns in a row.
    shown: Vec<usize>,
    layout: Layout,
    /// The width of lines if the columns do not fit, so that each row is a paragraph.
    stacked: Option<usize>,
    style: Style,
}

impl Lines {
    pub fn push_row(&self, row: &[Cell<'_>], out: &mut String) {
        let mut table = Table::new(self.schema, &self.style);
        table.push(row);
        self.push_rows(&table, out);
    }

    fn push_rows(&self, table: &Table, out: &mut String) {
        let mut row = Vec::with_capacity(self.shown.len());
        let mut start = 0;
        for ends in table.ends.chunks_exact(self.schema.columns.len()) {
            row.clear();
            row.extend(self.shown.iter().map(|&at| {
                let (end, width) = ends[at];
                let start = if at > 0 { ends[at - 1].0 } else { start };
                Shown { text: &table.plain[start..end], width }
            }));
            start = ends[ends.len() - 1].0;
            self.push(&row, out);
        }
    }

    fn push(&self, row: &[Shown<'_>], out: &mut String) {
        if let Some(width) = self.stacked {
            return self.push_paragraph(row, width, out);
        }
        let colours: Vec<Option<&str>> = match self.style.colour {
            true => self.columns.iter().zip(row).map(|(column, shown)| colour(column, shown.text)).collect(),
            false => Vec::new(),
        };
        self.layout.push_line(row, &colours, out);
        self.layout.push_below(row, out);
    }
}

impl Lines {
    /// Appends the first cell, and below it the others, each with its heading.
    fn push_paragraph(&self, row: &[Shown<'_>], width: usize, out: &mut String) {
        let Some((first, others)) = row.split_first() else { return };
        out.push_str(first.text);
        let cells = self.columns.iter().skip(1).zip(others).filter(|(_, shown)| shown.text != NOTHING);
        let room = width.saturating_sub(BELOW.len());
        let cell = |(column, shown): (&Column, &Shown<'_>)| {
            let first = width_of(shown.text.split(' ').next().unwrap_or_default());
            let gap = if width_of(column.heading) + 2 + first < room { TIE } else { " " };
            format!("{}:{gap}{}", column.heading, shown.text)
        };
        let cells: Vec<String> = cells.map(cell).collect();
        out.push('\n');
        if !cells.is_empty() {
            out.push_str(BELOW);
            let mut lines = String::new();
            push_words(&mut lines, &cells.join("; "), (0, room), BELOW.len());
            out.push_str(&lines.replace(TIE, " "));
            out.push('\n');
        }
    }
}

/// The text of a cell, and its width in characters.
#[derive(Clone, Copy)]
struct Shown<'a> {
    text: &'a str,
    width: usize,
}

fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// A table, with its displayed cells in one string.
#[derive(Clone, Debug)]
pub struct Table {
    schema: &'static Schema,
    style: Style,
    plain: String,
    /// The end of each text, and its width.
    ends: Vec<(usize, usize)>,
    /// The width that each column needs.
    widths: Vec<usize>,
    /// Whether each column has a value in any row, other than usual ones.
    is_filled: Vec<bool>,
    /// The text that replaces the headings if the table has no rows.
    instead: Option<String>,
}

impl Table {
    pub(crate) fn new(schema: &'static Schema, style: &Style) -> Self {
        let widths = schema.columns.iter().map(|column| column.heading.chars().count()).collect();
        let is_filled = vec![false; schema.columns.len()];
        Self { schema, style: *style, plain: String::new(), ends: Vec::new(), widths, is_filled, instead: None }
    }

    /// Sets the text that replaces the headings if there are no rows.
    #[must_use]
    pub(crate) fn or_text(self, text: String) -> Self {
        Self { instead: Some(text), ..self }
    }

    /// Appends a row, which has a cell for each column.
    pub(crate) fn push(&mut self, row: &[Cell<'_>]) {
        let is_limited = self.style.width.is_some() && !self.style.wide;
        for (at, (column, cell)) in self.schema.columns.iter().zip(row).enumerate() {
            let start = self.plain.len();
            if self.style.wide || !column.is_wide {
                push_cell(&mut self.plain, cell, &self.style);
            }
            let width = width_of(&self.plain[start..]);
            self.ends.push((self.plain.len(), width));
            if column.kind != ColumnKind::List || is_limited || width <= MAX_PADDED {
                self.widths[at] = self.widths[at].max(width);
            }
            self.is_filled[at] |= !cell.is_empty() && !column.usual.contains(&&self.plain[start..]);
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        self.write_lines(&mut out);
        out
    }

    /// Appends the table: the headings, then one line per row. The result writes further rows in the same columns.
    pub fn write_lines(&self, out: &mut String) -> Lines {
        let Self { schema, style, ends, .. } = self;
        let mut shown = self.shown_columns();
        let lines = loop {
            let columns: Vec<Column> = shown.iter().map(|at| schema.columns[*at]).collect();
            let widths = shown.iter().map(|at| self.widths[*at]).collect();
            let layout = Layout::new(&columns, widths, style);
            match columns.iter().rposition(|column| column.is_spare) {
                Some(spare) if !layout.fits(&columns, style) => drop(shown.remove(spare)),
                _ => {
                    let is_too_wide = |width: &usize| !style.wide && layout.excess(*width) > 0;
                    let stacked = style.width.filter(is_too_wide);
                    break Lines { schema, layout, style: *style, columns, shown, stacked };
                }
            }
        };
        if let (true, Some(text)) = (ends.is_empty(), &self.instead) {
            push_printable(out, text);
            out.push('\n');
            return lines;
        }
        if lines.stacked.is_some() && !ends.is_empty() {
            lines.push_rows(self, out);
            return lines;
        }
        let headings =
            lines.columns.iter().map(|Column { heading, .. }| Shown { text: heading, width: width_of(heading) });
        let headings: Vec<Shown<'_>> = headings.collect();
        out.reserve(self.plain.len() + ends.len() * GAP.len() * 2);
        lines.layout.push_line(&headings, &[], out);
        lines.push_rows(self, out);
        lines
    }

    /// The positions of the columns that text contains: without those for wide text, and those that are empty in every
    /// row.
    fn shown_columns(&self) -> Vec<usize> {
        let Self { schema, style, .. } = self;
        let is_shown = |at: &usize| {
            let is_worth = style.is_stream || self.ends.is_empty() || self.is_filled[*at];
            style.wide || !schema.columns[*at].is_wide && is_worth
        };
        (0..schema.columns.len()).filter(is_shown).collect()
    }
}

/// The text of several tables, each with its name as a heading; a single table has none.
pub(crate) fn sections(tables: &[Table]) -> String {
    let mut out = String::new();
    for (position, table) in tables.iter().enumerate() {
        if position > 0 {
            out.push('\n');
        }
        if tables.len() > 1 {
            out.push_str(table.schema.name);
            out.push_str(":\n");
        }
        table.write_lines(&mut out);
    }
    out
}

#[derive(Debug)]
struct Layout {
    widths: Vec<usize>,
    /// Whether each column was made narrower than its content.
    narrowed: Vec<bool>,
    /// The layout of the last column if it needs more than one line.
    last: Option<Last>,
}

/// The layout of a last column of texts that does not fit.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// In its row, from this position, in lines of this number of characters.
    InRow(usize, usize),
    /// Below its row, with this heading, in lines of this number of characters.
    Below(&'static str, usize),
}

impl Layout {
    /// The layout of columns that need these widths.
    fn new(columns: &[Column], widths: Vec<usize>, style: &Style) -> Self {
        let narrowed = vec![false; widths.len()];
        let mut layout = Self { widths, narrowed, last: None };
        let Some(width) = style.width.filter(|_| !style.wide) else { return layout };
        if layout.excess(width) == 0 {
            return layout;
        }
        if let [_, .., Column { heading, kind: ColumnKind::Text | ColumnKind::Texts, .. }] = columns {
            layout.widths.pop();
            let start = layout.widths.iter().sum::<usize>() + GAP.len() * layout.widths.len();
            let room = width.saturating_sub(start);
            layout.last = Some(if room < ENOUGH { Last::Below(heading, width) } else { Last::InRow(start, room) });
        }
        layout.narrow(columns, width);
        layout
    }

    /// Whether no line is too wide, and lists show an address.
    fn fits(&self, columns: &[Column], style: &Style) -> bool {
        let is_short =
            |at: usize| self.narrowed[at] && columns[at].kind == ColumnKind::List && self.widths[at] < ADDRESS;
        let has_short_list = (0..self.widths.len()).any(is_short);
        style.width.filter(|_| !style.wide).is_none_or(|width| self.excess(width) == 0 && !has_short_list)
    }

    /// How many characters too long a line is for the width.
    fn excess(&self, width: usize) -> usize {
        let line = self.widths.iter().sum::<usize>() + GAP.len() * self.widths.len().saturating_sub(1);
        line.saturating_sub(width)
    }

    /// Narrows the widest columns first, until lines fit or no column can be narrowed further.
    fn narrow(&mut self, columns: &[Column], width: usize) {
        let mut excess = self.excess(width);
        while excess > 0 {
            let least = |at: usize| columns[at].heading.chars().count().max(LEAST);
            let may_give = |at: &usize| {
                matches!(columns[*at].kind, ColumnKind::Text | ColumnKind::Texts | ColumnKind::List)
                    && self.widths[*at] > least(*at)
            };
            let Some(widest) = (0..self.widths.len()).filter(may_give).max_by_key(|at| self.widths[*at]) else {
                return;
            };
            self.widths[widest] -= 1;
            self.narrowed[widest] = true;
            excess -= 1;
        }
    }

    /// Appends one line. It has no trailing spaces.
    fn push_line(&self, row: &[Shown<'_>], colours: &[Option<&str>], out: &mut String) {
        for (position, (&width, shown)) in self.widths.iter().zip(row).enumerate() {
            if position > 0 {
                out.push_str(GAP);
            }
            let Shown { text, width: length } = *shown;
            let painted = colours.get(position).copied().flatten();
            out.push_str(painted.unwrap_or_default());
            if length > width && self.narrowed[position] {
                out.extend(text.chars().take(width.saturating_sub(1)).chain([CUT]));
            } else {
                out.push_str(text);
            }
            out.push_str(painted.map_or("", |_| RESET));
            if position + 1 < self.widths.len() || matches!(self.last, Some(Last::InRow(..))) {
                push_spaces(out, width.saturating_sub(length));
            }
        }
        if let (Some(Last::InRow(start, room)), Some(shown)) = (self.last, row.last()) {
            out.push_str(GAP);
            push_words(out, shown.text, (0, room), start);
        }
        out.push('\n');
    }

    /// Appends the text of the last column below its row.
    fn push_below(&self, row: &[Shown<'_>], out: &mut String) {
        let Some(Last::Below(heading, width)) = self.last else { return };
        let Some(Shown { text, .. }) = row.last().filter(|shown| shown.text != NOTHING) else { return };
        out.push_str(BELOW);
        out.push_str(heading);
        out.push(':');
        push_words(out, text, (heading.chars().count() + 1, width.saturating_sub(BELOW.len())), BELOW.len());
        out.push('\n');
    }
}

const NOTHING: &str = "-";
const RESET: &str = "\u{1b}[0m";
pub(crate) const GREEN: &str = "\u{1b}[32m";
pub(crate) const YELLOW: &str = "\u{1b}[33m";
pub(crate) const RED: &str = "\u{1b}[31m";

/// Every escape sequence that a text may contain.
pub const COLOURS: [&str; 4] = [RESET, GREEN, YELLOW, RED];

fn colour(column: &Column, text: &str) -> Option<&'static str> {
    if !matches!(column.kind, ColumnKind::OneOf(_)) {
        return None;
    }
    match text {
        "OK" | "ok" | "Ok" | "Healthy" | "Active" | "Selected" => Some(GREEN),
        "Held" | "Kept" | "LastResort" | "Pending" | "LastGood" | "Recovering" | "Quarantined" | "Terminating"
        | "warning" => Some(YELLOW),
        "NoBackends" | "Conflict" | "Refused" | "Error" | "failed" | "Failed" | "Emptied" | "NotReady" | "critical" => {
            Some(RED)
        }
        _ => None,
    }
}

fn push_cell(out: &mut String, cell: &Cell<'_>, style: &Style) {
    let start = out.len();
    let shown = if style.wide || style.width.is_none() { usize::MAX } else { SHOWN };
    match cell {
        Cell::None => {}
        Cell::Text(text) => push_printable(out, text),
        Cell::Address(address) => address.push_to(out),
        Cell::Number(number) => push_display(out, number),
        Cell::Flag(flag) => out.push_str(if *flag { "yes" } else { "no" }),
        Cell::List(values) => push_list(out, values.iter(), shown, |out, value| push_printable(out, value)),
        Cell::Addresses(values) => push_list(out, values.iter(), shown, |out, value| value.push_to(out)),
        Cell::Since { time, .. } if style.zone.is_some() => push_display(out, local(*time, style.zone)),
        Cell::Since { time, .. } if style.wide => push_display(out, time),
        Cell::Since { time, now } => out.push_str(&durations::human(time.age(*now))),
        Cell::Duration(micros) => out.push_str(&durations::short(*micros)),
    }
    if out.len() == start {
        out.push_str(NOTHING);
    }
}

/// Formats as `2026-11-20 12:03:04`, in the time zone.
fn local(time: Time, zone: Option<&TimeZone>) -> String {
    let found = i64::try_from(time.0).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    let (Some(found), Some(zone)) = (found, zone) else { return time.to_string() };
    zone.to_datetime(found).strftime("%F %T").to_string()
}

fn push_list<T>(
    out: &mut String,
    values: impl ExactSizeIterator<Item = T>,
    shown: usize,
    push: impl Fn(&mut String, T),
) {
    let more = values.len().saturating_sub(shown);
    for (position, value) in values.take(shown).enumerate() {
        if position > 0 {
            out.push_str(", ");
        }
        push(out, value);
    }
    if more > 0 {
        push_display(out, format_args!(" + {more} more"));
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/text.rs"]
mod text_tests;

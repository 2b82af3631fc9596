//! Tables as text: aligned columns that can be fitted to a terminal, with optional colours. This module defines the
//! display of cells. Names and addresses are never shortened, and the last column always shows its whole text.

use std::fmt::{self, Write};

use crate::output::cell::Cell;
use crate::output::durations;
use crate::output::schema::{Column, Kind, Schema};
use crate::output::wrap::{push_printable, push_spaces, push_words};

/// The number of list elements that are shown if the width is limited, unless all are requested.
const SHOWN: usize = 5;
const GAP: &str = "  ";
/// The character at the end of a shortened cell.
const CUT: char = '…';
/// The maximum width of a column of lists to which other rows are padded if the width is not limited. A single list of
/// thousands of addresses would otherwise make every line as long.
const MAX_PADDED: usize = 120;
/// The width of a list below which columns without which the table is complete enough are left out first: an address.
const ADDRESS: usize = 24;
/// The minimum width of a column, however narrow the terminal is.
const LEAST: usize = 8;
/// The minimum width at which a last column of texts stays in its row.
const ENOUGH: usize = 40;
/// The indentation of text that does not fit in its row and follows below it.
const BELOW: &str = "    ";

/// The style of text output.
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
}

impl Style {
    /// The sequences that begin a colour, or nothing.
    pub(crate) fn red(&self) -> &'static str {
        if self.colour { RED } else { "" }
    }

    pub(crate) fn yellow(&self) -> &'static str {
        if self.colour { YELLOW } else { "" }
    }

    pub(crate) fn green(&self) -> &'static str {
        if self.colour { GREEN } else { "" }
    }

    /// The word in this colour; unchanged if the colour is empty.
    pub(crate) fn paint(&self, colour: &str, word: &str) -> String {
        if colour.is_empty() { word.to_owned() } else { format!("{colour}{word}{RESET}") }
    }
}

/// Appends the table: the headings, then one line per row. The result writes further rows in the same columns.
/// `instead` replaces the headings of a table without rows.
pub(super) fn write(
    schema: &'static Schema,
    cells: &[Cell<'_>],
    (style, instead): (&Style, Option<&str>),
    out: &mut String,
) -> Lines {
    let mut shown = shown_columns(schema, cells, style);
    let (lines, texts) = loop {
        let columns: Vec<Column> = shown.iter().map(|at| schema.columns[*at]).collect();
        let texts = Texts::new(cells, (schema.columns.len(), &shown), style);
        let layout = Layout::new(&columns, &texts, style);
        match columns.iter().rposition(|column| column.is_spare) {
            Some(spare) if !layout.fits(&columns, style) => drop(shown.remove(spare)),
            _ => break (Lines { layout, style: *style, columns, shown }, texts),
        }
    };
    if let (true, Some(text)) = (cells.is_empty(), instead) {
        push_printable(out, text);
        out.push('\n');
        return lines;
    }
    let headings: Vec<Shown<'_>> = lines.columns.iter().map(|column| Shown::new(column.heading)).collect();
    out.reserve(texts.plain.len() + cells.len() * GAP.len() * 2);
    lines.layout.push_line(&headings, &[], out);
    texts.for_each_row(|row| lines.push(row, out));
    lines
}

/// The positions of the columns that text contains: without those for wide text, and those that are empty in every row.
fn shown_columns(schema: &Schema, cells: &[Cell<'_>], style: &Style) -> Vec<usize> {
    let columns = schema.columns.len();
    let is_empty = |at: usize| cells.iter().skip(at).step_by(columns).all(Cell::is_empty);
    let is_shown = |at: &usize| {
        let column = &schema.columns[*at];
        style.wide || !column.is_wide && (style.is_stream || cells.is_empty() || !is_empty(*at))
    };
    (0..columns).filter(is_shown).collect()
}

/// Writes lines in the columns of an existing table.
#[derive(Debug)]
pub struct Lines {
    columns: Vec<Column>,
    /// The positions of the columns in a row.
    shown: Vec<usize>,
    layout: Layout,
    style: Style,
}

impl Lines {
    /// Appends one row.
    pub fn push_row(&self, row: &[Cell<'_>], out: &mut String) {
        Texts::new(row, (row.len(), &self.shown), &self.style).for_each_row(|row| self.push(row, out));
    }

    fn push(&self, row: &[Shown<'_>], out: &mut String) {
        let colours: Vec<Option<&str>> = match self.style.colour {
            true => self.columns.iter().zip(row).map(|(column, shown)| colour(column, shown.text)).collect(),
            false => Vec::new(),
        };
        self.layout.push_line(row, &colours, out);
        self.layout.push_below(row, out);
    }
}

/// The text of a cell, and its width in characters.
#[derive(Clone, Copy)]
struct Shown<'a> {
    text: &'a str,
    width: usize,
}

impl<'a> Shown<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, width: width_of(text) }
    }
}

fn width_of(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// The room to reserve for the text of a cell, in bytes.
const ROOM: usize = 24;

/// The displayed cells of a table, in one string.
struct Texts {
    plain: String,
    /// The end of each text, and its width.
    ends: Vec<(usize, usize)>,
    columns: usize,
}

impl Texts {
    /// The texts of the shown columns, of rows with this number of columns.
    fn new(cells: &[Cell<'_>], (columns, shown): (usize, &[usize]), style: &Style) -> Self {
        let plain = String::with_capacity(cells.len() * ROOM);
        let mut texts = Self { plain, ends: Vec::with_capacity(cells.len()), columns: shown.len() };
        for row in cells.chunks_exact(columns.max(1)) {
            for at in shown {
                let start = texts.plain.len();
                push_cell(&mut texts.plain, &row[*at], style);
                texts.ends.push((texts.plain.len(), width_of(&texts.plain[start..])));
            }
        }
        texts
    }

    /// Calls the closure with the texts of each row.
    fn for_each_row<'a>(&'a self, mut each: impl FnMut(&[Shown<'a>])) {
        let mut row = Vec::with_capacity(self.columns);
        let mut start = 0;
        for cells in self.ends.chunks_exact(self.columns.max(1)) {
            row.clear();
            for &(end, width) in cells {
                row.push(Shown { text: &self.plain[start..end], width });
                start = end;
            }
            each(&row);
        }
    }
}

/// The widths of the columns.
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
    fn new(columns: &[Column], cells: &Texts, style: &Style) -> Self {
        let mut widths: Vec<usize> = columns.iter().map(|column| column.heading.chars().count()).collect();
        let is_limited = style.width.is_some() && !style.wide;
        let most = |column: &Column| match column.kind {
            Kind::List if !is_limited => MAX_PADDED,
            _ => usize::MAX,
        };
        let most: Vec<usize> = columns.iter().map(most).collect();
        for row in cells.ends.chunks_exact(widths.len().max(1)) {
            for ((width, most), (_, found)) in widths.iter_mut().zip(&most).zip(row) {
                *width = if found <= most { (*width).max(*found) } else { *width };
            }
        }
        let narrowed = vec![false; widths.len()];
        let mut layout = Self { widths, narrowed, last: None };
        let Some(width) = style.width.filter(|_| !style.wide) else { return layout };
        if layout.excess(width) == 0 {
            return layout;
        }
        if let [_, .., Column { heading, kind: Kind::Text, .. }] = columns {
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
        let is_short = |at: usize| self.narrowed[at] && columns[at].kind == Kind::List && self.widths[at] < ADDRESS;
        let has_short_list = (0..self.widths.len()).any(is_short);
        style.width.filter(|_| !style.wide).is_none_or(|width| self.excess(width) == 0 && !has_short_list)
    }

    /// The number of characters by which a line exceeds the width.
    fn excess(&self, width: usize) -> usize {
        let line = self.widths.iter().sum::<usize>() + GAP.len() * self.widths.len().saturating_sub(1);
        line.saturating_sub(width)
    }

    /// Narrows the widest columns first, until lines fit or no column can be narrowed further.
    fn narrow(&mut self, columns: &[Column], width: usize) {
        let mut excess = self.excess(width);
        while excess > 0 {
            let least = |at: usize| columns[at].heading.chars().count().max(LEAST);
            let may_give =
                |at: &usize| matches!(columns[*at].kind, Kind::Text | Kind::List) && self.widths[*at] > least(*at);
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
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RED: &str = "\u{1b}[31m";

/// Every escape sequence that a text may contain.
pub const COLOURS: [&str; 4] = [RESET, GREEN, YELLOW, RED];

/// The colour of a word that shows a status.
fn colour(column: &Column, text: &str) -> Option<&'static str> {
    if !matches!(column.kind, Kind::OneOf(_)) {
        return None;
    }
    match text {
        "OK" | "ok" | "Ok" | "Healthy" | "Active" | "Selected" => Some(GREEN),
        "Held" | "LastResort" | "Pending" | "LastGood" | "Recovering" | "Quarantined" | "Terminating" | "warning" => {
            Some(YELLOW)
        }
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
        Cell::Age(millis) => out.push_str(&durations::human(*millis)),
        Cell::Since { time, .. } if style.wide => push_display(out, time),
        Cell::Since { time, now } => out.push_str(&durations::human(time.age(*now))),
        Cell::Duration(micros) => out.push_str(&durations::short(*micros)),
    }
    if out.len() == start {
        out.push_str(NOTHING);
    }
}

fn push_display(out: &mut String, value: impl fmt::Display) {
    write!(out, "{value}").expect("invariant: writing to a String does not fail");
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
#[path = "tests/text.rs"]
mod tests;

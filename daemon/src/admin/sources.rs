//! `/sources`: what each source has told, and what is wrong with it.

use std::fmt;

use nodelb_core::service::Source;

use super::table::{Cell, Table};

/// A row of `/sources`: one place a source reads, and what it made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    /// Which source.
    pub source: Source,
    /// A file, or the directory as a whole.
    pub path: String,
    /// Whether what is served from it is what it says.
    pub state: SourceState,
    /// How many services it contributes.
    pub services: usize,
    /// How many slices it contributes.
    pub slices: usize,
    /// What was left out on purpose, such as `3 objects of other kinds`.
    pub notices: Vec<String>,
    /// What is wrong, with line and remedy.
    pub problems: Vec<String>,
    /// Since when it is in this state with these problems, in seconds since 1970.
    pub since: u64,
}

/// The states of a [`SourceReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// What it says is what is served. Problems that remain concern single objects in it.
    Ok,
    /// It has problems; what it said before is still served.
    LastGood,
    /// It has problems, and nothing of it is served.
    Error,
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The columns of `/sources`. `now` is in seconds since 1970.
pub fn sources(rows: &[SourceReport], now: u64) -> Table {
    let columns = ["Source", "Path", "State", "Services", "Slices", "Since", "Notices", "Problems"];
    let cells = |row: &SourceReport| {
        [
            Cell::text(&row.source),
            Cell::text(&row.path),
            Cell::text(&row.state),
            Cell::count(row.services),
            Cell::count(row.slices),
            Cell::Age(now.saturating_sub(row.since).saturating_mul(1000)),
            Cell::List(row.notices.clone()),
            Cell::List(row.problems.clone()),
        ]
    };
    Table::new("sources", columns, rows.iter().map(cells))
}

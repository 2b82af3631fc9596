//! `/sources`: what each source has told, and what is wrong with it.

use std::sync::Arc;

use nodelb_core::datapath::Moment;
use nodelb_core::service::Source;

use super::table::{Cell, Table};

/// A row of `/sources`: a source as a whole, or one file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    /// Which source.
    pub source: Source,
    /// Directory, file or address it reads.
    pub path: Arc<str>,
    /// Where it stands, such as `Synced` or `Unreadable`.
    pub state: Arc<str>,
    /// How many services it has told.
    pub services: usize,
    /// How many slices.
    pub slices: usize,
    /// Since when it has this state.
    pub since: Moment,
    /// What was read differently from what its writer may think; nothing is wrong.
    pub notices: Vec<String>,
    /// What could not be read, where, and the remedy.
    pub problems: Vec<String>,
}

/// The columns of `/sources`.
pub fn sources(rows: &[SourceReport], now: Moment) -> Table {
    let columns = ["Source", "Path", "State", "Services", "Slices", "Since", "Notices", "Problems"];
    let cells = |row: &SourceReport| {
        [
            Cell::text(&row.source),
            Cell::Shared(Arc::clone(&row.path)),
            Cell::Shared(Arc::clone(&row.state)),
            Cell::count(row.services),
            Cell::count(row.slices),
            Cell::age(row.since, now),
            Cell::List(row.notices.clone()),
            Cell::List(row.problems.clone()),
        ]
    };
    Table::new("sources", columns, rows.iter().map(cells))
}

//! `/sources`: what each source has told, and what is wrong with it.

use super::table::{Cell, Table};
pub use crate::source::{SourceReport, SourceState};

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

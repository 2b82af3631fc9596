//! `/sources`: what each source has sent, and its problems.

use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Table};
use nodelb_core::source_report::SourceReport;

/// The columns of `/sources`.
pub static SOURCES: Schema<[Column; 8]> = Schema {
    name: "sources",
    columns: [
        Column::name("Source"),
        Column::text("Path"),
        Column::text("State"),
        Column::number("Services"),
        Column::number("Slices"),
        Column::age("Since"),
        Column::list("Notices"),
        Column::list("Problems"),
    ],
};

/// Returns one row per place. `now` is in seconds since 1970.
pub fn sources(rows: &[SourceReport], now: u64) -> Table {
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
    Table::new(&SOURCES, rows.iter().map(cells))
}

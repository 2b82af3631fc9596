//! Differences as rows. The admin API and the command line both use these columns.

use super::schema::{Column, Schema};
use super::table::{Cell, Table};
use crate::explain::rows::{Between, Difference};

/// The table of differences, including those that the command line finds.
pub static DIFFERENCES: Schema<[Column; 8]> = Schema {
    name: "differences",
    columns: [
        Column::one_of("Between", &Between::NAMES),
        Column::name("What"),
        Column::name("Service"),
        Column::text("Source"),
        Column::text("Memory"),
        Column::text("Kernel"),
        Column::text("Likely-Cause"),
        Column::text("What-Happens"),
    ],
};

/// The table of what was compared. Text output shows it only if there are no differences.
pub static COMPARED: Schema<[Column; 2]> =
    Schema { name: "compared", columns: [Column::number("Services"), Column::number("Frontends")] };

/// What happens to hooks that are not in effect.
pub const ATTACHED_AGAIN: &str = "attached again within 10 s; until then connections may not be translated";

/// The table with these rows.
pub fn differences(rows: impl IntoIterator<Item = Difference>) -> Table {
    Table::new(&DIFFERENCES, rows.into_iter().map(cells))
}

/// The cells of one row.
pub fn cells(row: Difference) -> [Cell; 8] {
    [
        Cell::text(&row.between),
        Cell::Text(row.what),
        Cell::optional(row.service),
        Cell::optional(row.source),
        Cell::optional(row.memory),
        Cell::optional(row.kernel),
        Cell::Text(row.cause),
        Cell::Text(row.action),
    ]
}

/// The text for the case that there are no differences.
pub fn agreement(is_whole: bool, services: u64, frontends: u64) -> String {
    let about = if is_whole { "" } else { " about what was asked for" };
    let [services, frontends] = [(services, "service"), (frontends, "frontend")]
        .map(|(number, what)| format!("{number} {what}{}", if number == 1 { "" } else { "s" }));
    format!("source, memory and kernel agree{about}: {services}, {frontends}; compared just now")
}

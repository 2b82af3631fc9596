//! `/apiservers`: every address that an apiserver may have, its state, which one is in use, and why.

use nodelb_core::model::moment::Moment;
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_kube::apiserver::pool::PoolReport;

use super::state::Now;

/// The columns of the addresses.
pub static APISERVERS: Schema<[Column; 9]> = Schema {
    name: "apiservers",
    columns: [
        Column::name("Address"),
        Column::text("From"),
        Column::text("State"),
        Column::age("Since"),
        Column::flag("In-Use"),
        Column::age("Worked"),
        Column::age("Failed"),
        Column::text("Error"),
        Column::text("Why"),
    ],
};

/// The columns of the session in use.
pub static SESSION: Schema<[Column; 4]> = Schema {
    name: "session",
    columns: [
        Column::name("Apiserver"),
        Column::age("Last-Response"),
        Column::number("Switches"),
        Column::text("Problem"),
    ],
};

/// Returns one row per address in the order of preference, and one row about the session in use.
pub fn apiservers(report: &PoolReport, now: Now) -> Page {
    let ago = |moment: Moment| Cell::age(moment, now.moment);
    let rows = report.rows(now.moment, now.unix).into_iter().map(|row| {
        let (failed, error) = row.error.map_or((Cell::None, None), |(at, error)| (ago(at), Some(error)));
        [
            Cell::text(&row.address),
            Cell::text(&row.origin),
            Cell::text(&row.status),
            ago(row.since),
            Cell::Flag(row.in_use),
            row.worked.map_or(Cell::None, Cell::Age),
            failed,
            Cell::optional(error),
            Cell::Text(row.why),
        ]
    });
    let session = report.pool.is_some().then(|| {
        [
            Cell::optional(report.in_use()),
            report.last_response.map_or(Cell::None, ago),
            Cell::Number(report.switches()),
            Cell::optional(report.problem.as_ref()),
        ]
    });
    let session = Table::new(&SESSION, session);
    Page(vec![Table::new(&APISERVERS, rows), session])
}

#[cfg(test)]
#[path = "tests/apiservers.rs"]
pub(super) mod tests;

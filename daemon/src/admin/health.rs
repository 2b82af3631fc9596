//! `/healthz` and `/readyz`: whether the process works, and whether connections of this node are translated. Owns their
//! columns; [`crate::status`] makes the decision.

use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Table};

use crate::status::Check;

/// The columns of `/healthz`.
pub static HEALTHZ: Schema<[Column; 3]> = columns("healthz");
/// The columns of `/readyz`.
pub static READYZ: Schema<[Column; 3]> = columns("readyz");

const RESULTS: [&str; 2] = ["ok", "failed"];

const fn columns(name: &'static str) -> Schema<[Column; 3]> {
    Schema { name, columns: [Column::text("Check"), Column::one_of("Result", &RESULTS), Column::text("Detail")] }
}

/// Returns the rows of `/healthz` or `/readyz`.
pub fn checks(schema: &'static Schema<[Column; 3]>, checks: &[Check]) -> Table {
    let [ok, failed] = RESULTS;
    let cells = |check: &Check| {
        [Cell::text(check.name), Cell::text(if check.passed { ok } else { failed }), Cell::text(&check.detail)]
    };
    Table::new(schema, checks.iter().map(cells))
}

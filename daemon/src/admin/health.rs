//! `/healthz` and `/readyz`: whether the process works, and whether connections of this node are translated. Owns their
//! columns; [`crate::status`] makes the decision.

use nodelb_core::output::shape::{Column, Shape};
use nodelb_core::output::table::{Cell, Table};

use crate::status::Check;

/// The columns of `/healthz`.
pub static HEALTHZ: Shape<[Column; 3]> = columns("healthz");
/// The columns of `/readyz`.
pub static READYZ: Shape<[Column; 3]> = columns("readyz");

const RESULTS: [&str; 2] = ["ok", "failed"];

const fn columns(name: &'static str) -> Shape<[Column; 3]> {
    Shape { name, columns: [Column::text("Check"), Column::one_of("Result", &RESULTS), Column::text("Detail")] }
}

/// Returns the rows of `/healthz` or `/readyz`.
pub fn checks(shape: &'static Shape<[Column; 3]>, checks: &[Check]) -> Table {
    let [ok, failed] = RESULTS;
    let cells = |check: &Check| {
        [Cell::text(check.name), Cell::text(if check.passed { ok } else { failed }), Cell::text(&check.detail)]
    };
    Table::new(shape, checks.iter().map(cells))
}

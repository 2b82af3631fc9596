//! `/trace`: the path of a connection in sentences, and as columns for programs. The core decides what happens and why
//! ([`nodelb_core::explain::explanation`]); this module owns the wording.

use std::os::unix::fs::MetadataExt;

use axum::http::StatusCode;
use nodelb_core::compile::select::Choice;
use nodelb_core::explain::explanation;
use nodelb_core::explain::explanation::{Client, ConnectResult, Explanation, ViewKind};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::BackendState;
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::snapshot::Snapshot;

use super::query::{Problem, Query, TraceFrom};
use super::state::Now;

mod text;

/// The columns of the result.
pub(super) static VERDICT: Schema<[Column; 10]> = Schema {
    name: "verdict",
    columns: [
        Column::name("To"),
        Column::text("From"),
        Column::one_of("Verdict", &ConnectResult::NAMES),
        Column::text("Errno"),
        Column::name("Service"),
        Column::name("Port"),
        Column::name("Frontend"),
        Column::one_of("View", &ViewKind::NAMES),
        Column::number("Backends"),
        Column::flag("In-Kernel"),
    ],
};

/// The columns of the steps.
pub(super) static TRACE: Schema<[Column; 2]> =
    Schema { name: "trace", columns: [Column::name("Step"), Column::text("Finding")] };

/// The columns of the backends, with the reason for or against each.
pub(super) static BACKENDS: Schema<[Column; 8]> = Schema {
    name: "backends",
    columns: [
        Column::name("Address"),
        Column::one_of("State", &BackendState::NAMES),
        Column::one_of("Choice", &Choice::NAMES),
        Column::text("Share"),
        Column::text("Node"),
        Column::text("Zone"),
        Column::text("Origin"),
        Column::text("Reason"),
    ],
};

impl TraceFrom {
    /// # Errors
    /// When the network namespace of the node cannot be determined.
    fn explanation(self, snapshot: &Snapshot, to: L4Addr) -> Result<Explanation, Problem> {
        Ok(match self {
            Self::Client(client) => explanation::explain(snapshot, to, client),
            Self::At(addr) => explanation::explain_from(snapshot, to, addr),
            Self::Namespace(inode) => {
                let own = std::fs::metadata("/proc/self/ns/net").map_err(|error| {
                    let message =
                        format!("cannot determine the network namespace of the node: {error}; use host or pod");
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
                })?;
                explanation::explain(snapshot, to, if own.ino() == inode { Client::Host } else { Client::Pod })
            }
        })
    }
}

/// Returns the answer of `/trace`.
///
/// # Errors
/// When the client cannot be determined.
pub(super) fn trace(snapshot: &Snapshot, query: &Query, now: Now) -> Result<Page, Problem> {
    let Some(to) = query.to else {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "the destination is missing: to=ADDRESS:PORT"));
    };
    let from = query.from.unwrap_or(TraceFrom::Client(Client::Host));
    Ok(page(&from.explanation(snapshot, to)?, now.moment))
}

fn page(explanation: &Explanation, now: Moment) -> Page {
    let steps =
        text::steps(explanation, now).into_iter().map(|(step, finding)| [Cell::text(step), Cell::Text(finding)]);
    Page(vec![verdict(explanation), Table::new(&TRACE, steps), backends(explanation)])
}

fn verdict(explanation: &Explanation) -> Table {
    let owner = explanation.found.as_ref().and(explanation.claims.first());
    let errno = match explanation.result {
        ConnectResult::Refused(errno) => Some(errno),
        ConnectResult::Forwarded(_) | ConnectResult::PassedThrough => None,
    };
    let found = explanation.found.as_ref();
    let row = [
        Cell::text(&explanation.to),
        Cell::text(&explanation.from),
        Cell::text(&explanation.result),
        Cell::optional(errno),
        Cell::optional(owner.map(|row| &row.service)),
        owner.map_or(Cell::None, |row| Cell::Shared(row.port.clone())),
        Cell::optional(found.map(|found| found.at)),
        Cell::optional(found.map(|found| found.view)),
        match explanation.result {
            ConnectResult::Forwarded(backends) => Cell::count(backends),
            ConnectResult::Refused(_) | ConnectResult::PassedThrough => Cell::None,
        },
        found.map_or(Cell::None, |found| Cell::Flag(found.is_in_kernel)),
    ];
    Table::new(&VERDICT, [row])
}

fn backends(explanation: &Explanation) -> Table {
    let rows = explanation.backends.iter().map(|candidate| {
        let row = &candidate.row;
        [
            Cell::text(&row.address),
            Cell::text(&row.state),
            Cell::text(&row.choice),
            Cell::Text(text::share(candidate)),
            Cell::Shared(row.node.clone()),
            Cell::Shared(row.zone.clone()),
            Cell::Shared(row.origin.clone()),
            Cell::optional(text::reason(candidate)),
        ]
    });
    Table::new(&BACKENDS, rows)
}

#[cfg(test)]
#[path = "tests/trace.rs"]
mod tests;

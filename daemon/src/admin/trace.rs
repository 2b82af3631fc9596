//! `/trace`: the path of a connection in sentences, and as columns for programs. The core decides what happens and why
//! ([`nodelb_core::explain::story`]); this module owns the wording.

use std::os::unix::fs::MetadataExt;

use axum::http::StatusCode;
use nodelb_core::compile::select::Choice;
use nodelb_core::explain::story;
use nodelb_core::explain::story::{Client, End, Story, View};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::BackendState;
use nodelb_core::output::shape::{Column, Shape};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::snapshot::Snapshot;

use super::query::{Problem, Query, TraceFrom};
use super::state::Now;

mod text;

/// The columns of the result.
pub(super) static VERDICT: Shape<[Column; 10]> = Shape {
    name: "verdict",
    columns: [
        Column::name("To"),
        Column::text("From"),
        Column::one_of("Verdict", &End::NAMES),
        Column::text("Errno"),
        Column::name("Service"),
        Column::name("Port"),
        Column::name("Frontend"),
        Column::one_of("View", &View::NAMES),
        Column::number("Backends"),
        Column::flag("In-Kernel"),
    ],
};

/// The columns of the steps.
pub(super) static TRACE: Shape<[Column; 2]> =
    Shape { name: "trace", columns: [Column::name("Step"), Column::text("Finding")] };

/// The columns of the backends, with the reason for or against each.
pub(super) static BACKENDS: Shape<[Column; 8]> = Shape {
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
    fn story(self, snapshot: &Snapshot, to: L4Addr) -> Result<Story, Problem> {
        Ok(match self {
            Self::Client(client) => story::story(snapshot, to, client),
            Self::At(addr) => story::story_of(snapshot, to, addr),
            Self::Namespace(inode) => {
                let own = std::fs::metadata("/proc/self/ns/net").map_err(|error| {
                    let message =
                        format!("which network namespace is the node's cannot be determined: {error}; say host or pod");
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
                })?;
                story::story(snapshot, to, if own.ino() == inode { Client::Host } else { Client::Pod })
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
        return Err(Problem::new(StatusCode::BAD_REQUEST, "say what is dialled: to=ADDRESS:PORT"));
    };
    let from = query.from.unwrap_or(TraceFrom::Client(Client::Host));
    Ok(page(&from.story(snapshot, to)?, now.moment))
}

fn page(story: &Story, now: Moment) -> Page {
    let steps = text::steps(story, now).into_iter().map(|(step, finding)| [Cell::text(step), Cell::Text(finding)]);
    Page(vec![verdict(story), Table::new(&TRACE, steps), backends(story)])
}

fn verdict(story: &Story) -> Table {
    let owner = story.found.as_ref().and(story.claims.first());
    let errno = match story.end {
        End::Refused(errno) => Some(errno),
        End::Forwarded(_) | End::PassedThrough => None,
    };
    let found = story.found.as_ref();
    let row = [
        Cell::text(&story.to),
        Cell::text(&story.from),
        Cell::text(&story.end),
        Cell::optional(errno),
        Cell::optional(owner.map(|row| &row.service)),
        owner.map_or(Cell::None, |row| Cell::Shared(row.port.clone())),
        Cell::optional(found.map(|found| found.at)),
        Cell::optional(found.map(|found| found.view)),
        match story.end {
            End::Forwarded(backends) => Cell::count(backends),
            End::Refused(_) | End::PassedThrough => Cell::None,
        },
        found.map_or(Cell::None, |found| Cell::Flag(found.is_in_kernel)),
    ];
    Table::new(&VERDICT, [row])
}

fn backends(story: &Story) -> Table {
    let rows = story.backends.iter().map(|candidate| {
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

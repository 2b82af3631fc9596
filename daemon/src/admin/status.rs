//! `/status`: the state of the daemon and the node on one screen. It summarises other routes and has no facts of its
//! own.

use std::fmt::Display;

use nodelb_core::explain::reports;
use nodelb_core::filter::Filter;
use nodelb_core::output::durations;
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;

use super::history;
use super::state::{AdminState, Now};

/// The columns of the summary, which has one row per subject.
pub(super) static STATUS: Schema<[Column; 2]> =
    Schema { name: "status", columns: [Column::name("About"), Column::text("State")] };

/// The columns of the first addresses that are not as the sources request.
pub(super) static TROUBLE: Schema<[Column; 4]> = Schema {
    name: "trouble",
    columns: [
        Column::name("Address"),
        Column::name("Service"),
        Column::one_of("Status", &Status::NAMES),
        Column::text("Error"),
    ],
};

/// The columns of the latest changes.
pub(super) static CHANGES: Schema<[Column; 5]> = Schema {
    name: "changes",
    columns: [
        Column::name("Time"),
        Column::name("Service"),
        Column::name("Port"),
        Column::text("What"),
        Column::text("Object"),
    ],
};

/// Maximum number of rows of [`TROUBLE`].
const TROUBLES: usize = 3;
/// Maximum number of rows of [`CHANGES`].
const RECENT: usize = 5;

/// Returns the whole screen.
pub(super) fn status(state: &AdminState, now: Now) -> Page {
    let snapshot = state.snapshot();
    let mut rows: Vec<(String, String)> = vec![
        ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ("running".into(), format!("for {}", durations::human(now.moment.0))),
    ];
    rows.extend(state.datapath.kernel_features().map(|says| ("kernel".into(), says.into())));
    for check in state.readiness(now) {
        let result = if check.passed { "ok" } else { "failed" };
        rows.push((check.name.into(), format!("{result}: {}", check.detail)));
    }
    for source in state.sources() {
        let problems = source.problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
        let what = format!("{}: {}, {} services{problems}", source.path, source.state, source.services);
        rows.push((format!("source {}", source.source), what));
    }
    rows.extend(apiserver(state));
    rows.extend(counts(&snapshot));
    let rows = rows.into_iter().map(|(about, says)| [Cell::Text(about), Cell::Text(says)]);
    Page(vec![Table::new(&STATUS, rows), trouble(&snapshot), changes(state)])
}

fn apiserver(state: &AdminState) -> Option<(String, String)> {
    let report = state.apiservers();
    report.pool.as_ref()?;
    let says = match (report.in_use(), &report.problem) {
        (Some(address), _) => format!("{address} is in use"),
        (None, Some(problem)) => format!("not connected: {problem}"),
        (None, None) => "not connected: see nodelb apiservers".into(),
    };
    Some(("apiserver".into(), says))
}

fn counts(snapshot: &Snapshot) -> [(String, String); 2] {
    let counts = reports::counts(snapshot);
    let by_status: Vec<String> = counts.frontends.iter().map(|(status, number)| format!("{number} {status}")).collect();
    let frontends = if by_status.is_empty() { "none".into() } else { by_status.join(", ") };
    let held = if counts.held > 0 { format!(", {} of them held", counts.held) } else { String::new() };
    [("services".into(), format!("{}{held}", counts.services)), ("frontends".into(), frontends)]
}

fn trouble(snapshot: &Snapshot) -> Table {
    let of = |status| reports::frontends(snapshot, &Filter { status: Some(status), ..Filter::default() });
    let rows = [Status::Error, Status::Held, Status::Pending].into_iter().flat_map(of);
    let cells = |row: nodelb_core::explain::rows::FrontendReport| {
        [text(&row.address), text(&row.service), text(&row.status), Cell::optional(row.error)]
    };
    let node = snapshot.unanswered_node_addrs();
    let node = node.map(|(addr, error)| {
        let error = format!("NodePorts do not work on this address: {error}");
        [text(&addr), Cell::None, text(&Status::Error), Cell::Text(error)]
    });
    Table::new(&TROUBLE, rows.map(cells).chain(node).take(TROUBLES)).or_text("No problems found.".into())
}

fn changes(state: &AdminState) -> Table {
    let history = state.history();
    let first = history.len().saturating_sub(RECENT);
    let rows = history.after(0).skip(first).map(|record| {
        let [_, time, _, service, port, what, object, ..] = history::cells(record, 0);
        [time, service, port, what, object]
    });
    Table::new(&CHANGES, rows)
}

fn text(value: &impl Display) -> Cell {
    Cell::text(value)
}

//! `/connections`: the connections of clients outside the node.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use axum::http::StatusCode;
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::{Connection, ConnectionState};

use super::query::{Problem, Query};
use super::state::AdminState;

/// The columns of the connections.
pub(super) static CONNECTIONS: Schema<[Column; 10]> = Schema {
    name: "connections",
    columns: [
        Column::name("Client"),
        Column::name("Frontend"),
        Column::name("Backend"),
        Column::text("Source-Address"),
        Column::one_of("Path", &PATHS),
        Column::one_of("State", &ConnectionState::NAMES),
        Column::age("Idle"),
        Column::age("Age"),
        Column::number("Bytes"),
        Column::text("Service"),
    ],
};

/// The columns of the row about the list.
pub(super) static LISTED: Schema<[Column; 2]> =
    Schema { name: "listed", columns: [Column::number("Connections"), Column::flag("Complete")] };

/// Through the network stack of the node, or past it to another node.
const PATHS: [&str; 2] = ["stack", "redirect"];

/// The maximum number of rows unless the request names one.
pub(super) const LIMIT: usize = 1000;

/// Returns one row per connection, and one about the list. The maps are read in batches, only until the limit is
/// reached.
pub(super) fn connections(state: &AdminState, query: &Query) -> Result<Page, Problem> {
    let snapshot = state.snapshot();
    let ids = requested_ids(&snapshot, query);
    let is_wanted = |connection: &Connection| {
        let addresses = [connection.client, connection.frontend, connection.backend];
        let has = |addr| addresses.iter().any(|it| it.addr == addr);
        ids.as_ref().is_none_or(|ids| ids.contains(&connection.service)) && query.filter.address.is_none_or(has)
    };
    let (limit, mut found, mut is_complete) = (query.limit.unwrap_or(LIMIT), Vec::new(), true);
    if let Some(packets) = &state.packets {
        let mut see = |connection: Connection| {
            if !is_wanted(&connection) {
                return ControlFlow::Continue(());
            }
            if found.len() == limit {
                is_complete = false;
                return ControlFlow::Break(());
            }
            found.push(connection);
            ControlFlow::Continue(())
        };
        (packets.connections)(&mut see).map_err(|error| {
            let message = format!("cannot read the kernel maps: {error}; connections keep working");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
    }
    let listed = Table::new(&LISTED, [[Cell::count(found.len()), Cell::Flag(is_complete)]]);
    Ok(Page(vec![Table::new(&CONNECTIONS, found.iter().map(|connection| row(connection, &snapshot))), listed]))
}

/// The ids of the service that the query names; `None` if it names none.
pub(super) fn requested_ids(snapshot: &Snapshot, query: &Query) -> Option<BTreeSet<ServiceId>> {
    let service = query.filter.service.as_ref()?;
    let ports = snapshot.ports().filter(|(_, key)| key.service == *service);
    Some(ports.map(|(id, _)| id).collect())
}

fn row(connection: &Connection, snapshot: &Snapshot) -> [Cell; 10] {
    let [stack, redirect] = PATHS;
    let milliseconds = |seconds: u32| u64::from(seconds) * 1000;
    let ServiceId(id) = connection.service;
    [
        Cell::text(&connection.client),
        Cell::text(&connection.frontend),
        Cell::text(&connection.backend),
        Cell::optional(connection.source),
        Cell::text(if connection.is_redirected { redirect } else { stack }),
        Cell::text(connection.state.name()),
        Cell::Age(milliseconds(connection.idle)),
        Cell::Age(milliseconds(connection.age)),
        Cell::Number(connection.bytes),
        Cell::text(&snapshot.service_of(connection.service).unwrap_or_else(|| format!("(deleted service {id})"))),
    ]
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;

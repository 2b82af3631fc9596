//! `/connections`: the connections of clients outside the node.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nodelb_core::model::forward::Forward;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::Connection;
use nodelb_report::rows::{ConnectionRow, Connections, ListedRow, PATHS};
use nodelb_report::time::{Clocks, Time};

use super::query::{Problem, Query, unreadable};
use super::state::AdminState;

/// The maximum number of rows unless the request names one.
pub(super) const LIMIT: usize = 1000;

/// Returns one row per connection, and one about the list. The maps are read in batches, only until the limit is
/// reached.
pub(super) fn connections(state: &AdminState, query: &Query, now: Clocks) -> Result<Connections, Problem> {
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
        (packets.connections)(&mut see).map_err(unreadable)?;
    }
    let listed = ListedRow { connections: found.len() as u64, complete: is_complete };
    let connections = found.iter().map(|connection| row(connection, &snapshot, now)).collect();
    Ok(Connections { connections, listed })
}

/// The ids of the service that the query names; `None` if it names none.
pub(super) fn requested_ids(snapshot: &Snapshot, query: &Query) -> Option<BTreeSet<ServiceId>> {
    let service = query.filter.service.as_ref()?;
    let ports = snapshot.ports().filter(|(_, key)| key.service == *service);
    Some(ports.map(|(id, _)| id).collect())
}

fn row(connection: &Connection, snapshot: &Snapshot, now: Clocks) -> ConnectionRow {
    let [stack, redirect, direct, tunnel] = PATHS;
    let ago = |seconds: u32| Time(now.time.0.saturating_sub(u64::from(seconds) * 1000));
    let service = |id: ServiceId| match id {
        ServiceId::CANARY => "(this node)".into(),
        ServiceId(number) => snapshot.service_of(id).unwrap_or_else(|| format!("(deleted service {number})")),
    };
    ConnectionRow {
        client: connection.client.to_string(),
        frontend: connection.frontend.to_string(),
        backend: connection.backend.to_string(),
        source_address: connection.source.map(|source| source.to_string()),
        path: match connection.forward {
            Forward::Direct => direct,
            Forward::Tunnel => tunnel,
            Forward::Translate if connection.is_redirected => redirect,
            Forward::Translate => stack,
        }
        .into(),
        state: connection.state.name().into(),
        last_packet: ago(connection.idle),
        first_packet: ago(connection.age),
        bytes: connection.bytes,
        service: service(connection.service),
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;

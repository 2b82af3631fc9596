//! The columns of `/services`, `/frontends` and `/backends`, each defined here and nowhere else.

use nodelb_core::datapath::Moment;
use nodelb_core::report::{BackendReport, FrontendReport, ServiceReport};
use nodelb_core::service::TrafficPolicy;

use super::table::{Cell, Table};

/// One row per claim of a service to an address. `now` is what ages are counted to.
pub fn frontends(rows: Vec<FrontendReport>, now: Moment) -> Table {
    let columns = ["Address", "Type", "Service", "Port", "Backends", "Flags", "Status", "Since", "Error"];
    let cells = |row: FrontendReport| {
        [
            Cell::text(&row.address),
            Cell::text(&row.kind),
            Cell::text(&row.service),
            Cell::Shared(row.port),
            Cell::list(row.backends),
            Cell::List(row.flags),
            Cell::text(&row.status),
            Cell::age(row.since, now),
            Cell::optional(row.error),
        ]
    };
    Table::new("frontends", columns, rows.into_iter().map(cells))
}

/// One row per service.
pub fn services(rows: Vec<ServiceReport>) -> Table {
    let columns = [
        "Service",
        "Source",
        "Ports",
        "Internal-Policy",
        "External-Policy",
        "Affinity",
        "Frontends",
        "Backends",
        "Selectable",
        "Status",
        "Origin",
        "Error",
    ];
    let cells = |row: ServiceReport| {
        [
            Cell::text(&row.service),
            Cell::text(&row.source),
            Cell::List(row.ports),
            policy(row.internal_policy),
            policy(row.external_policy),
            Cell::optional_number(row.affinity_seconds),
            Cell::count(row.frontends),
            Cell::count(row.backends),
            Cell::count(row.selectable),
            Cell::text(&row.status),
            Cell::Shared(row.origin),
            Cell::optional(row.error),
        ]
    };
    Table::new("services", columns, rows.into_iter().map(cells))
}

/// One row per backend of a service port.
pub fn backends(rows: Vec<BackendReport>) -> Table {
    let columns = ["Address", "Service", "Port", "State", "Weight", "Node", "Zone", "Choice", "Origin", "Reason"];
    let cells = |row: BackendReport| {
        [
            Cell::text(&row.address),
            Cell::text(&row.service),
            Cell::Shared(row.port),
            Cell::text(&row.state),
            Cell::Number(row.weight.into()),
            Cell::Shared(row.node),
            Cell::Shared(row.zone),
            Cell::text(&row.choice),
            Cell::Shared(row.origin),
            Cell::optional(row.reason),
        ]
    };
    Table::new("backends", columns, rows.into_iter().map(cells))
}

/// As Kubernetes spells it.
fn policy(policy: TrafficPolicy) -> Cell {
    Cell::text(match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    })
}

#[cfg(test)]
mod tests;

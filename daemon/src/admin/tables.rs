//! The columns of `/services`, `/frontends` and `/backends`, which no other module defines.

use nodelb_core::compile::select::Choice;
use nodelb_core::explain::rows::{BackendReport, FrontendReport, ServiceReport};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, FrontendKind, TrafficPolicy};
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Table};
use nodelb_core::state::status::Status;

/// The columns of `/frontends`.
pub static FRONTENDS: Schema<[Column; 9]> = Schema {
    name: "frontends",
    columns: [
        Column::name("Address"),
        Column::one_of("Type", &FrontendKind::NAMES),
        Column::name("Service"),
        Column::name("Port"),
        Column::list("Backends"),
        Column::list("Flags"),
        Column::one_of("Status", &Status::NAMES),
        Column::age("Since"),
        Column::text("Error"),
    ],
};

/// The columns of `/services`.
pub static SERVICES: Schema<[Column; 12]> = Schema {
    name: "services",
    columns: [
        Column::name("Service"),
        Column::name("Source"),
        Column::list("Ports"),
        Column::one_of("Internal-Policy", &POLICIES),
        Column::one_of("External-Policy", &POLICIES),
        Column::number("Affinity"),
        Column::number("Frontends"),
        Column::number("Backends"),
        Column::number("Selectable"),
        Column::one_of("Status", &Status::NAMES),
        Column::text("Origin"),
        Column::text("Error"),
    ],
};

/// The columns of `/backends`.
pub static BACKENDS: Schema<[Column; 10]> = Schema {
    name: "backends",
    columns: [
        Column::name("Address"),
        Column::name("Service"),
        Column::name("Port"),
        Column::one_of("State", &BackendState::NAMES),
        Column::number("Weight"),
        Column::text("Node"),
        Column::text("Zone"),
        Column::one_of("Choice", &Choice::NAMES),
        Column::text("Origin"),
        Column::text("Reason"),
    ],
};

/// The names in Kubernetes, in the order of [`TrafficPolicy`].
const POLICIES: [&str; 2] = ["Cluster", "Local"];

/// Returns one row per claim of a service to an address. Ages are computed from `now`.
pub fn frontends(rows: Vec<FrontendReport>, now: Moment) -> Table {
    Table::new(&FRONTENDS, rows.into_iter().map(|row| frontend(row, now)))
}

/// Returns one row of `/frontends`.
pub fn frontend(row: FrontendReport, now: Moment) -> [Cell; 9] {
    [
        Cell::text(&row.address),
        Cell::text(&row.kind),
        Cell::text(&row.service),
        Cell::Shared(row.port),
        Cell::Addresses(row.backends),
        Cell::List(row.flags),
        Cell::text(&row.status),
        Cell::age(row.since, now),
        Cell::optional(row.error),
    ]
}

/// Returns one row per service.
pub fn services(rows: Vec<ServiceReport>) -> Table {
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
    Table::new(&SERVICES, rows.into_iter().map(cells))
}

/// Returns one row per backend of a service port.
pub fn backends(rows: Vec<BackendReport>) -> Table {
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
    Table::new(&BACKENDS, rows.into_iter().map(cells))
}

fn policy(policy: TrafficPolicy) -> Cell {
    let [cluster, local] = POLICIES;
    Cell::text(match policy {
        TrafficPolicy::Cluster => cluster,
        TrafficPolicy::Local => local,
    })
}

#[cfg(test)]
#[path = "tests/tables.rs"]
mod tests;

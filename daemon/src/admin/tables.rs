//! The columns of the tables that no other module defines: `/services`, `/frontends`, `/backends`, `/sources`,
//! `/apiservers`, `/config`, `/healthz` and `/readyz`.

use nodelb_core::compile::select::Choice;
use nodelb_core::explain::rows::{BackendReport, FrontendReport, OutsideAccess, ServiceReport};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{BackendState, FrontendKind, TrafficPolicy};
use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};
use nodelb_core::source_report::SourceReport;
use nodelb_core::state::status::Status;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;

use super::state::Now;
use crate::config::Config;
use crate::status::Check;

/// The columns of `/frontends`.
pub static FRONTENDS: Schema<[Column; 10]> = Schema {
    name: "frontends",
    columns: [
        Column::name("Address"),
        Column::one_of("Type", &FrontendKind::NAMES),
        Column::name("Service"),
        Column::name("Port"),
        Column::list("Backends"),
        Column::list("Flags"),
        Column::one_of("Outside", &OutsideAccess::NAMES),
        Column::one_of("Status", &Status::NAMES),
        Column::age("Since"),
        Column::text("Error"),
    ],
};

/// The columns of `/services`.
pub static SERVICES: Schema<[Column; 13]> = Schema {
    name: "services",
    columns: [
        Column::name("Service"),
        Column::name("Source"),
        Column::list("Ports"),
        Column::one_of("Internal-Policy", &POLICIES),
        Column::one_of("External-Policy", &POLICIES),
        Column::number("Affinity"),
        Column::number("Frontends"),
        Column::one_of("Outside", &OutsideAccess::NAMES),
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
pub fn frontend(row: FrontendReport, now: Moment) -> [Cell; 10] {
    [
        Cell::text(&row.address),
        Cell::text(&row.kind),
        Cell::text(&row.service),
        Cell::Shared(row.port),
        Cell::Addresses(row.backends),
        Cell::List(row.flags),
        Cell::text(&row.outside),
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
            Cell::text(&row.outside),
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

/// The columns of `/sources`.
pub static SOURCES: Schema<[Column; 8]> = Schema {
    name: "sources",
    columns: [
        Column::name("Source"),
        Column::text("Path"),
        Column::text("State"),
        Column::number("Services"),
        Column::number("Slices"),
        Column::age("Since"),
        Column::list("Notices"),
        Column::list("Problems"),
    ],
};

/// Returns one row per place. `now` is in seconds since 1970.
pub fn sources(rows: &[SourceReport], now: u64) -> Table {
    let cells = |row: &SourceReport| {
        [
            Cell::text(&row.source),
            Cell::text(&row.path),
            Cell::text(&row.state),
            Cell::count(row.services),
            Cell::count(row.slices),
            Cell::Age(now.saturating_sub(row.since).saturating_mul(1000)),
            Cell::List(row.notices.clone()),
            Cell::List(row.problems.clone()),
        ]
    };
    Table::new(&SOURCES, rows.iter().map(cells))
}

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

/// The columns of `/config`.
pub(super) static CONFIG: Schema<[Column; 3]> =
    Schema { name: "config", columns: [Column::name("Key"), Column::one_of("From", &ORIGINS), Column::text("Value")] };

const ORIGINS: [&str; 2] = ["default", "file"];

/// Returns one row per key, in the order of `config.example.toml`.
pub(super) fn config(config: &Config) -> Table {
    let [default, file] = ORIGINS;
    let cells = |(key, value, is_default): (String, String, bool)| {
        [Cell::Text(key), Cell::text(if is_default { default } else { file }), Cell::Text(value)]
    };
    Table::new(&CONFIG, config.settings().map(cells))
}

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

#[cfg(test)]
#[path = "tests/tables.rs"]
pub(super) mod tests;

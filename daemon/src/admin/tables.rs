//! The rows of `/sources`, `/apiservers`, `/config`, `/healthz` and `/readyz`, from what other modules publish.

use std::sync::Arc;

use nodelb_core::model::moment::Moment;
use nodelb_core::source_report::SourceReport;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::explain::rows::BackendReport;
use nodelb_report::rows::{
    ApiserverRow, Apiservers, CheckResult, CheckRow, ConfigAnswer, ConfigRow, Micros, NameRow, Names, SessionRow,
    SourceRow, Sources,
};
use nodelb_report::time::{Clocks, Time};
use nodelb_sources::checks::CheckReport;
use nodelb_sources::dns::{DnsReport, NameReport};

use crate::config::Config;
use crate::status::Check;

pub(super) fn sources(rows: &[SourceReport]) -> Sources {
    Sources { sources: rows.iter().map(SourceRow::from).collect() }
}

pub(super) fn names(report: &DnsReport, now: Clocks) -> Names {
    let row = |name: &NameReport| NameRow {
        name: name.question.name.to_string(),
        records: name.question.record.to_string(),
        state: name.state.to_string(),
        count: name.records as u64,
        ttl: name.ttl.map(u64::from),
        next: name.due.map(|due| due.0.saturating_sub(now.moment.0).div_ceil(1_000)),
        server: name.server.as_deref().map(str::to_owned),
        since: now.time_of(name.since),
        services: name.services.iter().map(ToString::to_string).collect(),
        error: name.problem.clone(),
    };
    Names { names: report.names.iter().map(row).collect() }
}

/// The last health check of a backend, for its row.
pub(super) fn last_check(report: Arc<CheckReport>, now: Clocks) -> impl Fn(&BackendReport) -> Option<CheckResult> {
    move |backend| {
        let backend = (backend.service.clone(), (backend.address.addr, backend.address.port));
        let last = report.last.get(&backend)?;
        let latency = Micros(u64::try_from(last.took.as_micros()).unwrap_or(u64::MAX));
        Some(CheckResult { result: last.outcome.to_string(), time: now.time_of(last.at), latency })
    }
}

/// Returns one row per address in the order of preference, and the session in use.
pub(super) fn apiservers(report: &PoolReport, now: Clocks) -> Apiservers {
    let time_of = |moment: Moment| now.time_of(moment);
    let rows = report.rows(now.moment, now.time.seconds()).into_iter().map(|row| {
        let worked = row.worked.map(|ago| Time(now.time.0.saturating_sub(ago)));
        let (failed, error) = row.error.map(|(at, error)| (time_of(at), error)).unzip();
        let is_past = worked > failed;
        ApiserverRow {
            address: row.address.to_string(),
            from: row.origin.to_string(),
            state: row.status.to_string(),
            since: time_of(row.since),
            in_use: row.in_use,
            worked,
            failed,
            error: error.filter(|_| !is_past),
            why: row.why,
        }
    });
    let session = report.pool.is_some().then(|| SessionRow {
        apiserver: report.in_use().map(ToString::to_string),
        last_response: report.last_response.map(time_of),
        switches: report.switches(),
        problem: report.problem.clone(),
    });
    Apiservers { apiservers: rows.collect(), session }
}

/// Returns one row per key, in the order of `config.example.toml`.
pub(super) fn config(config: &Config) -> ConfigAnswer {
    let rows = config.settings().map(|(key, value, is_default)| ConfigRow::new(key, data(&value), is_default));
    ConfigAnswer { config: rows.collect() }
}

/// A value in TOML as data.
fn data(value: &str) -> serde_json::Value {
    let table: Option<toml::Table> = toml::from_str(&format!("value = {value}")).ok();
    let found = table.and_then(|mut table| serde_json::to_value(table.remove("value")?).ok());
    found.unwrap_or_else(|| value.into())
}

/// Returns the rows of `/healthz` or `/readyz`.
pub(super) fn checks(checks: &[Check]) -> Vec<CheckRow> {
    checks.iter().map(CheckRow::from).collect()
}

#[cfg(test)]
#[path = "tests/tables.rs"]
pub(super) mod tests;

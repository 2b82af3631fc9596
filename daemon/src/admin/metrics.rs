//! `/metrics`: metrics for Prometheus in OpenMetrics text, computed from the published values for each request. One
//! table has all names, types, units, labels and help texts; a metric that is not in the table cannot be published.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::{fmt, fs};

use nix::sys::resource::{Resource, getrlimit};
use nodelb_core::datapath::Count;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::kernel_check::DriftKind;
use nodelb_core::state::status::Status;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::explain::summary::Summary;
use nodelb_report::problems::{Problem, Reason, Severity};
use nodelb_report::time::Clocks;
use nodelb_sources::checks::CheckReport;
use nodelb_sources::dns::{DnsReport, NameState};
use strum::IntoEnumIterator;

use super::maps::usage;
use super::state::{AdminState, latest};
use crate::connections::Connections;
use crate::latency::Latencies;
use crate::log;
use crate::reconcile::drift::{DriftReport, LINK};
use crate::sockets::stale::StaleSocketsReport;

pub(super) mod family;
mod packets;
mod plain;
pub(super) mod table;

pub use family::{Exposition, Group, Label, Metric, MetricKind, Value};
pub(super) use plain::plain;
pub use table::METRICS;

/// The `Content-Type` of the answer: Prometheus' own text format, which a browser shows.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The `Content-Type` for clients that accept OpenMetrics, and its media type.
pub(super) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
pub(super) const OPENMETRICS_MEDIA: &str = "application/openmetrics-text";

/// The readiness checks that show whether connections are translated.
const HOOKS: [&str; 2] = ["links", "canary"];

pub(super) fn metrics(state: &AdminState, now: Clocks) -> Result<String, fmt::Error> {
    let mut exposition = Exposition::default();
    let snapshot = state.snapshot();
    services(&mut exposition, &snapshot, &state.summaries.of(&snapshot));
    health(&mut exposition, state, now);
    problems(&mut exposition, &state.problems(now));
    sources(&mut exposition, &snapshot, &state.sources(now), now);
    let apiservers = state.apiservers();
    if apiservers.pool.is_some() {
        self::apiservers(&mut exposition, &apiservers, now);
    }
    names(&mut exposition, &latest(&state.dns));
    let report = latest(&state.checks);
    if !report.targets.is_empty() || !report.done.is_empty() {
        checks(&mut exposition, &report);
    }
    maps(&mut exposition, state, &snapshot, now);
    let outside = state.packets.as_ref().and_then(|packets| packets.service_connections.as_ref());
    connections(&mut exposition, [("inside", state.datapath.connections()), ("outside", outside)], &snapshot);
    drift(&mut exposition, &latest(&state.owner.drift), now);
    if let Some(stale_sockets) = &state.stale_sockets {
        self::stale_sockets(&mut exposition, &latest(stale_sockets), now);
    }
    changes(&mut exposition, &state.recorder.latencies);
    if let Some(published) = &state.packets {
        packets::packets(&mut exposition, published);
    }
    exposition.each(&table::BUILD_INFO, [([env!("CARGO_PKG_VERSION")], 1_u32)]);
    exposition.one(&table::LOG_LINES_DROPPED, log::dropped_lines());
    exposition.one(&table::ADMIN_LISTENERS_CLOSED, state.unopened.borrow().len());
    process(&mut exposition);
    exposition.text()
}

fn services(exposition: &mut Exposition, snapshot: &Snapshot, summary: &Summary) {
    let counts = &summary.counts;
    exposition.one(&table::SERVICES, counts.services);
    exposition.one(&table::SERVICES_HELD, summary.held);
    exposition.one(&table::SERVICES_WITHOUT_BACKENDS, summary.without_backends);
    exposition.one(&table::SERVICES_LOAD_BALANCER_PENDING, summary.load_balancer_pending);
    exposition.each(&table::FRONTENDS, every(&counts.frontends_by_status));
    exposition.one(&table::FRONTENDS_REFUSED, summary.refused);
    let conflicts = counts.frontends_by_status.get(&Status::Conflict).copied();
    exposition.one(&table::FRONTEND_CONFLICTS, conflicts.unwrap_or_default());
    exposition.each(&table::BACKENDS, every(&counts.backends_by_state));
    exposition.one(&table::BACKENDS_SELECTABLE, summary.selectable);
    let facts = &snapshot.facts;
    exposition.one(&table::DRAINS, facts.drains.values().map(|drains| drains.len()).sum::<usize>());
    exposition.one(&table::HEALTH_CHECK_NODE_PORTS, facts.health_check_ports.len());
    exposition.one(&table::HEALTH_CHECK_NODE_PORTS_FAILED, facts.health_check_port_errors.keys().flatten().count());
    exposition.one(&table::NODEPORTS_BOUND, facts.bound.len());
    exposition.one(&table::NODE_ADDRESSES_UNANSWERED, snapshot.unanswered_node_addrs().count());
}

fn changes(exposition: &mut Exposition, latencies: &Latencies) {
    exposition.histogram(&table::EVENT_TO_KERNEL, &latencies.event_to_kernel);
    exposition.histogram(&table::RECONCILE, &latencies.reconcile);
    exposition.one(&table::RECONCILES, latencies.rounds.get());
    let operations = [(["done"], latencies.done.get()), (["failed"], latencies.failed.get())];
    exposition.each(&table::RECONCILE_OPERATIONS, operations);
    exposition.one(&table::RECONCILE_RETRIES, latencies.retries.get());
    exposition.histogram(&table::NETWORK_PROGRAMMING, &latencies.network_programming);
    exposition.histogram(&table::SYNC_PROXY_RULES, &latencies.sync_proxy_rules);
}

fn health(exposition: &mut Exposition, state: &AdminState, now: Clocks) {
    let health = state.health();
    exposition.one(&table::READY, u32::from(state.is_ready(now)));
    let mut hooks = health.checks.iter().filter(|check| HOOKS.contains(&&*check.name)).peekable();
    if hooks.peek().is_some() {
        exposition.one(&table::HOOKS_IN_EFFECT, u32::from(hooks.all(|check| check.passed)));
    }
}

/// Every reason has its series, so that an alert can compare with 0.
fn problems(exposition: &mut Exposition, problems: &[Problem]) {
    let mut counts: BTreeMap<(Severity, Reason), usize> =
        Reason::ALL.iter().map(|reason| ((reason.entry().severity, *reason), 0)).collect();
    for problem in problems {
        *counts.entry((problem.severity, problem.reason)).or_default() += 1;
    }
    let rows =
        counts.into_iter().map(|((severity, reason), number)| ([severity.to_string(), reason.to_string()], number));
    exposition.each(&table::PROBLEMS, rows);
}

fn sources(exposition: &mut Exposition, snapshot: &Snapshot, rows: &[Arc<SourceReport>], now: Clocks) {
    let mut paths: BTreeMap<_, usize> = BTreeMap::new();
    let mut problems: BTreeMap<Source, usize> = BTreeMap::new();
    for row in rows {
        for state in [SourceState::Ok, SourceState::LastGood, SourceState::Error] {
            *paths.entry((row.source, state)).or_default() += usize::from(row.state == state);
        }
        *problems.entry(row.source).or_default() += row.problems.len();
    }
    let facts = &snapshot.facts;
    exposition
        .each(&table::SOURCE_SYNCED, problems.keys().map(|source| ([source], u32::from(facts.is_synced(*source)))));
    let by_state = paths.into_iter().map(|((source, state), number)| ([source.to_string(), state.to_string()], number));
    exposition.each(&table::SOURCE_PATHS, by_state);
    exposition.each(&table::SOURCE_PROBLEMS, problems.iter().map(|(source, number)| ([source], *number)));
    let directory = rows.iter().find(|row| row.source == Source::Files && row.kind == Some("directory"));
    let content = directory.and_then(|row| row.content_text());
    exposition.each(&table::FILES_CONTENT, content.map(|hash| ([hash], 1_u32)));
    // Kubernetes may have a row for each namespace.
    let mut kinds: BTreeMap<[String; 2], (bool, Option<u64>)> = BTreeMap::new();
    for (row, kind) in rows.iter().filter_map(|row| Some((row, row.kind?))) {
        let (is_up, age) = kinds.entry([row.source.to_string(), kind.to_owned()]).or_insert((true, None));
        *is_up &= row.state == SourceState::Ok;
        *age = row.last_received.map(|received| now.moment.0.saturating_sub(received.0) / 1_000).max(*age);
    }
    exposition.each(&table::SOURCE_UP, kinds.iter().map(|(labels, (is_up, _))| (labels.clone(), u32::from(*is_up))));
    let ages = kinds.into_iter().filter_map(|(labels, (_, age))| Some((labels, age?)));
    exposition.each(&table::SOURCE_AGE, ages);
}

fn apiservers(exposition: &mut Exposition, report: &PoolReport, now: Clocks) {
    let statuses = report.statuses(now.moment).into_iter().map(|(status, number)| ([status], number));
    exposition.each(&table::APISERVERS, statuses);
    exposition.one(&table::APISERVER_CONNECTED, u32::from(report.in_use().is_some()));
    exposition.optional(&table::APISERVER_LAST_RESPONSE, report.last_response.map(|at| seconds_since(at, now)));
    exposition.one(&table::APISERVER_SWITCHES, report.switches());
}

fn names(exposition: &mut Exposition, report: &DnsReport) {
    if report.names.is_empty() && report.queries.is_empty() {
        return;
    }
    let mut states: BTreeMap<NameState, usize> = BTreeMap::new();
    report.names.iter().for_each(|name| *states.entry(name.state).or_default() += 1);
    exposition.each(&table::DNS_NAMES, every(&states));
    exposition.each(&table::DNS_QUERIES, every(&report.queries));
}

fn checks(exposition: &mut Exposition, report: &CheckReport) {
    exposition.each(&table::HEALTH_CHECK_TARGETS, every(&report.targets));
    exposition.each(&table::HEALTH_CHECKS, every(&report.done));
    exposition.one(&table::HEALTH_CHECKS_OPEN, report.open);
    exposition.one(&table::HEALTH_CHECKS_LATE, report.late_millis as f64 / 1_000.0);
}

fn stale_sockets(exposition: &mut Exposition, report: &StaleSocketsReport, now: Clocks) {
    exposition.each(&table::SOCKETS_DESTROYED, [(["udp"], report.udp), (["tcp"], report.tcp)]);
    exposition.one(&table::SOCKET_PASSES, report.passes);
    exposition.one(&table::SOCKET_ERRORS, report.errors);
    exposition.one(&table::SOCKET_REAPER_UP, u32::from(report.is_working));
    exposition.optional(&table::SOCKET_LAST_PASS, report.last_pass.map(|at| seconds_since(at, now)));
}

fn maps(exposition: &mut Exposition, state: &AdminState, snapshot: &Snapshot, now: Clocks) {
    let usage = usage(&snapshot.realised, state, now.moment);
    exposition.each(&table::MAP_ENTRIES, usage.iter().filter_map(|map| Some(([map.name], map.used?))));
    exposition.each(&table::MAP_LIMIT, usage.iter().map(|map| ([map.name], map.limit)));
}

/// Adds the connections of the services, by where the clients are.
fn connections(exposition: &mut Exposition, counted: [(&'static str, Option<&Connections>); 2], snapshot: &Snapshot) {
    let samples = counted.into_iter().filter_map(|(from, connections)| Some((from, connections?)));
    let samples = samples.flat_map(|(from, connections)| connection_samples(from, connections, snapshot));
    exposition.each(&table::SERVICE_CONNECTIONS, samples);
}

fn connection_samples(
    from: &str,
    Connections { read, ledger }: &Connections,
    snapshot: &Snapshot,
) -> Vec<([String; 5], u64)> {
    let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    ledger.update(snapshot, &**read);
    let samples = |labels: [String; 3], count: Count| {
        let [service, port, protocol] = labels;
        let sample = move |result: &str, number| {
            let labels = [service.clone(), port.clone(), protocol.clone(), from.to_owned(), result.to_owned()];
            (labels, number)
        };
        [sample("translated", count.translated), sample("refused", count.refused)]
    };
    let own = ledger.own().flat_map(|(series, count)| {
        samples([series.service.to_string(), series.port.to_string(), series.protocol.to_string()], count)
    });
    let other = ledger.other().into_iter();
    let other = other.flat_map(|count| samples(["other".into(), String::new(), String::new()], count));
    own.chain(other).collect()
}

fn drift(exposition: &mut Exposition, report: &DriftReport, now: Clocks) {
    let kinds = DriftKind::iter().map(Into::into).chain([LINK]);
    let number = |kind| report.repaired.get(kind).copied().unwrap_or_default();
    exposition.each(&table::DRIFT_REPAIRED, kinds.map(|kind| ([kind], number(kind))));
    exposition.one(&table::DRIFT_CHECKS, report.checks);
    exposition.optional(&table::DRIFT_LAST_CHECK_AGE, report.last_check.map(|at| seconds_since(at, now)));
}

fn seconds_since(then: Moment, now: Clocks) -> f64 {
    now.moment.0.saturating_sub(then.0) as f64 / 1_000.0
}

/// Returns a sample for each of these values of the label; a value without a count has 0.
fn every<L: Ord + Copy + IntoEnumIterator, V: Copy + Default>(
    counted: &BTreeMap<L, V>,
) -> impl Iterator<Item = ([L; 1], V)> {
    L::iter().map(|value| ([value], counted.get(&value).copied().unwrap_or_default()))
}

/// Ticks per second in `/proc`: USER_HZ, which is 100 on every architecture that nodelb supports.
const TICKS: f64 = 100.0;

pub(super) fn process(exposition: &mut Exposition) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    let files = open_files();
    exposition.optional(&table::START_TIME, start_time(&stat, &read("/proc/stat")));
    exposition.optional(&table::CPU_TIME, cpu_seconds(&stat));
    exposition.optional(&table::RESIDENT_MEMORY, resident_bytes(&read("/proc/self/status")));
    exposition.optional(&table::OPEN_FDS, files.map(|(open, _)| open));
    exposition.optional(&table::MAX_FDS, files.map(|(_, limit)| limit));
}

/// The number of open file descriptors, and its limit; `None` if they cannot be read.
pub(super) fn open_files() -> Option<(u64, u64)> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // Subtract the descriptor that counts the others.
    Some((open.saturating_sub(1) as u64, limit))
}

/// Returns the start time in seconds since 1970. `stat` is that of the process, `system` that of the host.
fn start_time(stat: &str, system: &str) -> Option<f64> {
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + field(stat, 22)? / TICKS)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns a field of `/proc/PID/stat` by its number in proc_pid_stat(5). The second field, a name, may contain
/// anything.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

#[cfg(test)]
#[path = "tests/metrics.rs"]
mod tests;

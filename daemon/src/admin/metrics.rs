//! `/metrics`: figures for Prometheus in OpenMetrics text, counted from the published values when they are asked for. Owns
//! the names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nodelb_core::datapath::Moment;
use nodelb_core::engine::Snapshot;
use nodelb_core::report::Status;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::apiservers::PoolReport;
use super::{AdminState, Now};
use crate::checks::{CheckReport, Condition, Outcome};
use crate::moves::MovesReport;

/// What the answer is made of, as its `Content-Type`.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One label, whose value prints.
type Counted = Family<[(&'static str, String); 1], Gauge<i64>>;

/// All metrics as text.
///
/// # Errors
/// When they cannot be written, which nothing known can cause.
pub(super) fn metrics(state: &AdminState, now: Now) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("nodelb");
    services(&mut registry, &Arc::clone(&state.snapshot.borrow()));
    let apiservers = Arc::clone(&state.apiservers.borrow());
    if apiservers.pool.is_some() {
        self::apiservers(&mut registry, &apiservers, now);
    }
    let report = Arc::clone(&state.checks.borrow());
    if !report.targets.is_empty() || !report.done.is_empty() {
        checks(&mut registry, &report);
    }
    if let Some(moves) = &state.moves {
        self::moves(&mut registry, &Arc::clone(&moves.borrow()), now);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn services(registry: &mut Registry, snapshot: &Snapshot) {
    let counts = snapshot.counts();
    registry.register("services", "Services that the sources describe", gauge(counts.services));
    let facts = snapshot.facts();
    let asked = "Services with a healthCheckNodePort that load balancers ask at";
    registry.register("local_entry_ports", asked, gauge(facts.health_check_ports().len()));
    let failed = "Services whose healthCheckNodePort cannot be listened on, or not everywhere";
    registry.register("local_entry_ports_failed", failed, gauge(facts.entry_errors()));
    let bound = "NodePorts that a process of the node has bound, so that what comes from outside reaches it";
    registry.register("nodeports_bound", bound, gauge(facts.bound_len()));
    let held = "Services kept as they were although a source emptied them";
    registry.register("services_held", held, gauge(counts.held));
    let frontends = Counted::default();
    for status in [Status::Pending, Status::Done, Status::Held, Status::Error] {
        count(&frontends, "status", &status, counts.frontends.get(&status).copied().unwrap_or_default());
    }
    registry.register("frontends", "Frontends by how they stand", frontends);
}

fn apiservers(registry: &mut Registry, report: &PoolReport, now: Now) {
    let standings = Counted::default();
    for (standing, number) in report.standings(now.moment) {
        count(&standings, "state", &standing, number);
    }
    registry.register("apiservers", "Known apiserver addresses by how they stand", standings);
    let connected = gauge(usize::from(report.in_use().is_some()));
    registry.register("apiserver_connected", "Whether an apiserver is in use", connected);
    if let Some(heard) = report.last_heard {
        let help = "Time since anything was last heard from an apiserver: how stale the services may be";
        register_age(registry, "apiserver_last_heard", help, (heard, now));
    }
    let help = "How often another apiserver than before came into use";
    registry.register("apiserver_switches", help, ConstCounter::new(report.switches()));
}

fn checks(registry: &mut Registry, report: &CheckReport) {
    let targets = Counted::default();
    for condition in [Condition::Healthy, Condition::Unhealthy, Condition::Unchecked] {
        count(&targets, "state", &condition, report.targets.get(&condition).copied().unwrap_or_default());
    }
    registry.register("health_check_targets", "What health checks ask, by how it stands", targets);
    let done = Family::<[(&'static str, String); 1], Counter>::default();
    for outcome in Outcome::ALL {
        let number = report.done.get(&outcome).copied().unwrap_or_default();
        done.get_or_create(&[("result", outcome.to_string())]).inc_by(number);
    }
    registry.register("health_checks", "Health checks by what came of them", done);
    registry.register("health_checks_open", "Health checks that wait for an answer", gauge(report.open));
    let help = "By how much health checks began later than they were due, all together";
    let late = ConstCounter::new(report.late_millis as f64 / 1_000.0);
    registry.register_with_unit("health_checks_late", help, Unit::Seconds, late);
}

fn moves(registry: &mut Registry, report: &MovesReport, now: Now) {
    let destroyed = Family::<[(&'static str, &'static str); 1], Counter>::default();
    for (protocol, sockets) in [("udp", report.udp), ("tcp", report.tcp)] {
        destroyed.get_or_create(&[("protocol", protocol)]).inc_by(sockets);
    }
    registry.register("sockets_destroyed", "Sockets ended because their backend was gone", destroyed);
    let help = "How often all sockets were looked at for backends that are gone";
    registry.register("socket_passes", help, ConstCounter::new(report.passes));
    let help = "Passes, and sockets, that something went wrong with";
    registry.register("socket_errors", help, ConstCounter::new(report.errors));
    let help = "Whether sockets whose backend is gone can be ended";
    registry.register("socket_reaper_up", help, gauge(usize::from(report.is_working)));
    if let Some(last) = report.last_pass {
        register_age(registry, "socket_last_pass", "Time since all sockets were last looked at", (last, now));
    }
}

fn register_age(registry: &mut Registry, name: &str, help: &str, (then, now): (Moment, Now)) {
    let seconds = Gauge::<f64, AtomicU64>::default();
    seconds.set(now.moment.0.saturating_sub(then.0) as f64 / 1_000.0);
    registry.register_with_unit(name, help, Unit::Seconds, seconds);
}

fn gauge(number: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX))
}

fn count(family: &Counted, label: &'static str, value: &impl ToString, number: usize) {
    family.get_or_create(&[(label, value.to_string())]).set(i64::try_from(number).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests;

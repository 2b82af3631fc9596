use std::collections::BTreeSet;

use nodelb_core::datapath::{Limits, Moment};
use tokio::sync::watch;

use super::*;
use crate::admin::Health;

fn state(report: PoolReport) -> AdminState {
    AdminState {
        snapshot: watch::channel(Arc::new(Snapshot::default())).1,
        sources: Vec::new(),
        apiservers: watch::channel(Arc::new(report)).1,
        checks: watch::channel(Arc::default()).1,
        moves: None,
        health: watch::channel(Arc::new(Health::default())).1,
        maps: Arc::new(|| Err("none".into())),
        limits: Limits { frontends: 1, services: 1, slots: 1, affinity: 1 },
        clock: Arc::new(Now::default),
    }
}

fn samples(report: PoolReport) -> Vec<String> {
    samples_of(&state(report))
}

fn samples_of(state: &AdminState) -> Vec<String> {
    let now = Now { moment: Moment(21_500), unix: 0 };
    let text = metrics(state, now).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn the_figures_are_those_of_the_published_values() {
    let found: BTreeSet<_> = samples(crate::admin::apiservers::tests::report()).into_iter().collect();
    let expected = [
        "nodelb_apiserver_connected 1",
        "nodelb_apiserver_last_heard_seconds 12.5",
        "nodelb_apiserver_switches_total 0",
        "nodelb_apiservers{state=\"Failed\"} 1",
        "nodelb_apiservers{state=\"Healthy\"} 1",
        "nodelb_apiservers{state=\"NotReady\"} 0",
        "nodelb_apiservers{state=\"Recovering\"} 0",
        "nodelb_apiservers{state=\"Refused\"} 0",
        "nodelb_apiservers{state=\"Untried\"} 1",
        "nodelb_frontends{status=\"Done\"} 0",
        "nodelb_frontends{status=\"Error\"} 0",
        "nodelb_frontends{status=\"Held\"} 0",
        "nodelb_frontends{status=\"Pending\"} 0",
        "nodelb_local_entry_ports 0",
        "nodelb_local_entry_ports_failed 0",
        "nodelb_nodeports_bound 0",
        "nodelb_services 0",
        "nodelb_services_held 0",
    ];
    assert_eq!(found, expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn without_kubernetes_nothing_is_said_about_it() {
    assert!(samples(PoolReport::default()).iter().all(|sample| !sample.contains("apiserver")));
}

fn check_report() -> CheckReport {
    CheckReport {
        targets: [(Condition::Healthy, 9), (Condition::Unhealthy, 1)].into(),
        done: [(Outcome::Passed, 90), (Outcome::Refused, 10)].into(),
        open: 2,
        late_millis: 1_500,
    }
}

fn with_checks() -> AdminState {
    AdminState { checks: watch::channel(Arc::new(check_report())).1, ..state(PoolReport::default()) }
}

#[test]
fn health_checks_are_counted_where_there_are_any() {
    let found: BTreeSet<_> = samples_of(&with_checks()).into_iter().filter(|line| line.contains("health")).collect();
    let expected = [
        "nodelb_health_check_targets{state=\"Healthy\"} 9",
        "nodelb_health_check_targets{state=\"Unchecked\"} 0",
        "nodelb_health_check_targets{state=\"Unhealthy\"} 1",
        "nodelb_health_checks_late_seconds_total 1.5",
        "nodelb_health_checks_open 2",
        "nodelb_health_checks_total{result=\"Passed\"} 90",
        "nodelb_health_checks_total{result=\"Protocol\"} 0",
        "nodelb_health_checks_total{result=\"Refused\"} 10",
        "nodelb_health_checks_total{result=\"Status\"} 0",
        "nodelb_health_checks_total{result=\"Timeout\"} 0",
        "nodelb_health_checks_total{result=\"Unasked\"} 0",
        "nodelb_health_checks_total{result=\"Unreachable\"} 0",
    ];
    assert_eq!(found, expected.into_iter().map(str::to_owned).collect());
    assert!(samples(PoolReport::default()).iter().all(|sample| !sample.contains("health")));
}

fn with_moves() -> AdminState {
    let mut report = MovesReport::default();
    (report.is_working, report.udp, report.tcp, report.passes, report.errors) = (true, 12, 3, 7, 1);
    report.last_pass = Some(Moment(20_000));
    AdminState { moves: Some(watch::channel(Arc::new(report)).1), ..state(crate::admin::apiservers::tests::report()) }
}

#[test]
fn sockets_that_moved_on_are_counted() {
    let found: BTreeSet<_> = samples_of(&with_moves()).into_iter().filter(|line| line.contains("socket")).collect();
    let expected = [
        "nodelb_socket_errors_total 1",
        "nodelb_socket_last_pass_seconds 1.5",
        "nodelb_socket_passes_total 7",
        "nodelb_socket_reaper_up 1",
        "nodelb_sockets_destroyed_total{protocol=\"tcp\"} 3",
        "nodelb_sockets_destroyed_total{protocol=\"udp\"} 12",
    ];
    assert_eq!(found, expected.into_iter().map(str::to_owned).collect());
}

/// nodelb(8) lists every metric.
#[test]
fn the_manual_page_lists_every_metric() {
    let page = include_str!("../../../../contrib/man/nodelb.8").replace("\\-", "-");
    for sample in samples(crate::admin::apiservers::tests::report())
        .into_iter()
        .chain(samples_of(&with_checks()))
        .chain(samples_of(&with_moves()))
    {
        let name = sample.split(['{', ' ']).next().unwrap();
        assert!(page.lines().any(|line| line.contains(name)), "{name} is missing");
    }
}

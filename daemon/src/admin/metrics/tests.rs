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
        health: watch::channel(Arc::new(Health::default())).1,
        maps: Arc::new(|| Err("none".into())),
        limits: Limits { frontends: 1, services: 1, slots: 1, affinity: 1 },
        clock: Arc::new(Now::default),
    }
}

fn samples(report: PoolReport) -> Vec<String> {
    let now = Now { moment: Moment(21_500), unix: 0 };
    let text = metrics(&state(report), now).unwrap();
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
        "nodelb_health_check_ports 0",
        "nodelb_health_check_ports_failed 0",
        "nodelb_services 0",
        "nodelb_services_held 0",
    ];
    assert_eq!(found, expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn without_kubernetes_nothing_is_said_about_it() {
    assert!(samples(PoolReport::default()).iter().all(|sample| !sample.contains("apiserver")));
}

/// nodelb(8) lists every metric.
#[test]
fn the_manual_page_lists_every_metric() {
    let page = include_str!("../../../../contrib/man/nodelb.8").replace("\\-", "-");
    for sample in samples(crate::admin::apiservers::tests::report()) {
        let name = sample.split(['{', ' ']).next().unwrap();
        assert!(page.lines().any(|line| line.contains(name)), "{name} is missing");
    }
}

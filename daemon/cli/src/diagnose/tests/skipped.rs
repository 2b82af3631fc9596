use nodelb_core::model::service::ServiceName;

use super::*;
use crate::diagnose::facts::{ConnectTest, FrontendRow, KernelSettings};

fn facts() -> Facts {
    Facts {
        service: ServiceName::new("shop", "web"),
        now: 0,
        node: "a".into(),
        stored: None,
        daemon: Probe::Skipped,
        cluster: Probe::Skipped,
        connect_tests: Vec::new(),
        dns: None,
        kernel: KernelSettings::default(),
        outside_cgroup: None,
    }
}

#[test]
fn nothing_is_skipped_without_kubernetes() {
    assert_eq!(skipped(&facts()), []);
}

#[test]
fn an_api_server_that_cannot_be_asked_is_named_with_the_option() {
    let cluster = Probe::Failed("no\u{1b}[31m way".into());
    let rows = skipped(&Facts { cluster, ..facts() });
    assert_eq!(rows, [row("Kubernetes objects", "no\u{fffd}[31m way", Some("--kubeconfig"))]);
}

#[test]
fn addresses_that_only_clients_outside_reach_are_named() {
    let row = |address: &str, backend: &str| FrontendRow {
        address: address.into(),
        backends: vec![backend.into()],
        ..FrontendRow::default()
    };
    let (v4, v6) = ("198.51.100.1:80/TCP", "[2001:db8:1::1]:80/TCP");
    let frontends = vec![row(v4, v6), row("[2001:db8::1]:80/TCP", v6), row("198.51.100.2:80/TCP", "10.1.0.1:80/TCP")];
    let rows = skipped(&Facts { daemon: Probe::Ok(Daemon { frontends, ..Daemon::default() }), ..facts() });
    assert_eq!(rows.iter().map(|row| &*row.what).collect::<Vec<_>>(), ["whether 198.51.100.1:80/TCP answers"]);
}

#[test]
fn datagrams_prove_nothing() {
    let test = |to: &str, outcome| ConnectTest { to: to.into(), is_backend: false, outcome, peer: None };
    let udp: Vec<ConnectTest> =
        (1..=5).map(|port| test(&format!("10.96.0.10:{port}/UDP"), Outcome::Unprovable)).collect();
    let rows = skipped(&Facts { connect_tests: udp, ..facts() });
    assert_eq!(rows.len(), 1);
    assert!(rows[0].what.starts_with("whether 10.96.0.10:1/UDP, ") && rows[0].what.contains("and 2 more"), "{rows:?}");
}

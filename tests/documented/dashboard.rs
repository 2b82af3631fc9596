//! The dashboard: importable by Grafana 10 and later, over existing metrics.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::expression;

fn dashboard() -> Value {
    serde_json::from_str(&crate::read("contrib/grafana/nodelb.json")).expect("JSON")
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().expect("panels")
}

#[test]
fn grafana_can_import_it() {
    let dashboard = dashboard();
    // The schema of Grafana 10.1.
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 38);
    assert_eq!((&dashboard["title"], &dashboard["uid"]), (&"nodelb".into(), &"nodelb".into()));
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is there twice");
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title}: too wide");
        for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(taken.insert((x, y)), "{title}: over another");
        }
        let kind = panel["type"].as_str().unwrap();
        assert!(["row", "stat", "table", "timeseries"].contains(&kind), "{title}: {kind}");
        assert_eq!(kind == "row", panel["targets"].is_null(), "{title}");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance", "service"]);
}

#[test]
fn every_panel_asks_for_metrics_that_exist() {
    let dashboard = dashboard();
    let mut asked = String::new();
    for panel in panels(&dashboard) {
        let title = &panel["title"];
        let mut references = BTreeSet::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            let metrics = expression::check(expr).unwrap_or_else(|error| panic!("{title}: {error}: {expr}"));
            assert!(references.insert(target["refId"].as_str().unwrap()), "{title}: a reference twice");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(expr.contains("$instance"), "{title}: {expr} looks at every node");
            for label in target["legendFormat"].as_str().unwrap().split("{{").skip(1) {
                let label = label.split("}}").next().unwrap().trim();
                assert!(metrics.iter().any(|metric| expression::has_label(*metric, label)), "{title}: {label}");
            }
            asked.push_str(expr);
        }
    }
    for metric in [
        "nodelb_ready",
        "nodelb_frontends{",
        "nodelb_services_held",
        "nodelb_event_to_kernel_duration_seconds_bucket",
        "nodelb_apiserver_connected",
        "nodelb_drift_repaired_total",
        "nodelb_map_entries",
        "nodelb_service_connections_total",
        "nodelb_packet_connections{",
        "nodelb_packet_dropped_total",
        "nodelb_packet_passed_total",
        "map=\"half_open\"",
        "status=\"LastResort\"",
        "nodelb_drains",
        "reason=\"ConfigRefused\"",
        "nodelb_problems",
        "nodelb_health_checks_total",
        "nodelb_build_info",
        "nodelb_files_content_info",
    ] {
        assert!(asked.contains(metric), "no panel shows {metric}");
    }
}

/// "Nodes not ready" was 0 while the daemons of all nodes were dead.
#[test]
fn a_node_without_a_daemon_is_counted_and_listed() {
    let dashboard = dashboard();
    let panels = panels(&dashboard);
    let exprs = |title: &str| -> String {
        let panel = panels.iter().find(|panel| panel["title"] == title).unwrap();
        panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap()).collect()
    };
    for title in ["Nodes down or not ready", "Problems of nodes"] {
        assert!(exprs(title).contains("up{job=\"nodelb\",instance=~\"$instance\"}"), "{title}");
    }
}

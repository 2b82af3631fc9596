//! The alerts: valid Prometheus rules over existing metrics, each with a runbook.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::problems::Reason;
use serde::Deserialize;

use crate::expression;

const RULES: &str = "contrib/prometheus/nodelb.rules.yaml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasts: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn rules() -> Vec<Rule> {
    let rules: Rules = serde_saphyr::from_str(&crate::read(RULES)).expect("YAML that Prometheus reads");
    let names: BTreeSet<_> = rules.groups.iter().map(|group| group.name.clone()).collect();
    assert_eq!(names.len(), rules.groups.len(), "a group is there twice");
    rules.groups.into_iter().flat_map(|group| group.rules).collect()
}

#[test]
fn every_alert_asks_for_metrics_that_exist() {
    let mut names = BTreeSet::new();
    for Rule { alert, expr, lasts, .. } in rules() {
        assert!(alert.starts_with("Nodelb") && names.insert(alert.clone()), "{alert}: the name");
        expression::check(&expr).unwrap_or_else(|error| panic!("{alert}: {error}"));
        assert!(lasts.is_none_or(|lasts| expression::is_duration(&lasts)), "{alert}: for");
    }
    assert!(names.len() >= 15, "{names:?}");
}

#[test]
fn every_alert_has_a_severity_and_a_runbook() {
    for Rule { alert, expr, labels, annotations, .. } in rules() {
        let severity = labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning" | "info")), "{alert}: {severity:?}");
        let keys: Vec<_> = annotations.keys().map(String::as_str).collect();
        assert_eq!(keys, ["description", "summary"], "{alert}");
        let description = &annotations["description"];
        let has_command = ["`nodelb ", "`curl localhost:9890/", "`systemctl ", "`journalctl "]
            .iter()
            .any(|it| description.contains(it));
        assert!(has_command, "{alert}: the description gives no command");
        let metrics = expression::check(&expr).unwrap();
        for text in annotations.values() {
            for variable in text.split("{{").skip(1) {
                let variable = variable.split("}}").next().unwrap().trim();
                let label = variable.strip_prefix("$labels.");
                let is_label =
                    label.is_some_and(|label| metrics.iter().any(|metric| expression::has_label(*metric, label)));
                assert!(variable == "$value" || is_label, "{alert}: {variable} is nothing");
            }
        }
    }
}

/// The conditions that require an alert.
#[test]
fn every_important_condition_has_an_alert() {
    let exprs: Vec<String> = rules().into_iter().map(|rule| rule.expr).collect();
    for metric in [
        "nodelb_services_without_backends",
        "nodelb_services_held",
        "nodelb_services_load_balancer_pending",
        "nodelb_drift_repaired_total",
        "nodelb_apiserver_connected",
        "nodelb_source_age_seconds",
        "nodelb_hooks_in_effect",
        "nodelb_ready",
        "nodelb_socket_reaper_up",
        "nodelb_map_entries",
        "nodelb_frontends{status=~\"Conflict|Refused\"}",
        "nodelb_reconcile_operations_total{result=\"failed\"}",
        "nodelb_packet_connections",
        "nodelb_packet_dropped_total{reason=\"no-port\"}",
        "nodelb_packet_devices{state=\"failed\"}",
        "reason=~\"no-route|no-forwarding\"",
    ] {
        assert!(exprs.iter().any(|expr| expr.contains(metric)), "no alert asks for {metric}");
    }
}

/// Every alert is also a problem in `nodelb status`, except the one about a daemon that does not run.
#[test]
fn every_alert_is_a_problem() {
    let rules = crate::read("contrib/prometheus/nodelb.rules.yaml");
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let problems: BTreeSet<&str> = Reason::CATALOGUE.iter().flat_map(|entry| entry.alerts).copied().collect();
    assert_eq!(alerts.difference(&problems).copied().collect::<Vec<_>>(), ["NodelbDown"]);
    assert_eq!(problems.difference(&alerts).copied().collect::<Vec<_>>(), [] as [&str; 0]);
}

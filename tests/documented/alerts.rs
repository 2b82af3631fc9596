//! The alerts: valid Prometheus rules over existing metrics, each with a runbook.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_report::problems::{Reason, ReasonEntry, Severity};
use serde::Deserialize;

use crate::expression;

const RULES: &str = "contrib/prometheus/nodelb.rules.yaml";
/// The runbook, as the package installs it.
const RUNBOOK: &str = "file:///usr/share/doc/nodelb/docs/alerts.md";
/// Functions of Prometheus that make a value readable.
const FUNCTIONS: [&str; 3] = ["humanize", "humanizeDuration", "humanizePercentage"];

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

/// A route for alerts by severity needs all of them.
#[test]
fn the_runbook_explains_every_severity() {
    let page = crate::read("docs/alerts.md");
    let introduction = page.split("\n## ").next().expect("an introduction");
    for Rule { alert, labels, .. } in rules() {
        let severity = &labels["severity"];
        assert!(
            introduction.contains(&format!("`{severity}`")),
            "docs/alerts.md does not explain {severity} of {alert}"
        );
    }
}

/// A node without an address had no alert.
#[test]
fn every_critical_problem_has_an_alert() {
    let is_without = |it: &&ReasonEntry| it.severity == Severity::Critical && it.alerts.is_empty();
    let without: Vec<&str> = Reason::CATALOGUE.iter().filter(is_without).map(|it| it.name).collect();
    // What the memory has instead of maps is for tests.
    assert_eq!(without, ["NotTranslated"]);
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
        assert_eq!(keys, ["description", "runbook_url", "summary"], "{alert}");
        assert_eq!(annotations["runbook_url"], format!("{RUNBOOK}#{}", alert.to_lowercase()));
        let description = &annotations["description"];
        let has_command = ["`nodelb ", "`curl localhost:9890/", "`systemctl ", "`journalctl "]
            .iter()
            .any(|it| description.contains(it));
        assert!(has_command, "{alert}: the description gives no command");
        let metrics = expression::check(&expr).unwrap();
        for text in annotations.values() {
            for variable in text.split("{{").skip(1) {
                let text = variable.split("}}").next().unwrap().trim();
                let text = text.strip_prefix("with ").unwrap_or(text);
                if [".", "end"].contains(&text) {
                    continue;
                }
                let (variable, function) = text.split_once('|').unwrap_or((text, "humanize"));
                let (variable, function) = (variable.trim(), function.trim());
                assert!(FUNCTIONS.contains(&function), "{alert}: {function} is nothing");
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
        "nodelb_packet_devices{state=\"failed\"}",
        "nodelb_problems{reason=\"PacketPortsExhausted\"}",
        "nodelb_problems{reason=~\"PacketsNotRouted|NotForwarding\"}",
    ] {
        assert!(exprs.iter().any(|expr| expr.contains(metric)), "no alert asks for {metric}");
    }
}

#[test]
fn the_runbook_has_a_section_for_every_alert() {
    let text = crate::read("docs/alerts.md");
    let sections: Vec<String> = text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    let mut alerts: Vec<String> = rules().into_iter().map(|rule| rule.alert).collect();
    alerts.sort();
    let mut sorted = sections.clone();
    sorted.sort();
    assert_eq!(sorted, alerts);
}

/// A value of a function such as `rate` has many digits.
#[test]
fn values_that_are_no_counts_are_rounded() {
    for Rule { alert, expr, annotations, .. } in rules() {
        let is_count =
            !["rate(", "increase(", "quantile(", "/", "_seconds", "changes("].iter().any(|it| expr.contains(it));
        for text in annotations.values().filter(|text| text.contains("{{ $value }}")) {
            assert!(is_count, "{alert}: {text}");
        }
    }
}

/// The alert about packets that are not routed looked at those that are dropped: the kernel passes on what it does not forward
/// to a backend on this node. And no alert looked at half_open, which has all connections with direct return.
#[test]
fn no_alert_leaves_out_a_part_of_its_problem() {
    let exprs: BTreeMap<String, String> = rules().into_iter().map(|rule| (rule.alert, rule.expr)).collect();
    for (name, reason) in [
        ("NodelbPacketsNotRouted", "=~\"PacketsNotRouted|NotForwarding\""),
        ("NodelbPacketPortsExhausted", "=\"PacketPortsExhausted\""),
        ("NodelbIpsecProtects", "=\"IpsecProtects\""),
    ] {
        assert_eq!(exprs[name], format!("nodelb_problems{{reason{reason}}} > 0"));
    }
    // affinity is a cache, which may be full; connections has an alert of its own.
    let (_, left_out) = exprs["NodelbMapNearlyFull"].split_once("map!~\"").unwrap();
    assert!(left_out.starts_with("affinity|connections\"}"), "{left_out}");
}

/// One fact of the cluster is one alert, not one for each node. On a host without Kubernetes, it is a fact of the host, whose
/// files are not those of others.
#[test]
fn facts_of_the_cluster_are_reported_once() {
    const CLUSTER: [&str; 4] = [
        "nodelb_services_without_backends",
        "nodelb_services_held",
        "nodelb_services_load_balancer_pending",
        "nodelb_frontends{status=~\"Conflict|Refused\"}",
    ];
    for Rule { alert, expr, annotations, .. } in rules() {
        let Some(metric) = CLUSTER.iter().find(|metric| expr.contains(*metric)) else {
            assert!(!expr.contains("without (instance)"), "{alert}: {expr}");
            assert!(annotations.values().any(|text| text.contains("$labels.instance")), "{alert}");
            continue;
        };
        assert!(expr.starts_with("max without (instance) ("), "{alert}: {expr}");
        let is_of_kubernetes = *metric == "nodelb_services_load_balancer_pending";
        assert_ne!(
            expr.contains("unless on (instance) nodelb_apiserver_connected"),
            is_of_kubernetes,
            "{alert}: {expr}"
        );
        let names_the_host = annotations["summary"].contains("{{ with $labels.instance }} on {{ . }}{{ end }}");
        assert_ne!(names_the_host, is_of_kubernetes, "{alert}");
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

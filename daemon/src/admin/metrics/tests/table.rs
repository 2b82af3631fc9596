use std::collections::BTreeSet;

use super::*;
use crate::generated;

/// Names follow the rules of OpenMetrics and Prometheus, and rows are complete.
#[test]
fn every_row_is_in_order() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(names.insert(metric.family()), "{name} is there twice");
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        assert!(is_plain(name), "{name}");
        let known = ["nodelb_", "process_", "kubeproxy_"];
        assert!(known.iter().any(|prefix| name.starts_with(prefix)), "{name} has an unknown prefix");
        assert_eq!(metric.kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        assert_eq!(metric.kind == MetricKind::Info, name.ends_with("_info"), "{name}");
        let is_reserved = ["_count", "_sum", "_bucket", "_created"].iter().any(|suffix| name.ends_with(suffix));
        assert!(!is_reserved, "{name}: the suffix means something else");
        assert!(
            !metric.help.is_empty() && !metric.help.ends_with('.') && !metric.help.contains(['\n', '\\']),
            "{name}"
        );
        for label in &metric.labels {
            assert!(is_plain(label.name) && label.name != "le" && !label.values.is_empty(), "{name} {}", label.name);
        }
    }
    assert!(METRICS.is_sorted_by_key(|metric| metric.group), "the rows of a group stand together");
}

/// Returns for each group its title, its condition and its metrics.
fn groups() -> Vec<(&'static str, &'static str, &'static [&'static Metric])> {
    METRICS
        .chunk_by(|a, b| a.group == b.group)
        .map(|metrics| (metrics[0].group.title().0, metrics[0].group.title().1, metrics))
        .collect()
}

const INTRODUCTION: &str = "\
# Metrics

Generated from `daemon/src/admin/metrics/table.rs`: `UPDATE=1 cargo test -p nodelb --lib metrics::table` rewrites it.

`curl localhost:9890/metrics` returns the text format of Prometheus, or OpenMetrics text if the Accept header names it.
The values describe the state of the daemon at the time of the request, unless the meaning names another. The name of a metric ends with its unit. Counters
end with `_total` and start at 0 when the daemon starts. Histograms have the suffixes `_bucket`, `_sum` and `_count`. The
number of label values is limited. The daemon processes one request at a time.
[Alerts](../contrib/prometheus/nodelb.rules.yaml) and a [dashboard](../contrib/grafana/nodelb.json) are installed with
nodelb.
";

/// `docs/metrics.md` equals the table. `UPDATE=1` rewrites it.
#[test]
fn the_document_is_the_table() {
    let mut text = INTRODUCTION.to_owned();
    for (title, when, metrics) in groups() {
        text.push_str(&format!("\n## {title}\n\n{when}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"));
        for Metric { name, kind, labels, help, .. } in metrics {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{}`: {}", label.name, label.values)).collect();
            let labels = if labels.is_empty() { "-".into() } else { labels.join("; ") };
            text.push_str(&format!("| `{name}` | {} | {labels} | {help} |\n", kind));
        }
    }
    generated::is_whole_file("docs/metrics.md", &text);
}

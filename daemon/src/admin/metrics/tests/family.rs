use prometheus_client::metrics::histogram::Histogram;

use super::*;
use crate::admin::metrics::tests::openmetrics;

static COUNTED: Metric<[Label; 2]> = Metric {
    group: Group::Services,
    name: "nodelb_counted_total",
    kind: MetricKind::Counter,
    labels: [Label { name: "service", values: "any" }, Label { name: "result", values: "any" }],
    help: "What was counted",
};
static WAITED: Metric<[Label; 0]> = Metric {
    group: Group::Services,
    name: "kubeproxy_waited_seconds",
    kind: MetricKind::Histogram,
    labels: [],
    help: "How long it took",
};
static HELD: Metric<[Label; 0]> =
    Metric { group: Group::Services, name: "held_bytes", kind: MetricKind::Gauge, labels: [], help: "Held" };

#[test]
fn what_is_published_follows_the_rules() {
    let mut exposition = Exposition::default();
    let nasty = "a\"b\\c\nd";
    exposition.each(&COUNTED, [(["shop/web", "ok"], 3_u64), ([nasty, "ok"], 4)]);
    let histogram = Histogram::new([0.1, 1.0]);
    exposition.histogram(&WAITED, &histogram);
    histogram.observe(0.5);
    exposition.one(&HELD, 2.5);
    exposition.each(&NOT_COUNTED, std::iter::empty::<([&str; 1], u64)>());
    let families = openmetrics::read(&exposition.text().unwrap()).unwrap();
    let names: Vec<_> = families.keys().map(String::as_str).collect();
    assert_eq!(names, ["held_bytes", "kubeproxy_waited_seconds", "nodelb_counted"]);
    assert_eq!(families["held_bytes"].unit.as_deref(), Some("bytes"));
    assert_eq!(families["kubeproxy_waited_seconds"].unit.as_deref(), Some("seconds"));
    let counted = &families["nodelb_counted"];
    assert_eq!((counted.kind.as_str(), counted.help.as_deref()), ("counter", Some("What was counted.")));
    assert_eq!(counted.samples[1].labels, [("service".into(), nasty.into()), ("result".into(), "ok".into())]);
    assert_eq!(families["kubeproxy_waited_seconds"].samples.len(), 5);
}

static NOT_COUNTED: Metric<[Label; 1]> = Metric {
    group: Group::Services,
    name: "nodelb_unused",
    kind: MetricKind::Gauge,
    labels: [Label { name: "service", values: "any" }],
    help: "Nothing: a family without a sample is not there",
};

#[test]
fn what_breaks_the_rules_is_refused() {
    for (text, why) in [
        ("# TYPE a gauge\n# HELP a A.\na 1\n", "EOF"),
        ("# TYPE a counter\n# HELP a A.\na 1\n# EOF\n", "has no"),
        ("# TYPE a gauge\n# HELP a A.\na 1\na 2\n# EOF\n", "already"),
        ("# TYPE a gauge\n# HELP a A.\na{b=\"\\x\"} 1\n# EOF\n", "escape"),
        ("# TYPE a gauge\n# HELP a A.\n# UNIT a seconds\na 1\n# EOF\n", "unit"),
        ("# TYPE a gauge\n# HELP a A.\nb 1\n# EOF\n", "another family"),
        ("# TYPE a gauge\n# HELP a A.\na 1\n# TYPE b gauge\n# HELP b B.\nb 1\n# TYPE a gauge\na 2\n# EOF\n", "already"),
        ("# TYPE a histogram\n# HELP a A.\na_bucket{le=\"1.0\"} 2\na_sum 1\na_count 2\n# EOF\n", "+Inf"),
    ] {
        let error = openmetrics::read(text).unwrap_err();
        assert!(error.contains(why), "{error}: {text}");
    }
}

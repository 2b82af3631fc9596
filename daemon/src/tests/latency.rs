use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;

/// The histogram as lines `le value`, and its count.
fn buckets(histogram: &Histogram) -> Vec<String> {
    let mut registry = Registry::default();
    registry.register("it", "For a test", histogram.clone());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let bound = |line: &str| Some(line.strip_prefix("it_bucket{le=\"")?.replace("\"}", ""));
    text.lines().filter_map(bound).collect()
}

fn count(histogram: &Histogram) -> String {
    buckets(histogram).pop().unwrap().replace("+Inf ", "")
}

/// The buckets are kube-proxy's, because dashboards compute quantiles from them.
#[test]
fn buckets_are_those_of_kube_proxy() {
    let latencies = Latencies::default();
    let bounds = |histogram: &Histogram| -> Vec<f64> {
        let bound = |text: String| text.split(' ').next().unwrap().parse().unwrap_or(f64::INFINITY);
        buckets(histogram).into_iter().map(bound).collect()
    };
    let programming = bounds(&latencies.network_programming);
    assert_eq!(programming[..4], [0.25, 0.5, 1.0, 2.0]);
    assert_eq!(programming[59..63], [58.0, 59.0, 60.0, 65.0].map(|second: f64| second));
    assert_eq!(programming[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0, f64::INFINITY]);
    let sync = bounds(&latencies.sync_proxy_rules);
    assert_eq!((sync.len(), sync[0], sync[14]), (16, 0.001, 16.384));
}

#[test]
fn what_happened_before_the_start_is_no_latency() {
    let latencies = Latencies::default();
    let taken = Taken::now();
    let ahead = taken.unix_millis + 3_600_000;
    let triggers = vec![taken.unix_millis - 3_600_000, taken.unix_millis, ahead];
    let mut round = Round::default();
    (round.triggers, round.done) = (triggers, 0);
    latencies.observe_triggers(&round, taken);
    assert_eq!(count(&latencies.network_programming), "2");
    assert!(buckets(&latencies.network_programming)[0].ends_with(" 2") || taken.elapsed() > Duration::from_millis(200));
}

/// A clock that was an hour ahead at the start, and has been set since, makes no change older than it is.
#[test]
fn the_start_is_where_the_clock_of_now_has_it() {
    assert_eq!(began(1_000_000, Duration::from_millis(1_500)), 998_500);
    assert_eq!(began(1_000, Duration::from_secs(3_600)), 0);
}

#[test]
fn rounds_and_operations_are_counted() {
    let latencies = Latencies::default();
    let mut round = Round::default();
    (round.done, round.failed) = (3, 2);
    latencies.observe(&round, Duration::from_millis(5));
    (round.done, round.failed) = (1, 0);
    latencies.clone().observe(&round, Duration::from_millis(5));
    assert_eq!([&latencies.rounds, &latencies.done, &latencies.failed].map(Counter::get), [2, 4, 2]);
    assert_eq!((count(&latencies.reconcile), count(&latencies.sync_proxy_rules)), ("2".into(), "2".into()));
}

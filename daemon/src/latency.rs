//! The latency from the cause of a change to the kernel, and the duration of rounds. Tasks that observe them update the
//! figures, and `/metrics` reads them. Two are kube-proxy's, with its names and buckets, for dashboards and
//! service-level tools that expect those.

use std::time::Duration;

use nodelb_core::engine::Round;
use nodelb_host::clock::Taken;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};

/// The current figures. All clones share them.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// The time in seconds from the owner's receipt of a change until the kernel had it; one value for each record of a
    /// service port.
    pub event_to_kernel: Histogram,
    /// The duration of a round in seconds.
    pub reconcile: Histogram,
    /// `reconcile` under kube-proxy's name `sync_proxy_rules_duration_seconds`.
    pub sync_proxy_rules: Histogram,
    /// The time in seconds from a change of a pod or service, according to its EndpointSlice, until the kernel had it:
    /// kube-proxy's `network_programming_duration_seconds`.
    pub network_programming: Histogram,
    pub rounds: Counter,
    /// Number of operations that the datapath carried out.
    pub done: Counter,
    pub failed: Counter,
    /// Number of rounds that ran only because an earlier operation had failed or was waiting.
    pub retries: Counter,
    started: Taken,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            // Up to 3.5 minutes: an operation that is repeated until it fits counts from the first attempt.
            event_to_kernel: Histogram::new(exponential_buckets(0.000_1, 2.0, 22)),
            reconcile: Histogram::new(exponential_buckets(0.000_1, 2.0, 18)),
            sync_proxy_rules: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            network_programming: Histogram::new(network_programming_buckets()),
            rounds: Counter::default(),
            done: Counter::default(),
            failed: Counter::default(),
            retries: Counter::default(),
            started: Taken::now(),
        }
    }
}

/// The buckets of Kubernetes v1.36, `pkg/proxy/metrics/metrics.go`.
fn network_programming_buckets() -> impl Iterator<Item = f64> {
    let seconds =
        linear_buckets(1.0, 1.0, 59).chain(linear_buckets(60.0, 5.0, 12)).chain(linear_buckets(120.0, 30.0, 7));
    [0.25, 0.5].into_iter().chain(seconds)
}

impl Latencies {
    pub fn observe(&self, round: &Round, took: Duration) {
        self.rounds.inc();
        self.done.inc_by(round.done as u64);
        self.failed.inc_by(round.failed as u64);
        self.reconcile.observe(took.as_secs_f64());
        self.sync_proxy_rules.observe(took.as_secs_f64());
    }

    /// Records the changes that the round has brought to the kernel. Changes from before the start are left out: they
    /// measure the absence of nodelb, not its latency (kubernetes/perf-tests#640).
    pub fn observe_triggers(&self, round: &Round, taken: Taken) {
        let now = taken.unix_millis.saturating_add(u64::try_from(taken.elapsed().as_millis()).unwrap_or(u64::MAX));
        let earliest = began(now, self.started.elapsed());
        for triggered in round.triggers.iter().filter(|triggered| **triggered >= earliest) {
            // The apiserver's clock may be ahead; the latency is then 0.
            self.network_programming.observe(Duration::from_millis(now.saturating_sub(*triggered)).as_secs_f64());
        }
    }
}

/// The beginning of something that has lasted this long, in milliseconds since 1970 by the current wall clock, which
/// may have been set since.
fn began(now: u64, lasted: Duration) -> u64 {
    now.saturating_sub(u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "tests/latency.rs"]
mod tests;

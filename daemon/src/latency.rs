//! How long a change takes from what brought it about to the kernel, and how long rounds take: figures kept by whoever
//! observes them, and read by `/metrics`. Two of them are kube-proxy's, under its names and with its buckets, for the
//! dashboards and service-level tools that know those.

use std::time::Duration;

use nodelb_core::engine::Round;
use nodelb_kube::clock::Taken;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};

/// Live figures. A clone shows the same ones.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// From when the owner took a change until the kernel had it, in seconds; one for each record of a service port.
    pub event_to_kernel: Histogram,
    /// How long a round took, in seconds.
    pub reconcile: Histogram,
    /// The same as kube-proxy counts it: `sync_proxy_rules_duration_seconds`.
    pub sync_proxy_rules: Histogram,
    /// From when a pod or service changed, as its EndpointSlice says, until the kernel had it, in seconds: kube-proxy's
    /// `network_programming_duration_seconds`.
    pub network_programming: Histogram,
    /// Rounds.
    pub rounds: Counter,
    /// Operations that the datapath carried out.
    pub done: Counter,
    /// Operations that it did not.
    pub failed: Counter,
    /// Rounds only because something had failed, or waited, before.
    pub retries: Counter,
    /// When the daemon started.
    started: Taken,
}

impl Default for Latencies {
    /// Nothing observed yet.
    fn default() -> Self {
        Self {
            // To 3.5 minutes: what is tried again until there is room counts from when it was first tried.
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

/// As in Kubernetes v1.36, `pkg/proxy/metrics/metrics.go`.
fn network_programming_buckets() -> impl Iterator<Item = f64> {
    let seconds =
        linear_buckets(1.0, 1.0, 59).chain(linear_buckets(60.0, 5.0, 12)).chain(linear_buckets(120.0, 30.0, 7));
    [0.25, 0.5].into_iter().chain(seconds)
}

impl Latencies {
    /// Takes note of a round that took this long.
    pub fn observe(&self, round: &Round, took: Duration) {
        self.rounds.inc();
        self.done.inc_by(round.done as u64);
        self.failed.inc_by(round.failed as u64);
        self.reconcile.observe(took.as_secs_f64());
        self.sync_proxy_rules.observe(took.as_secs_f64());
    }

    /// Takes note of what the round has brought to the kernel. What happened before the start says how long nodelb was not
    /// there, not how long it takes (kubernetes/perf-tests#640).
    pub fn observe_triggers(&self, round: &Round, taken: Taken) {
        let now = taken.unix_millis.saturating_add(u64::try_from(taken.elapsed().as_millis()).unwrap_or(u64::MAX));
        let earliest = began(now, self.started.elapsed());
        for triggered in round.triggers.iter().filter(|triggered| **triggered >= earliest) {
            // An apiserver whose clock is ahead must not make it less than nothing.
            self.network_programming.observe(Duration::from_millis(now.saturating_sub(*triggered)).as_secs_f64());
        }
    }
}

/// When something began that has lasted so long, on the world's clock as it shows now, in milliseconds since 1970: that
/// clock may have been set since.
fn began(now: u64, lasted: Duration) -> u64 {
    now.saturating_sub(u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "tests/latency.rs"]
mod tests;

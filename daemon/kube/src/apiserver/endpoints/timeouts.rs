//! All time constants of the connection to an apiserver, in one value, so that tests can use shorter times.

use std::time::Duration;

/// The time constants of the pool and the supervisor, in milliseconds. [`Default`] has the values for production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// The timeout for resolving a name; afterwards the previous addresses are used.
    pub resolve: u64,
    /// The timeout for a whole attempt: connection, TLS and first read.
    pub open: u64,
    /// An attempt without success after this time continues in parallel with the next address.
    pub hedge: u64,
    /// The interval between probes of the address in use.
    pub probe_every: u64,
    /// The timeout of a probe; half of it after something else has failed over the address.
    pub probe_timeout: u64,
    /// The time from a first failed probe of the address in use to the decisive one.
    pub probe_again: u64,
    /// How long a preferred address must have worked, and the one in use must have been in use, before the preferred
    /// one replaces it.
    pub min_uptime: u64,
    /// How long earlier failures of an address count: sessions over it that ended badly, and permissions that the
    /// server denied.
    pub stable_after: u64,
    /// The end of a session shorter than this counts as a failure to connect.
    pub short_lived: u64,
    /// How long the cluster must have listed an address before it is used, if there is an alternative.
    pub debounce: u64,
    /// The waiting time after the first network failure of an address, or after a response that it is not ready. It
    /// doubles for each further one.
    pub retry_first: u64,
    /// The maximum of that waiting time, including jitter.
    pub retry_most: u64,
    /// The time between attempts at an address that is not expected to work soon, or probes of one that is not needed.
    /// Waiting times after refusals (certificate, credentials, another cluster) begin at `retry_most`, and double up to
    /// this maximum, including jitter.
    pub slow_retry: u64,
    /// How long after an outage of an address its refusals are attributed to a server that starts. For the same time,
    /// an address that refuses all requests including the readiness check only counts as not ready.
    pub starting: u64,
    pub credentials_every: u64,
    /// The timeout for reading the state file.
    pub load: u64,
    /// The loss is logged, once, after this time without a session.
    pub lost: u64,
}

impl Default for PoolTimeouts {
    fn default() -> Self {
        Self::PRODUCTION
    }
}

impl PoolTimeouts {
    pub const PRODUCTION: Self = Self {
        // Leaves time within `open` for the previous addresses.
        resolve: 1_000,
        // Two connections and TLS handshakes of a server that answers slowly.
        open: 5_000,
        // More than a round trip around the world.
        hedge: 400,
        // With these three, a server that stops answering is left within 7.5 s; the promise is 10 s.
        probe_every: 4_000,
        probe_timeout: 2_000,
        probe_again: 500,
        // More than an apiserver stays up that crashes at its start.
        min_uptime: 30_000,
        // As in the kubelet, where a container that has run for so long starts without back-off again.
        stable_after: 600_000,
        // More than a drained or rejected connection lasts.
        short_lived: 2_000,
        // An apiserver that starts lists itself some seconds before it is ready.
        debounce: 10_000,
        // A single apiserver is in use again within 5 s of its restart.
        retry_first: 200,
        retry_most: 5_000,
        // What an administrator has to repair takes minutes.
        slow_retry: 60_000,
        // An apiserver has loaded its roles and certificates within a minute.
        starting: 60_000,
        // A rotated token is read long before the previous one expires.
        credentials_every: 2_000,
        // A local file system answers at once.
        load: 2_000,
        // A change to another server takes less and needs no warning.
        lost: 10_000,
    };

    /// Converts a time constant for a timer.
    pub const fn duration(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }
}

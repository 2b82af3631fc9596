//! All time constants of the connection to an apiserver, in one value, so that tests can use shorter times.

use std::time::Duration;

/// The time constants of the pool and the supervisor, in milliseconds. [`Default`] has the values for production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// The timeout for resolving a name; afterwards the previous addresses are used.
    pub resolve: u64,
    /// The timeout for a whole attempt: connection, TLS and first read.
    pub open: u64,
    /// The time after which an attempt that has not succeeded continues in parallel with the next address.
    pub hedge: u64,
    /// The interval between probes of the address in use.
    pub probe_every: u64,
    /// The timeout of a probe.
    pub probe_timeout: u64,
    /// The timeout of a probe after something else has failed over the address.
    pub probe_doubted: u64,
    /// The time from a first failed probe of the address in use to the decisive one.
    pub probe_again: u64,
    /// The interval between probes of addresses that are preferred to the one in use.
    pub probe_preferred_every: u64,
    /// The interval between probes of all other addresses.
    pub probe_others_every: u64,
    /// The time for which a preferred address must have worked, and the one in use must have been in use, before the
    /// preferred one replaces it.
    pub min_uptime: u64,
    /// The duration of a session after which the record of failures of its address is cleared.
    pub stable_after: u64,
    /// The duration of a session below which its end counts as a failure to connect.
    pub short_lived: u64,
    /// The time for which the cluster must have listed an address before it is used, if there is an alternative.
    pub debounce: u64,
    /// The waiting time after the first network failure of an address, or after a response that it is not ready. It
    /// doubles for each further one.
    pub retry_first: u64,
    /// The maximum of that waiting time, including jitter.
    pub retry_most: u64,
    /// The waiting time after the first refusal (certificate, credentials, another cluster). It doubles in the same
    /// way.
    pub refused_first: u64,
    /// The maximum waiting time after a refusal, including jitter.
    pub refused_most: u64,
    /// The time after an outage of an address during which its refusals are attributed to a server that starts. For the
    /// same time, an address that refuses all requests including the readiness check only counts as not ready.
    pub starting: u64,
    /// The longest pause that a server with too many requests may ask for.
    pub retry_after_most: u64,
    /// The time after which a learned or remembered address that fails and is not listed is forgotten.
    pub forget: u64,
    /// The interval between checks of the credentials.
    pub credentials_every: u64,
    /// The timeout for reading the state file.
    pub load: u64,
    /// The interval between writes of the state file if its addresses do not change.
    pub save_every: u64,
    /// The time without a session after which the loss is logged, once.
    pub lost: u64,
    /// The minimum time between two log messages about one address if its errors differ.
    pub same_address_line: u64,
}

impl Default for PoolTimeouts {
    fn default() -> Self {
        Self::PRODUCTION
    }
}

impl PoolTimeouts {
    /// The values for production.
    pub const PRODUCTION: Self = Self {
        resolve: 1_000,
        open: 5_000,
        hedge: 400,
        probe_every: 4_000,
        probe_timeout: 2_000,
        probe_doubted: 1_000,
        probe_again: 500,
        probe_preferred_every: 10_000,
        probe_others_every: 60_000,
        min_uptime: 30_000,
        stable_after: 600_000,
        short_lived: 2_000,
        debounce: 10_000,
        retry_first: 200,
        retry_most: 5_000,
        refused_first: 5_000,
        refused_most: 60_000,
        starting: 60_000,
        retry_after_most: 60_000,
        forget: 86_400_000,
        credentials_every: 2_000,
        load: 2_000,
        save_every: 60_000,
        lost: 10_000,
        same_address_line: 60_000,
    };

    /// Converts a time constant for a timer.
    pub const fn duration(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }
}

//! Every time constant of the way to an apiserver, in one value, so that tests can be quick.

use std::time::Duration;

/// How patient the pool and its supervisor are. [`Default`] is what production uses; all in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a name may take to resolve before the last good answer is used.
    pub resolve: u64,
    /// How long an attempt may take in all: connect, TLS, the first read.
    pub open: u64,
    /// An attempt that has not succeeded after this long gets company: the next address is tried beside it.
    pub hedge: u64,
    /// Between probes of the address in use.
    pub probe_every: u64,
    /// How long a probe may take.
    pub probe_patience: u64,
    /// How long a probe may take when something else has failed over the address already.
    pub probe_doubted: u64,
    /// From a failed probe of the address in use to the one that decides.
    pub probe_again: u64,
    /// Between probes of addresses that are preferred to the one in use.
    pub probe_preferred_every: u64,
    /// Between probes of all others.
    pub probe_others_every: u64,
    /// How long a preferred address must have worked, and the one in use have been used, before the preferred one is
    /// returned to.
    pub dwell: u64,
    /// A session that lasted this long was no accident: the address begins without a record of failures after it.
    pub steady: u64,
    /// A session shorter than this counts as a failure to connect.
    pub short_lived: u64,
    /// How long the cluster must have listed an address before it is dialled while there is another choice.
    pub debounce: u64,
    /// Wait after the first network failure of an address, or answer that it is not ready; doubled with each further
    /// one.
    pub retry_first: u64,
    /// Longest wait after that, jitter included.
    pub retry_most: u64,
    /// Wait after the first refusal (certificate, credentials, another cluster), doubled likewise.
    pub refused_first: u64,
    /// Longest wait after a refusal, jitter included.
    pub refused_most: u64,
    /// So long after an address was unreachable its refusals are those of a server that starts; and for so long one
    /// that refuses everything, its readiness included, is only not ready.
    pub starting: u64,
    /// The longest that a server with too many requests may ask to be left alone.
    pub retry_after_most: u64,
    /// A learned or remembered address that failed for this long while the cluster does not list it is forgotten.
    pub forget: u64,
    /// Between looks whether the credentials have changed.
    pub credentials_every: u64,
    /// For the state file to be read.
    pub load: u64,
    /// Between writes of the state file while its set of addresses stays the same.
    pub save_every: u64,
    /// Without a session for this long, the apiservers are lost: said once.
    pub lost: u64,
    /// Between two log lines about one address while its errors vary.
    pub same_address_line: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self::PRODUCTION
    }
}

impl Timing {
    /// What the daemon uses.
    pub const PRODUCTION: Self = Self {
        resolve: 1_000,
        open: 5_000,
        hedge: 400,
        probe_every: 4_000,
        probe_patience: 2_000,
        probe_doubted: 1_000,
        probe_again: 500,
        probe_preferred_every: 10_000,
        probe_others_every: 60_000,
        dwell: 30_000,
        steady: 600_000,
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

    /// One of the constants for a timer.
    pub const fn duration(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }
}

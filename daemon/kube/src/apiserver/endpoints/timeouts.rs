//! All time constants of the connection to an apiserver, in one value, so that tests can use shorter times.

use crate::defaults::with_defaults;

with_defaults! {
    /// The time constants of the pool and the supervisor, in milliseconds. [`Default`] has the values for production.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PoolTimeouts {
        /// The timeout for resolving a name; afterwards the previous addresses are used.
        // Leaves time within `open` for the previous addresses.
        resolve: u64 = 1_000,
        /// The timeout for a whole attempt: connection, TLS and first read.
        // Two connections and TLS handshakes of a server that answers slowly.
        open: u64 = 5_000,
        /// An attempt without success after this time continues in parallel with the next address.
        // More than a round trip around the world.
        hedge: u64 = 400,
        /// The interval between probes of the address in use.
        // With these three, a server that stops answering is left within 7.5 s; the promise is 10 s.
        probe_every: u64 = 4_000,
        /// The timeout of a probe; half of it after something else has failed over the address.
        probe_timeout: u64 = 2_000,
        /// The time from a first failed probe of the address in use to the decisive one.
        probe_again: u64 = 500,
        /// How long a preferred address must have worked, and the one in use must have been in use, before the preferred
        /// one replaces it.
        // More than an apiserver stays up that crashes at its start.
        min_uptime: u64 = 30_000,
        /// How long earlier failures of an address count: sessions over it that ended badly, and permissions that the
        /// server denied.
        // As in the kubelet, where a container that has run for so long starts without back-off again.
        stable_after: u64 = 600_000,
        /// The end of a session shorter than this counts as a failure to connect.
        // More than a drained or rejected connection lasts.
        short_lived: u64 = 2_000,
        /// How long the cluster must have listed an address before it is used, if there is an alternative.
        // An apiserver that starts lists itself some seconds before it is ready.
        debounce: u64 = 10_000,
        /// The waiting time after the first network failure of an address, or after a response that it is not ready. It
        /// doubles for each further one.
        // A single apiserver is in use again within 5 s of its restart.
        retry_first: u64 = 200,
        /// The maximum of that waiting time, including jitter.
        retry_most: u64 = 5_000,
        /// The time between attempts at an address that is not expected to work soon, or probes of one that is not needed.
        /// Waiting times after refusals (certificate, credentials, another cluster) begin at `retry_most`, and double up to
        /// this maximum, including jitter.
        // What an administrator has to repair takes minutes.
        slow_retry: u64 = 60_000,
        /// How long after an outage of an address its refusals are attributed to a server that starts. For the same time,
        /// an address that refuses all requests including the readiness check only counts as not ready.
        // An apiserver has loaded its roles and certificates within a minute.
        starting: u64 = 60_000,
        // A rotated token is read long before the previous one expires.
        credentials_every: u64 = 2_000,
        /// The timeout for reading the state file.
        // A local file system answers at once.
        load: u64 = 2_000,
        /// The loss is logged, once, after this time without a session.
        // A change to another server takes less and needs no warning.
        lost: u64 = 10_000,
    }
}

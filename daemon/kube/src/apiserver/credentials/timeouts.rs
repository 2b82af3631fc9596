//! Time limits.

use std::time::Duration;

use crate::defaults::with_defaults;

with_defaults! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CredentialTimeouts {
        /// The timeout for reading the files, because their file system may be unreachable.
        files: Duration = Duration::from_secs(2),
        plugin: Duration = Duration::from_secs(30),
        /// The minimum time between two runs of an exec plugin, even if its credentials are rejected.
        plugin_pause: Duration = Duration::from_secs(5),
        /// How long before their expiry the credentials of an exec plugin are replaced.
        early: Duration = Duration::from_secs(60),
    }
}

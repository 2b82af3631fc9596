//! Time limits.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialTimeouts {
    /// The timeout for reading the files, because their file system may be unreachable.
    pub files: Duration,
    pub plugin: Duration,
    /// The minimum time between two runs of an exec plugin, even if its credentials are rejected.
    pub plugin_pause: Duration,
    /// How long before their expiry the credentials of an exec plugin are replaced.
    pub early: Duration,
}

impl Default for CredentialTimeouts {
    fn default() -> Self {
        Self {
            files: Duration::from_secs(2),
            plugin: Duration::from_secs(30),
            plugin_pause: Duration::from_secs(5),
            early: Duration::from_secs(60),
        }
    }
}

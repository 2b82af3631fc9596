//! How the backends of a service are checked by nodelb itself: what is asked, how often, and what the answers mean. The
//! asking is the daemon's; what it found comes back as [`crate::change::Change::Quarantine`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::addr::Addr;

/// The checks of one service. Every backend is asked on its own address, directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// What is asked.
    pub method: Method,
    /// The port that is asked; `None` for the backend's own.
    pub port: Option<u16>,
    /// From one question to the next.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many good answers in a row make a quarantined backend healthy.
    pub rise: u8,
    /// How many bad ones make a healthy backend quarantined.
    pub fall: u8,
    /// Whether a backend counts as healthy before its first answer.
    pub starts_healthy: bool,
    /// Whether quarantined backends are used when there are no others.
    pub last_resort: bool,
}

impl Default for HealthCheck {
    /// What a service file gets that says `type = "tcp"` and nothing else.
    fn default() -> Self {
        Self {
            method: Method::Tcp,
            port: None,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
            starts_healthy: true,
            last_resort: true,
        }
    }
}

/// What a backend is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// Whether it accepts a connection.
    Tcp,
    /// An HTTP GET.
    Http {
        /// The path, with its leading slash.
        path: Arc<str>,
        /// The Host header; `None` for the address that is asked.
        host: Option<Arc<str>>,
        /// Which status codes are good.
        status: RangeInclusive<u16>,
    },
}

/// Backends that nodelb's own checks found unhealthy, with the last error of each.
pub type Quarantine = BTreeMap<(Addr, u16), Arc<str>>;

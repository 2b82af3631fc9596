//! nodelb's own health checks of a service's backends: the request, the schedule and the evaluation of responses. The
//! daemon makes the checks and reports the results as [`crate::change::Change::Quarantine`] and [`crate::change::Change::Passed`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::addr::{Addr, L4Addr};

/// The health checks of one service. Every backend is checked at its own address, without a translation; with direct return,
/// the way of clients' packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    pub method: Method,
    /// The port to check; `None` for the backend's own.
    pub port: Option<u16>,
    pub interval: Duration,
    pub timeout: Duration,
    /// The number of successive successful checks that make a quarantined backend healthy.
    pub rise: u8,
    /// The number of successive failed checks that quarantine a healthy backend.
    pub fall: u8,
    /// Whether a backend is healthy before its first check.
    pub starts_healthy: bool,
    /// Whether quarantined backends are used if there are no others.
    pub last_resort: bool,
}

impl Default for HealthCheck {
    /// The settings of a service file that contains only `type = "tcp"`.
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

/// The kind of request that checks a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// A connection, which succeeds if the backend accepts it.
    Tcp,
    /// An HTTP GET request.
    Http {
        /// The path with its leading slash.
        path: Arc<str>,
        /// The Host header; `None` for the address of the backend.
        host: Option<Arc<str>>,
        /// The status codes that count as success.
        status: RangeInclusive<u16>,
    },
}

/// The backends that are unhealthy according to nodelb's own health checks, each with its last error.
pub type Quarantine = BTreeMap<(Addr, u16), Arc<str>>;

/// Whether there are backends and all of them failed their checks.
pub fn all_failed(backends: impl IntoIterator<Item = L4Addr>, failed: &Quarantine) -> bool {
    let mut backends = backends.into_iter().peekable();
    backends.peek().is_some() && backends.all(|backend| failed.contains_key(&(backend.addr, backend.port)))
}

//! The inputs of the health check server: the state that the answers are computed from, and the limits for clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use nodelb_host::register::Register;
use tokio::sync::{mpsc, watch};

use crate::http::ServerLimits;
use crate::status::Health;

/// A node is unhealthy if the owner has not progressed for this many milliseconds, because it then applies no changes.
/// The limit is kube-proxy's, twice its `syncPeriod`. An operation that the kernel refuses concerns one service and not
/// the node.
pub(super) const STUCK_AFTER: u64 = 60_000;

/// The inputs and outputs of the health check server.
#[derive(Clone)]
pub struct LbHealth {
    pub view: View,
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The addresses of the node's own health check; empty for none.
    pub healthz_addresses: Vec<SocketAddr>,
    pub bounds: Bounds,
    /// The time until a failed bind is repeated.
    pub retry: Duration,
    pub register: Register,
}

/// The state that the answers are computed from.
#[derive(Clone)]
pub struct View {
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub health: watch::Receiver<Arc<Health>>,
    pub clock: Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    /// Whether connections are translated and changes are applied. Independent of the apiservers and of single
    /// services.
    pub(crate) is_healthy: bool,
    /// Time of the last applied change.
    pub(super) updated: SystemTime,
    pub(super) now: SystemTime,
}

impl View {
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    pub(crate) fn status(&self, snapshot: &Snapshot) -> LoopStatus {
        let (moment, now) = (self.clock.now::<Moment>(), SystemTime::now());
        let age = Duration::from_millis(moment.0.saturating_sub(snapshot.at.0));
        let is_alive = moment.0.saturating_sub(self.health.borrow().heartbeat.0) < STUCK_AFTER;
        LoopStatus {
            is_healthy: is_alive && serves(snapshot),
            updated: now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
            now,
        }
    }
}

/// Whether every source is synced, or at least services from before are served.
fn serves(snapshot: &Snapshot) -> bool {
    snapshot.facts.is_synced(Source::Kubernetes) || snapshot.serves_anything()
}

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of concurrent connections to one address and port.
    pub per_listener: usize,
    /// Maximum number of concurrent connections in total.
    pub overall: usize,
    /// Maximum number of listening sockets.
    pub listeners: usize,
    /// How long a connection may wait for its next request, or take to send it.
    pub idle: Duration,
}

/// Number of file descriptors that are reserved for the rest of nodelb: maps, links, apiservers, the admin API, files.
const OTHER_FILES: usize = 256;

impl Bounds {
    /// The limits for a process with this maximum of open files (`RLIMIT_NOFILE`): listening sockets and their clients
    /// must not prevent the rest of the process from opening files.
    pub fn within(files: usize) -> Self {
        let overall = (files / 4).min(512);
        let listeners = files.saturating_sub(overall + OTHER_FILES);
        // Load balancers send a request every few seconds, some over a persistent connection.
        Self { per_listener: 64, overall, listeners, idle: Duration::from_secs(120) }
    }

    /// A connection has no minimum time: when there are too many, a legitimate client has already left by then.
    pub(super) fn limits(self) -> ServerLimits {
        ServerLimits {
            per_listener: self.per_listener,
            overall: self.overall,
            waiting: Duration::ZERO,
            answering: Duration::ZERO,
            header: self.idle,
            stuck: self.idle,
            total: None,
            stop: Duration::ZERO,
        }
    }
}

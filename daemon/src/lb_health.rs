//! Answers the health checks of load balancers as kube-proxy does (Kubernetes 1.36, `pkg/proxy/healthcheck`): at each
//! service's `healthCheckNodePort`, whether this node has a backend of the service ([`service`]), and at port 10256,
//! whether the node works and stays ([`node`]). Owns the only sockets of nodelb that other hosts can reach ([`listeners`]).
//!
//! ```text
//!  owner ── Arc<Snapshot>, Arc<Health> ──> View ──> answers, when asked
//!    ▲                          │
//!    │                          └── wanted ports ──> listeners ──> load balancers, and any other host
//!    └── Change::HealthCheckPortError: what cannot be listened on
//! ```
//!
//! The answers run on their own thread and runtime: however many requests arrive, they use one core at most and never
//! delay the owner's tasks.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use nodelb_core::change::Change;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use nodelb_host::register::Register;
use tokio::sync::{mpsc, watch};

use crate::http::{Limits, Slots};
use crate::status::Health;

mod listeners;
mod node;
mod service;

/// A node is unhealthy if the owner has not progressed for this many milliseconds, because it then applies no changes.
/// The limit is kube-proxy's, twice its `syncPeriod`. An operation that the kernel refuses concerns one service and not
/// the node.
const STUCK_AFTER: u64 = 60_000;

/// The inputs and outputs of the health check server.
#[derive(Clone)]
pub struct LbHealth {
    /// The state that the answers are computed from.
    pub view: View,
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The addresses of the node's own health check; empty for none.
    pub healthz_addresses: Vec<SocketAddr>,
    /// The limits for clients.
    pub bounds: Bounds,
    /// The time until a failed bind is repeated.
    pub retry: Duration,
    /// Marks a socket as nodelb's own.
    pub register: Register,
}

/// Starts everything on its own thread, which runs until `stop`.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(entry: LbHealth, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                () = run(entry) => {}
                () = stop => {}
            }
        });
    };
    std::thread::Builder::new().name("lb-health".into()).spawn(work)?;
    Ok(())
}

/// Listens and answers forever.
pub async fn run(entry: LbHealth) {
    let slots = Slots::new(entry.bounds.limits());
    tokio::join!(node::run(entry.clone(), Arc::clone(&slots)), service::run(entry, slots));
}

/// The state that the answers are computed from.
#[derive(Clone)]
pub struct View {
    /// The owner's snapshots.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub health: watch::Receiver<Arc<Health>>,
    pub clock: Clock,
}

/// The health of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoopStatus {
    /// Whether connections are translated and changes are applied. Independent of the apiservers and of single
    /// services.
    is_healthy: bool,
    /// Time of the last applied change.
    updated: SystemTime,
    now: SystemTime,
}

impl View {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    fn status(&self, snapshot: &Snapshot) -> LoopStatus {
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
    snapshot.facts().is_synced(Source::Kubernetes) || snapshot.serves_anything()
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

    /// A connection has no minimum time: when there are too many, a legitimate client has already gone by then.
    fn limits(self) -> Limits {
        Limits {
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

/// The share of a service's traffic for this node, for load balancers that weight their targets.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// An answer to a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    content_type: &'static str,
    weight: Option<usize>,
    body: String,
    at: SystemTime,
}

impl Answer {
    /// An answer with status 200 or 503 and a JSON body.
    fn json(is_good: bool, body: String, at: SystemTime) -> Self {
        let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Self { status, content_type: "application/json", weight: None, body, at }
    }

    /// An answer for an unknown path.
    fn not_found(at: SystemTime) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self { status: StatusCode::NOT_FOUND, content_type, weight: None, body: "404 page not found\n".into(), at }
    }

    fn into_response(self) -> Response<Body> {
        let Self { status, content_type, weight, body, at } = self;
        let length = body.len();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(weight) = weight {
            headers.insert(WEIGHT, weight.into());
        }
        // A date is ASCII; without this header the server would add its own.
        if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(at.max(SystemTime::UNIX_EPOCH))) {
            headers.insert(DATE, date);
        }
        headers.insert(CONTENT_LENGTH, length.into());
        response
    }
}

#[cfg(test)]
#[path = "tests/lb_health.rs"]
mod tests;

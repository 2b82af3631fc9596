//! What load balancers ask a node, answered as kube-proxy does (Kubernetes 1.36, `pkg/proxy/healthcheck`): at each service's
//! `healthCheckNodePort` whether this node has a backend of it ([`service`]), and on port 10256 whether the node works and
//! stays ([`node`]). Owns the only sockets of nodelb that others can reach ([`doors`], [`listen`]).
//!
//! ```text
//!  owner ── Arc<Snapshot>, Arc<Health> ──> View ──> answers, when asked
//!    ▲                          │
//!    │                          └── wanted ports ──> doors ──> listen ──> load balancers, and anybody else
//!    └── Change::EntryError: what cannot be listened on
//! ```
//!
//! It runs on a thread and a runtime of its own: however much anybody asks, it costs one core at most, and the owner's
//! tasks never wait for its.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_kube::apiserver::dial::Register;
use nodelb_kube::clock::Clock;
use tokio::sync::{mpsc, watch};

use crate::status::Health;

mod answer;
mod doors;
mod listen;
mod node;
mod service;

pub use listen::Bounds;

/// An owner that has stood still for so long makes a node unhealthy: what it is told is not applied. kube-proxy's limit, twice
/// its `syncPeriod`. What it has tried and the kernel refused is the matter of one service, not of the node.
const STUCK_AFTER: u64 = 60_000;

/// What is seen and who is told.
#[derive(Clone)]
pub struct LocalEntry {
    /// What answers are made of.
    pub view: View,
    /// To the owner.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// Where the node itself is asked; nowhere if empty.
    pub healthz_addresses: Vec<SocketAddr>,
    /// What clients may take up.
    pub bounds: Bounds,
    /// How long until an address that could not be listened on is tried again.
    pub retry: Duration,
    /// Marks a socket as nodelb's own.
    pub register: Register,
}

/// Starts it all on a thread of its own, until `stop`.
///
/// # Errors
/// When there can be no thread.
pub fn start(entry: LocalEntry, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
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

/// Listens and answers for ever.
pub async fn run(entry: LocalEntry) {
    let places = listen::Places::new(entry.bounds);
    tokio::join!(node::run(entry.clone(), places.clone()), service::run(entry, places));
}

/// What answers are made of.
#[derive(Clone)]
pub struct View {
    /// What the owner publishes.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Whether the owner lives.
    pub health: watch::Receiver<Arc<Health>>,
    /// The time.
    pub clock: Clock,
}

/// How this node does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// Whether connections are translated, and what is told is applied. Never whether an apiserver can be reached, and never
    /// how a single service stands.
    is_healthy: bool,
    /// When something was last applied.
    updated: SystemTime,
    now: SystemTime,
}

impl View {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    fn standing(&self, snapshot: &Snapshot) -> Standing {
        let (moment, now) = (self.clock.now(), SystemTime::now());
        let age = Duration::from_millis(moment.0.saturating_sub(snapshot.at.0));
        let is_alive = moment.0.saturating_sub(self.health.borrow().beat.0) < STUCK_AFTER;
        Standing {
            is_healthy: is_alive && serves(snapshot),
            updated: now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
            now,
        }
    }
}

/// Whether everything is known that the cluster has, or at least something is served from before.
fn serves(snapshot: &Snapshot) -> bool {
    snapshot.facts().is_synced(Source::Kubernetes) || snapshot.serves_anything()
}

#[cfg(test)]
#[path = "tests/lb_health.rs"]
mod tests;

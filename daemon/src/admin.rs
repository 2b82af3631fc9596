//! The admin API: what nodelb knows, over read-only HTTP on loopback. Owns the listeners' life and the form of every
//! answer; every fact is read from the values in [`AdminState`], which others publish. Knows neither the sources nor
//! the datapath.
//!
//! A request is guarded ([`guard`]), routed and parsed ([`routes`], [`query`]), answered ([`answer`]) with a
//! [`table::Page`] of known columns ([`shape`]; `tables`, `sources`, `apiservers`, `maps`, `health`) and rendered as text
//! or JSON ([`table`]). Metrics have a form of their own (`metrics`).

use std::sync::{Arc, Mutex};

use nodelb_core::datapath::Limits;
use nodelb_core::explain::rows::Difference;
use nodelb_core::history::History;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::Content;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::connections::{Ledger, ReadCount};
use crate::drift::DriftReport;
use crate::latency::Latencies;
use crate::moves::MovesReport;
use crate::rounds::Rounds;

pub mod age;
mod answer;
pub mod apiservers;
pub mod diff;
#[cfg(test)]
mod fixture;
mod follow;
mod guard;
pub mod health;
pub mod history;
pub mod maps;
pub mod metrics;
mod openapi;
mod query;
mod routes;
mod server;
mod settings;
pub mod shape;
pub mod socket;
pub mod sources;
mod status;
pub mod table;
pub mod tables;
mod trace;

pub use apiservers::PoolReport;
pub use health::{Check, Health, Unopened};
pub use server::Listener;
pub(crate) use server::http1;
pub use sources::{SourceReport, SourceState};

pub use crate::checks::CheckReport;

/// Reads the maps back from whatever holds them; may block. The error says what could not be read.
pub type ReadMaps = Arc<dyn Fn() -> Result<Content, String> + Send + Sync>;

/// Tells what is wrong with each hook's link now; may block. Nothing, usually.
pub type ReadLinks = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Tells where the table differs from what an apiserver says now, of one service or of all; may block for seconds.
pub type AskLive = Arc<dyn Fn(Option<&ServiceName>) -> Vec<Difference> + Send + Sync>;

/// Counts the clients in the map `affinity`; `None` where it cannot be read, or there is none.
pub type ReadClients = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

/// How many slots are in use or rest before they are used again; `None` where nobody says.
pub type ReadSlots = Arc<dyn Fn(Moment) -> Option<usize> + Send + Sync>;

/// What the kernel counts, and what was made of it so far.
#[derive(Clone)]
pub struct Connections {
    /// The kernel's counts.
    pub read: ReadCount,
    /// The series made of them. Whoever asks for the metrics brings it up to date.
    pub ledger: Arc<Mutex<Ledger>>,
}

/// What can be asked of the kernel and of an apiserver beside the maps.
#[derive(Clone)]
pub struct Reality {
    /// The hooks.
    pub links: ReadLinks,
    /// What somebody else did to maps and links, and what was put right.
    pub drift: watch::Receiver<Arc<DriftReport>>,
    /// Whether the owner writes to the maps just now.
    pub rounds: Rounds,
    /// An apiserver; `None` where no Kubernetes is configured.
    pub live: Option<AskLive>,
    /// How many connections each service had; `None` where nothing is counted.
    pub connections: Option<Connections>,
    /// How many clients with session affinity the kernel remembers.
    pub clients: ReadClients,
    /// How many slots are not to be had.
    pub slots: ReadSlots,
}

impl Default for Reality {
    fn default() -> Self {
        Self {
            links: Arc::new(Vec::new),
            drift: watch::channel(Arc::default()).1,
            rounds: Rounds::default(),
            live: None,
            connections: None,
            clients: Arc::new(|| None),
            slots: Arc::new(|_| None),
        }
    }
}

/// Everything the API can tell, as others publish it.
#[derive(Clone)]
pub struct AdminState {
    /// The table and the maps, from the reconcile loop.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The sources, from themselves.
    pub sources: Vec<watch::Receiver<Arc<Vec<SourceReport>>>>,
    /// The apiservers, from the supervisor; the default where no Kubernetes is configured.
    pub apiservers: watch::Receiver<Arc<PoolReport>>,
    /// The health checks, from the checker.
    pub checks: watch::Receiver<Arc<CheckReport>>,
    /// Health, from the reconcile loop.
    pub health: watch::Receiver<Arc<Health>>,
    /// Sockets that moved on; `None` where nothing sees to it.
    pub moves: Option<watch::Receiver<Arc<MovesReport>>>,
    /// What happened, from the recorder.
    pub history: watch::Receiver<Arc<History>>,
    /// How long changes and rounds take; `None` where nothing observes it.
    pub latencies: Option<Latencies>,
    /// What the kernel holds now.
    pub maps: ReadMaps,
    /// What else there is to compare with it.
    pub reality: Reality,
    /// What it has of what nodelb uses, in a line; `None` where the datapath is memory.
    pub kernel: Option<String>,
    /// How much it can hold.
    pub limits: Limits,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
    /// Addresses of `admin.listen` that could not be opened.
    pub unopened: watch::Receiver<Arc<Vec<Unopened>>>,
    /// What time it is.
    pub clock: Arc<dyn Fn() -> Now + Send + Sync>,
}

/// The time, on the two clocks that rows say `since` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The reconcile loop's clock: frontends, health.
    pub moment: Moment,
    /// Seconds since 1970: sources.
    pub unix: u64,
}

/// Serves the API on every listener that comes until `shutdown` resolves.
pub async fn serve(listeners: mpsc::Receiver<Listener>, state: AdminState, shutdown: impl Future<Output = ()>) {
    server::serve(listeners, state, server::Bounds::default(), shutdown).await;
}

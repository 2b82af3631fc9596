//! What the API can tell: everything that others publish, gathered by `run`.

use std::sync::Arc;

use nodelb_core::datapath::Limits;
use nodelb_core::explain::rows::Difference;
use nodelb_core::history::History;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_kube::apiserver::pool::PoolReport;
use tokio::sync::watch;

use crate::checks::CheckReport;
use crate::config::Config;
use crate::connections::Connections;
use crate::drift::{DriftReport, ReadMaps};
use crate::latency::Latencies;
use crate::moves::MovesReport;
use crate::rounds::Rounds;
use crate::status::{Check, Health, Unopened};

/// Tells what is wrong with each hook's link now; may block. Nothing, usually.
pub type ReadLinks = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Tells where the table differs from what an apiserver says now, of one service or of all; may block for seconds.
pub type AskLive = Arc<dyn Fn(Option<&ServiceName>) -> Vec<Difference> + Send + Sync>;

/// Counts the clients in the map `affinity`; `None` where it cannot be read, or there is none.
pub type ReadClients = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

/// How many slots are in use or rest before they are used again; `None` where nobody says.
pub type ReadSlots = Arc<dyn Fn(Moment) -> Option<usize> + Send + Sync>;

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

/// Everything readiness hangs on, and what should be known about it.
pub(super) fn readiness(state: &AdminState, now: Now) -> Vec<Check> {
    let mut checks = latest(&state.health).ready(now.moment);
    checks.extend(latest(&state.unopened).iter().map(Unopened::check));
    checks
}

/// The value last published, taken out at once: a reader never keeps the publisher waiting.
pub(super) fn latest<T>(published: &watch::Receiver<Arc<T>>) -> Arc<T> {
    Arc::clone(&published.borrow())
}

/// The rows of every source, in the order of the sources.
pub(super) fn all_sources(state: &AdminState) -> Vec<SourceReport> {
    state.sources.iter().flat_map(|rows| rows.borrow().to_vec()).collect()
}

//! The state behind the API: all values that other modules publish. `run` collects them.

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
use crate::devices::report::DevicesReport;
use crate::latency::Latencies;
use crate::reconcile::drift::{DriftReport, ReadMaps};
use crate::reconcile::rounds::Rounds;
use crate::sockets::stale::StaleSocketsReport;
use crate::status::{Check, Health, Unopened};

/// Returns the problem of each hook's link, usually none. May block.
pub type ReadLinks = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Returns the differences between the table and an apiserver, for one service or for all. May block for seconds.
pub type AskLive = Arc<dyn Fn(Option<&ServiceName>) -> Vec<Difference> + Send + Sync>;

/// Returns the number of clients in the map `affinity`; `None` if the map cannot be read or does not exist.
pub type ReadClients = Arc<dyn Fn() -> Option<usize> + Send + Sync>;

/// Returns the number of slots that are in use or at rest; `None` if it is not known.
pub type ReadSlots = Arc<dyn Fn(Moment) -> Option<usize> + Send + Sync>;

/// What can be read from the kernel and from an apiserver, apart from the maps.
#[derive(Clone)]
pub struct Reality {
    /// The links of the hooks.
    pub links: ReadLinks,
    /// Changes to maps and links by other programs, and the repairs.
    pub drift: watch::Receiver<Arc<DriftReport>>,
    /// Whether the owner task is writing to the maps.
    pub rounds: Rounds,
    /// A comparison with an apiserver; `None` if Kubernetes is not configured.
    pub live: Option<AskLive>,
    /// The number of connections per service; `None` if they are not counted.
    pub connections: Option<Connections>,
    /// The number of clients with session affinity in the kernel.
    pub clients: ReadClients,
    /// The number of slots that cannot be assigned.
    pub slots: ReadSlots,
    /// The network devices, and whether packets are translated there; the default if `packets.mode` is "off".
    pub devices: watch::Receiver<Arc<DevicesReport>>,
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
            devices: watch::channel(Arc::default()).1,
        }
    }
}

/// Everything that the API serves, as other modules publish it.
#[derive(Clone)]
pub struct AdminState {
    /// The table and the maps, from the reconcile loop.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The reports of the sources.
    pub sources: Vec<watch::Receiver<Arc<Vec<SourceReport>>>>,
    /// The apiservers, from the supervisor; the default if Kubernetes is not configured.
    pub apiservers: watch::Receiver<Arc<PoolReport>>,
    /// The health checks, from the checker.
    pub checks: watch::Receiver<Arc<CheckReport>>,
    /// Health, from the reconcile loop.
    pub health: watch::Receiver<Arc<Health>>,
    /// Sockets that moved to another backend; `None` if no task stale_sockets them.
    pub stale_sockets: Option<watch::Receiver<Arc<StaleSocketsReport>>>,
    /// The history, from the recorder.
    pub history: watch::Receiver<Arc<History>>,
    /// The durations of changes and rounds; `None` if they are not measured.
    pub latencies: Option<Latencies>,
    /// Reads the present contents of the maps.
    pub maps: ReadMaps,
    /// Further sources to compare the maps with.
    pub reality: Reality,
    /// The features of the kernel that nodelb uses, in one line; `None` with the memory datapath.
    pub kernel: Option<String>,
    /// The maximum sizes of the maps.
    pub limits: Limits,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
    /// Addresses of `admin.listen` that could not be opened.
    pub unopened: watch::Receiver<Arc<Vec<Unopened>>>,
    /// Returns the current time.
    pub clock: Arc<dyn Fn() -> Now + Send + Sync>,
}

/// The time on the two clocks that ages in rows refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The clock of the reconcile loop, for frontends and health.
    pub moment: Moment,
    /// Seconds since 1970, for sources.
    pub unix: u64,
}

/// Returns all checks that readiness depends on, and notes that do not affect it.
pub(super) fn readiness(state: &AdminState, now: Now) -> Vec<Check> {
    let mut checks = latest(&state.health).ready(now.moment);
    checks.extend(latest(&state.unopened).iter().map(Unopened::check));
    checks
}

/// Returns the last published value without holding the lock: a reader never delays the publisher.
pub(super) fn latest<T>(published: &watch::Receiver<Arc<T>>) -> Arc<T> {
    Arc::clone(&published.borrow())
}

/// Returns the rows of all sources, in the order of the sources.
pub(super) fn all_sources(state: &AdminState) -> Vec<SourceReport> {
    state.sources.iter().flat_map(|rows| rows.borrow().to_vec()).collect()
}

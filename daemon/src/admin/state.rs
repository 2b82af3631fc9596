//! The state behind the API: the values that other modules publish, one part for each of them. `run` collects the
//! parts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nodelb_core::history::History;
use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_host::clock::{Clock, unix_millis};
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::explain::reports;
use nodelb_report::explain::summary::Summary;
use nodelb_report::problems::{Earlier, Reloads};
use nodelb_report::time::{Clocks, Time};
use nodelb_sources::checks::CheckReport;
use nodelb_sources::dns::DnsReport;
use nodelb_sources::drains;
use nodelb_sources::files::FileReports;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::datapath::DatapathReader;
use crate::devices::{self, report::DevicesReport};
use crate::sockets::stale::StaleSocketsReport;
use crate::status::{Check, Health, Unopened};
use crate::{kubernetes, reconcile, recorder};

#[derive(Clone)]
pub struct AdminState {
    /// The owner task: the table, and the health of the loop.
    pub owner: reconcile::OwnerOutputs,
    pub datapath: Arc<dyn DatapathReader>,
    /// The file source: a row for the services directory, and one for each file.
    pub files: watch::Receiver<Arc<FileReports>>,
    /// The resolver of backends that have names.
    pub dns: watch::Receiver<Arc<DnsReport>>,
    /// The task that keeps the drains.
    pub drains: mpsc::Sender<drains::Request>,
    /// The checker: the health checks of backends.
    pub checks: watch::Receiver<Arc<CheckReport>>,
    /// The Kubernetes source; `None` if it is not configured.
    pub kubernetes: Option<kubernetes::KubernetesOutputs>,
    /// The recorder: the history, and the durations of changes.
    pub recorder: recorder::RecorderOutputs,
    /// The task that ends stale sockets; `None` if it does not run.
    pub stale_sockets: Option<watch::Receiver<Arc<StaleSocketsReport>>>,
    /// The packet path; `None` if packets of clients outside the node are not translated.
    pub packets: Option<devices::DeviceOutputs>,
    pub config: watch::Receiver<Arc<Config>>,
    pub reloads: watch::Receiver<Arc<Reloads>>,
    /// The addresses of `admin.listen` that could not be opened.
    pub unopened: watch::Receiver<Arc<Vec<Unopened>>>,
    /// The summary of the last snapshot that a request needed.
    pub summaries: Arc<Summaries>,
    /// The maps that are nearly full, and since when.
    pub nearly_full: Arc<Mutex<BTreeMap<&'static str, Time>>>,
    /// The problems of the previous run that have not ended since.
    pub earlier: Arc<Mutex<Earlier>>,
    pub clock: Arc<dyn Fn() -> Clocks + Send + Sync>,
    pub started: Moment,
}

/// The summary of the last snapshot that a request needed. Requests for the same snapshot share it.
#[derive(Debug, Default)]
pub struct Summaries(Mutex<(Weak<Snapshot>, Arc<Summary>)>);

impl Summaries {
    /// The summary of this snapshot. May take long; another request for the same snapshot waits for it.
    pub(super) fn of(&self, snapshot: &Arc<Snapshot>) -> Arc<Summary> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !Weak::ptr_eq(&last.0, &Arc::downgrade(snapshot)) {
            *last = (Arc::downgrade(snapshot), Arc::new(Summary::new(snapshot)));
        }
        Arc::clone(&last.1)
    }
}

/// The current time, to which ages in rows refer; `clock` is that of the reconcile loop.
pub fn now(clock: Clock) -> Clocks {
    Clocks { moment: clock.now(), time: Time(unix_millis()) }
}

impl AdminState {
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        latest(&self.owner.snapshot)
    }

    /// The health of the loop and of the datapath.
    pub(super) fn health(&self) -> Arc<Health> {
        latest(&self.owner.health)
    }

    pub(super) fn history(&self) -> Arc<History> {
        latest(&self.recorder.history)
    }

    /// The apiservers; an empty report if Kubernetes is not configured.
    pub(super) fn apiservers(&self) -> Arc<PoolReport> {
        self.kubernetes.as_ref().map(|kubernetes| latest(&kubernetes.apiservers)).unwrap_or_default()
    }

    /// The network devices; an empty report without packets.
    pub(super) fn devices(&self) -> Arc<DevicesReport> {
        self.packets.as_ref().map(|packets| latest(&packets.devices)).unwrap_or_default()
    }

    /// The rows of all sources: files first, then their DNS names, then Kubernetes; then those that are kept without being
    /// configured.
    pub(super) fn sources(&self, now: Clocks) -> Vec<Arc<SourceReport>> {
        let mut rows: Vec<Arc<SourceReport>> = self.files.borrow().rows().cloned().collect();
        let others = self.dns.borrow().source.clone().into_iter();
        let others = others.chain(self.kubernetes.iter().flat_map(|kubernetes| kubernetes.sources.borrow().to_vec()));
        rows.extend(others.map(Arc::new));
        let started = now.time_of(self.started);
        rows.extend(reports::absent_sources(&self.snapshot(), &self.history(), started).map(Arc::new));
        rows
    }

    /// All checks that readiness depends on, and notes that do not affect it.
    pub(super) fn readiness(&self, now: Clocks) -> Vec<Check> {
        let mut checks = self.health().ready(now.moment);
        checks.extend(self.packets.as_ref().map(|packets| latest(&packets.devices).check()));
        checks.extend(latest(&self.unopened).iter().map(Unopened::check));
        checks
    }
}

/// Returns the last published value without holding the lock: a reader never delays the publisher.
pub(super) fn latest<T>(published: &watch::Receiver<Arc<T>>) -> Arc<T> {
    Arc::clone(&published.borrow())
}

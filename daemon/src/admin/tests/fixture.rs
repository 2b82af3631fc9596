//! The initial state of tests: everything that the API serves, before any module has published a value.

use std::sync::Arc;

use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::time::Clocks;
use nodelb_sources::files::FileReports;
use tokio::sync::watch;

use super::state::AdminState;
use crate::datapath::fake::FakeDatapath;
use crate::kubernetes;
use crate::latency::Latencies;
use crate::reconcile::{self, rounds};
use crate::recorder;
use crate::status::Health;

/// A channel that always has this value.
pub(super) fn always<T>(value: T) -> watch::Receiver<Arc<T>> {
    watch::channel(Arc::new(value)).1
}

pub(super) fn unsynced() -> AdminState {
    AdminState {
        owner: owner(always(Snapshot::default())),
        datapath: Arc::new(FakeDatapath::default()),
        files: always(FileReports::default()),
        dns: watch::channel(Arc::default()).1,
        drains: tokio::sync::mpsc::channel(1).0,
        checks: watch::channel(Arc::default()).1,
        kubernetes: None,
        recorder: recorder::RecorderOutputs {
            history: watch::channel(Arc::default()).1,
            latencies: Latencies::default(),
        },
        stale_sockets: None,
        packets: None,
        reloads: watch::channel(Arc::default()).1,
        unopened: watch::channel(Arc::default()).1,
        config: watch::channel(Arc::default()).1,
        summaries: Arc::default(),
        nearly_full: Arc::default(),
        earlier: Arc::default(),
        clock: Arc::new(Clocks::default),
        started: Moment(0),
    }
}

/// An owner task with these snapshots, which has reported nothing else.
pub(super) fn owner(snapshot: watch::Receiver<Arc<Snapshot>>) -> reconcile::OwnerOutputs {
    let (health, drift) = (always(Health::unchecked(Moment(0))), watch::channel(Arc::default()).1);
    reconcile::OwnerOutputs { snapshot, health, rounds: rounds::Rounds::default(), drift }
}

/// A Kubernetes source with this report about the apiservers, and with nothing else.
pub(super) fn kubernetes(report: PoolReport) -> kubernetes::KubernetesOutputs {
    let live: kubernetes::AskLive = Arc::new(|_| Ok(Vec::new()));
    let accepts = tokio::sync::mpsc::channel(1).0;
    kubernetes::KubernetesOutputs { sources: always(Vec::new()), apiservers: always(report), live, accepts }
}

//! Starts the tasks that read the services directory: the file source, and the checker between it and the owner.

use std::path::PathBuf;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_kube::apiserver::connection::connect::Register;
use nodelb_kube::clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::stopped;
use crate::checks::{self, CheckReport, Checker};
use crate::config::Config;
use crate::files;
use crate::reconcile::QUEUE;

/// The parts of the daemon that they use.
pub(super) struct Connections {
    /// To the owner.
    pub(super) changes: mpsc::Sender<Vec<Change>>,
    /// Marks a socket as nodelb's own.
    pub(super) register: Register,
    /// The owner's snapshots, which contain the node's addresses.
    pub(super) snapshot: watch::Receiver<Arc<Snapshot>>,
    pub(super) clock: Clock,
    /// Number of service ports in the kernel at the start.
    pub(super) expected: usize,
}

/// Their reports and figures, and the task to wait for at the end.
pub(super) struct Files {
    pub(super) sources: watch::Receiver<Arc<Vec<SourceReport>>>,
    pub(super) checks: watch::Receiver<Arc<CheckReport>>,
    pub(super) directory: watch::Sender<PathBuf>,
    pub(super) checker: JoinHandle<()>,
}

/// Starts both tasks, which run until `stop`.
pub(super) fn start(config: &Config, connections: Connections, stop: watch::Receiver<bool>) -> Files {
    let Connections { changes, register, snapshot, clock, expected } = connections;
    let (directory, directory_out) = watch::channel(config.files.directory.clone());
    let (reports_in, sources) = watch::channel(Arc::new(Vec::new()));
    let (checks_in, checks) = watch::channel(Arc::new(CheckReport::default()));
    let (read_in, read) = mpsc::channel(QUEUE);
    let source = files::FileSource { directory: directory_out, changes: read_in, reports: reports_in };
    tokio::spawn(files::run(source, stopped(stop.clone())));
    let checker = Checker {
        incoming: read,
        changes,
        reports: checks_in,
        register,
        is_local: Arc::new(move |addr| is_local(snapshot.borrow().facts().node(), addr)),
        directory: config.state.directory.clone(),
        continues: expected > 0,
        clock,
        seed: std::process::id().into(),
        sockets: checks::room_for_sockets(),
        timeouts: checks::CheckTimeouts::default(),
    };
    let checker = tokio::spawn(checks::run(checker, stopped(stop)));
    Files { sources, checks, directory, checker }
}

/// Whether the address belongs to the node. True for every address while the node's addresses are unknown.
fn is_local(node: &NodeFacts, addr: Addr) -> bool {
    addr.is_loopback() || node.addresses.is_empty() || node.addresses.contains(&addr)
}

#[cfg(test)]
#[path = "tests/files.rs"]
mod tests;

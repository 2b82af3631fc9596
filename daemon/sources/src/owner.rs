//! The owner task as other tasks use it.

use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use tokio::sync::{mpsc, watch};

/// The handle of tasks that send changes: sources and observers.
#[derive(Clone, Debug)]
pub struct OwnerHandle {
    /// Changes for the next round. A batch is applied as a whole.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The snapshot after each round.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The clock of all times in snapshots.
    pub clock: Clock,
}

impl OwnerHandle {
    /// Sends the changes, if there are any. False if the owner task has ended, because the daemon ends.
    pub(crate) async fn send(&self, changes: Vec<Change>) -> bool {
        changes.is_empty() || self.changes.send(changes).await.is_ok()
    }
}

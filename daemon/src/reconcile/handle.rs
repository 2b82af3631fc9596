//! The owner task as other tasks use it: they send it changes, and read what it publishes.

use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::snapshot::Snapshot;
use nodelb_kube::clock::Clock;
use tokio::sync::{mpsc, watch};

use super::drift::DriftReport;
use super::rounds::Rounds;
use crate::status::Health;

/// The handle of tasks that send changes: sources and observers.
#[derive(Clone, Debug)]
pub struct OwnerHandle {
    /// Changes for the next round. A batch is applied as a whole.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The snapshot after each round.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The clock of all times in snapshots.
    pub clock: Clock,
    /// The number of service ports in the maps before the first round.
    pub ports_at_start: usize,
}

/// What the owner publishes, for readers.
#[derive(Clone, Debug)]
pub struct Published {
    /// The snapshot after each round.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The health of the loop and of the datapath.
    pub health: watch::Receiver<Arc<Health>>,
    /// Whether a round is in progress.
    pub rounds: Rounds,
    /// Changes of maps and links by other programs, and the repairs.
    pub drift: watch::Receiver<Arc<DriftReport>>,
}

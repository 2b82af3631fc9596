//! What the owner task publishes for other tasks.

use std::sync::Arc;

use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::stale_generation::StaleGeneration;
use nodelb_kube::source::Followed;
use tokio::sync::watch;

use super::drift::DriftReport;
use super::rounds::Rounds;
use crate::status::Health;

/// The parts of snapshots that tasks wait for. They rarely change, and a task that waits for every snapshot makes the
/// owner wake a thread for each change. Published after the snapshot.
#[derive(Clone, Debug)]
pub struct Marks {
    /// For the Kubernetes source.
    pub followed: watch::Receiver<Followed>,
    /// Whether clients outside the node can connect to an address.
    pub is_outside_served: watch::Receiver<bool>,
    /// Whether every source is synced, and the changes that may make UDP sockets stale.
    pub stale_udp: watch::Receiver<(bool, u64)>,
    /// The same for all sockets.
    pub stale: watch::Receiver<(bool, StaleGeneration)>,
}

#[derive(Debug, Default)]
pub(crate) struct Marker {
    followed: watch::Sender<Followed>,
    is_outside_served: watch::Sender<bool>,
    stale_udp: watch::Sender<(bool, u64)>,
    stale: watch::Sender<(bool, StaleGeneration)>,
}

impl Marker {
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            followed: self.followed.subscribe(),
            is_outside_served: self.is_outside_served.subscribe(),
            stale_udp: self.stale_udp.subscribe(),
            stale: self.stale.subscribe(),
        }
    }

    pub(crate) fn publish(&self, snapshot: &Snapshot) {
        Followed::publish(snapshot, &self.followed);
        publish(&self.is_outside_served, !snapshot.realised.outside.is_empty());
        publish(&self.stale_udp, (snapshot.is_ready, snapshot.stale_generation.udp));
        publish(&self.stale, (snapshot.is_ready, snapshot.stale_generation));
    }
}

/// Publishes a value unless it is the published one.
pub(crate) fn publish<T: PartialEq>(to: &watch::Sender<T>, value: T) {
    to.send_if_modified(|known| {
        let is_new = *known != value;
        *known = value;
        is_new
    });
}

/// What the owner publishes, for readers.
#[derive(Clone, Debug)]
pub struct OwnerOutputs {
    /// The snapshot after each round.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The health of the loop and of the datapath.
    pub health: watch::Receiver<Arc<Health>>,
    /// Whether a round is in progress.
    pub rounds: Rounds,
    /// Changes of maps and links by other programs, and the repairs.
    pub drift: watch::Receiver<Arc<DriftReport>>,
}

#[cfg(test)]
#[path = "tests/handle.rs"]
mod tests;

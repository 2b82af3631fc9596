//! What the source follows of the snapshots.

use std::sync::Arc;

use nodelb_core::model::service::Slice;
use nodelb_core::snapshot::Snapshot;
use tokio::sync::watch;

/// What the owner task has published that the source acts on. It rarely changes, so that the source does not wake for each
/// snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The name of this node; empty as long as the owner task does not know it.
    pub(super) node: Arc<str>,
    /// The slices of `default/kubernetes`.
    pub(super) apiserver_slices: Vec<Arc<Slice>>,
}

impl Followed {
    /// Publishes what the snapshot contains, if it differs.
    pub fn publish(snapshot: &Snapshot, to: &watch::Sender<Self>) {
        let facts = &snapshot.facts;
        to.send_if_modified(|known| {
            let is_same = known.node == facts.node().name && known.apiserver_slices.iter().eq(facts.apiserver_slices());
            if !is_same {
                let node = Arc::clone(&facts.node().name);
                *known = Self { node, apiserver_slices: facts.apiserver_slices().cloned().collect() };
            }
            !is_same
        });
    }
}

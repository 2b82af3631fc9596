//! A source that was there before and that the configuration does not name: what the state directory knows of it, and what
//! is done with that.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::messages;
use nodelb_core::model::service::Source;
use nodelb_kube::source::{Memory, remember};
use nodelb_kube::state;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{info, warn};

use super::kubernetes::{SAVE_EVERY, STATE_PATIENCE};
use crate::config::Config;

/// The sources that the state directory says were there before. Where it does not answer in time, they count as there:
/// nothing is removed for that.
pub(super) async fn formerly(config: &Config, patience: Duration) -> BTreeSet<Source> {
    let mut was_there = config.is_kubernetes_unsaid();
    if was_there {
        let path = remember::path(&config.state.directory);
        was_there = is_there(patience, move || path.try_exists()).await;
    }
    was_there.then_some(Source::Kubernetes).into_iter().collect()
}

/// Whether the file is there; it counts as there while that is not known.
async fn is_there(patience: Duration, ask: impl FnOnce() -> io::Result<bool> + Send + 'static) -> bool {
    in_time(patience, ask).await.unwrap_or(true)
}

/// Runs what may block for ever in a thread of its own, and waits for it only so long.
async fn in_time<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    timeout(patience, state::aside(work)).await.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}

/// The sources that the operator has switched off.
pub(super) fn switched_off(config: &Config) -> BTreeSet<Source> {
    (!config.kubernetes.enabled).then_some(Source::Kubernetes).into_iter().collect()
}

/// Sends what the state directory knows of Kubernetes where the configuration does not say whether it is a source: its
/// services stay as last known, as if no apiserver could be reached. Where it is switched off, removes that.
pub(super) async fn recall(
    config: &Config,
    formerly: &BTreeSet<Source>,
    node: &str,
    changes: &mpsc::Sender<Vec<Change>>,
) {
    let directory = config.state.directory.clone();
    if !config.kubernetes.enabled {
        let forgotten = directory.clone();
        match in_time(STATE_PATIENCE, move || remember::forget(&forgotten)).await {
            Ok(false) => {}
            Ok(true) => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "kubernetes.enabled is false: what the state directory knew of Kubernetes is removed"
            ),
            Err(error) => warn!(
                message_id = %messages::STATE_UNWRITTEN,
                "kubernetes.enabled is false, but {} cannot be removed: {error}; remove it, or a later start without \
                 that key serves what is in it",
                remember::path(&directory).display()
            ),
        }
    }
    if formerly.is_empty() {
        return;
    }
    let memory = Memory { directory, cluster: None, save_every: SAVE_EVERY, patience: STATE_PATIENCE };
    let recalled = memory.recall(node).await;
    if !recalled.is_empty() {
        // An error means that the owner is gone, and so is the daemon.
        let _ = changes.send(recalled).await;
    }
}

#[cfg(test)]
#[path = "tests/absent.rs"]
mod tests;

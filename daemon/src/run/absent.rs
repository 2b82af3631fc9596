//! Handles a source that was in use before but is not in the configuration: reads its state from the state directory
//! and decides what happens with it.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::messages;
use nodelb_core::model::service::Source;
use nodelb_kube::source::{StateSettings, state_file};
use nodelb_kube::threads::run_within;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::kubernetes::{SAVE_EVERY, STATE_TIMEOUT};
use crate::config::Config;

/// The sources that were in use before according to the state directory. If it does not answer in time, all count as in
/// use: nothing is removed for that reason.
pub(super) async fn previous_sources(config: &Config, timeout: Duration) -> BTreeSet<Source> {
    let mut was_there = config.is_kubernetes_unsaid();
    if was_there {
        let path = state_file::path(&config.state.directory);
        was_there = is_there(timeout, move || path.try_exists()).await;
    }
    was_there.then_some(Source::Kubernetes).into_iter().collect()
}

/// Whether the file exists; if that cannot be found out in time, true.
async fn is_there(timeout: Duration, ask: impl FnOnce() -> io::Result<bool> + Send + 'static) -> bool {
    run_within(timeout, ask).await.unwrap_or(true)
}

/// The sources that the administrator has disabled.
pub(super) fn disabled_sources(config: &Config) -> BTreeSet<Source> {
    (!config.kubernetes.enabled).then_some(Source::Kubernetes).into_iter().collect()
}

/// Sends the stored state of Kubernetes if the configuration does not say whether it is a source: its services stay as
/// last known, as they do when no apiserver is reachable. If it is disabled, removes that state.
pub(super) async fn recall(
    config: &Config,
    previous_sources: &BTreeSet<Source>,
    node: &str,
    changes: &mpsc::Sender<Vec<Change>>,
) {
    let directory = config.state.directory.clone();
    if !config.kubernetes.enabled {
        let forgotten = directory.clone();
        match run_within(STATE_TIMEOUT, move || state_file::forget(&forgotten)).await {
            Ok(false) => {}
            Ok(true) => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "kubernetes.enabled is false: removed the saved Kubernetes state"
            ),
            Err(error) => warn!(
                message_id = %messages::STATE_UNWRITTEN,
                "kubernetes.enabled is false, but {} cannot be removed: {error}; remove it, otherwise a later start \
                 without that key serves its content",
                state_file::path(&directory).display()
            ),
        }
    }
    if previous_sources.is_empty() {
        return;
    }
    let state = StateSettings { directory, cluster: None, save_every: SAVE_EVERY, timeout: STATE_TIMEOUT };
    let recalled = state.load(node).await;
    if !recalled.is_empty() {
        // Fails only if the owner has ended, and with it the daemon.
        let _ = changes.send(recalled).await;
    }
}

#[cfg(test)]
#[path = "tests/absent.rs"]
mod tests;

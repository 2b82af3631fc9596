//! Restores of the cluster that the watchers have found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::apiserver::session::Session;

/// The latest restore that a watcher has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    count: u64,
    /// The number of the session that it was found over, and the generation of its link.
    over: (u64, u64),
}

/// The view of one watcher on the shared restores. A clone belongs to the same watcher.
#[derive(Clone, Debug)]
pub struct Restores {
    found: watch::Sender<Found>,
    /// The number of restores that this watcher has handled.
    seen: Arc<AtomicU64>,
}

impl Default for Restores {
    fn default() -> Self {
        Self { found: watch::Sender::new(Found::default()), seen: Arc::default() }
    }
}

impl Restores {
    pub(super) fn of_new_watcher(&self) -> Self {
        let new = Self { found: self.found.clone(), seen: Arc::default() };
        new.mark_handled();
        new
    }

    /// Reports a restore to the other watchers, unless another watcher has found it over the same connection.
    pub(super) fn report(&self, session: &Session) {
        let over = (session.number, session.link.generation());
        self.found.send_if_modified(|found| {
            let is_new = found.over != over;
            if is_new {
                *found = Found { count: found.count + 1, over };
            }
            is_new
        });
        self.mark_handled();
    }

    pub(super) fn mark_handled(&self) {
        self.seen.store(self.found.borrow().count, Ordering::Relaxed);
    }

    /// Waits until another watcher finds a restore that this watcher has not handled.
    pub(super) async fn found_by_another(self) {
        let mut found = self.found.subscribe();
        let is_new = |found: &Found| found.count != self.seen.load(Ordering::Relaxed);
        if found.wait_for(is_new).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

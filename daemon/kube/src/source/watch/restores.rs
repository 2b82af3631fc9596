//! That the cluster was restored, shared between the watchers: one etcd nearly always holds all kinds. Only the conclusion
//! is shared; the versions of two kinds are never compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::api::decode::Kind;
use crate::apiserver::session::Session;

/// Which restore a watcher has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Counts the restores that were found.
    count: u64,
    /// The kind whose watcher found it.
    by: Option<Kind>,
    /// The session, and the connection of its link, that showed it.
    over: (u64, u64),
}

/// What one watcher knows of the restores that all watchers share. A clone is for the same watcher.
#[derive(Clone, Debug)]
pub struct Restores {
    found: watch::Sender<Found>,
    /// How many restores this watcher has taken into account.
    seen: Arc<AtomicU64>,
}

impl Default for Restores {
    fn default() -> Self {
        Self { found: watch::Sender::new(Found::default()), seen: Arc::default() }
    }
}

impl Restores {
    /// The same for a watcher that begins now.
    pub(super) fn of_new_watcher(&self) -> Self {
        let new = Self { found: self.found.clone(), seen: Arc::default() };
        new.take_note();
        new
    }

    /// Lets the other watchers know of a restore, unless another one has found it over the same connection.
    pub(super) fn report(&self, by: Kind, session: &Session) {
        let over = (session.number, session.link.generation());
        self.found.send_if_modified(|found| {
            let is_new = found.over != over;
            if is_new {
                *found = Found { count: found.count + 1, by: Some(by), over };
            }
            is_new
        });
        self.take_note();
    }

    /// Counts every restore that was found so far as taken into account.
    pub(super) fn take_note(&self) {
        self.seen.store(self.found.borrow().count, Ordering::Relaxed);
    }

    /// Ready when the watcher of another kind has found a restore that this watcher has not taken into account.
    pub(super) async fn found_by_another(self, own: Kind) {
        let mut found = self.found.subscribe();
        let is_news = |found: &Found| found.count != self.seen.load(Ordering::Relaxed) && found.by != Some(own);
        if found.wait_for(is_news).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

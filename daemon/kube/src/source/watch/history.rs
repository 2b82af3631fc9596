//! Checks whether the versions that a watcher knows still belong to the cluster's history. One etcd nearly always
//! contains all kinds, therefore the watchers share the conclusion that the cluster was restored. Versions of different
//! kinds are never compared.

use nodelb_host::messages;
use tokio::time::Instant;
use tracing::{debug, info};

use super::state::{Behind, Watcher};
use crate::api::decode::{Kind, Version};
use crate::api::list_watch::current_version;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::endpoints::preflight;
use crate::apiserver::session::Session;

impl Watcher {
    /// Records the comparison with the session's first read, because later writes hide a restore from later reads.
    pub(super) fn compare(&mut self, session: &Session) {
        let behind = if session.revision >= self.newest.0 {
            Behind::No
        } else if self.grown_at < session.asked {
            Behind::Surely
        } else {
            Behind::Perhaps
        };
        self.behind = self.behind.max(behind);
    }

    pub(super) fn learn(&mut self, version: Version) {
        if version > self.newest {
            self.newest = version;
            self.grown_at = Instant::now();
        }
    }

    pub(super) fn forget_if_away_for_long(&mut self) {
        if self.received_at.elapsed() > self.timeouts.resume_within {
            self.version = None;
        }
    }

    /// Discards the version, so that everything is listed again and no earlier version counts.
    fn forget_history(&mut self) {
        self.version = None;
        self.newest = Version::default();
        self.is_rewound = true;
        (self.is_unsure, self.behind) = (false, Behind::No);
    }

    /// Accepts a restore that another watcher has found. Only the watcher that finds a restore logs it.
    pub(super) fn believe_restore(&mut self) {
        self.restores.mark_handled();
        self.version = None;
        self.is_rewound = true;
        self.is_unsure = true;
    }

    /// Checks whether the known versions still belong to this cluster's history. A consistent list of the same kind,
    /// sent after a version was received, never has an older version unless the cluster was restored. An older version
    /// causes a list; if a second request confirms it, it is also logged.
    pub(super) async fn check_history(&mut self, session: &Session) -> Result<(), LinkError> {
        self.forget_if_away_for_long();
        let is_service = self.query.kind == Kind::Service;
        let first = if is_service && self.behind == Behind::Surely {
            // By the second request, the cluster may have passed that version.
            Version(session.revision.min(self.newest.0.saturating_sub(1)))
        } else {
            self.current_version(session).await?
        };
        if self.newest <= first {
            return self.settle_doubt(session, first).await;
        }
        let newest = self.newest;
        // Before the second request, because the latter may be interrupted.
        self.forget_history();
        self.restores.report(session);
        let kind = self.query.kind.resource();
        match self.current_version(session).await {
            Ok(second) if second < newest => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "{kind}: the cluster was restored from a backup (resourceVersion {} after {}); listing all objects again",
                second.0, newest.0
            ),
            // The cluster may have been restored and have passed that version since. An unnecessary list is better than
            // a missed change.
            second => debug!("{kind}: resourceVersion {} after {}, then {second:?}; listing again", first.0, newest.0),
        }
        Ok(())
    }

    /// Handles a session with an older first read if the kind itself is at `now`, which is not older.
    async fn settle_doubt(&mut self, session: &Session, now: Version) -> Result<(), LinkError> {
        let is_service = self.query.kind == Kind::Service;
        let is_doubtful = match self.behind {
            Behind::No => false,
            // This proves nothing. An unnecessary list is better than a missed change.
            Behind::Perhaps => is_service,
            // If one etcd contains both kinds, a later read of Services never has an older version than this kind. If
            // it does, the kinds have separate histories, and the first read is irrelevant for this kind.
            Behind::Surely => preflight::ask(&session.link, self.timeouts.timeout).await?.0 >= now.0,
        };
        if is_doubtful {
            debug!("{}: the cluster may have been restored; listing again", self.query.kind.resource());
            self.forget_history();
        }
        self.behind = Behind::No;
        Ok(())
    }

    async fn current_version(&self, session: &Session) -> Result<Version, LinkError> {
        current_version(&session.link, self.query.clone(), self.list_timeouts()).await
    }
}

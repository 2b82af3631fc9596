//! Checks whether the versions that a watcher knows still belong to the cluster's history.

use nodelb_core::messages;
use tokio::time::Instant;
use tracing::{debug, info};

use super::Watcher;
use crate::api::decode::{Kind, Version};
use crate::api::page::Page;
use crate::apiserver::error::LinkError;
use crate::apiserver::preflight;
use crate::apiserver::session::Session;

/// The comparison of a session's first read, which is about Services, with the newest version that the watcher knew
/// when it began to use the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behind {
    /// The session's version is not older.
    #[default]
    No,
    /// The session's version is older, but the watcher may have received the newer version after the read was sent.
    Perhaps,
    /// The session's version is older than a version that the watcher knew before the read was sent. For Services this
    /// proves a restore; for other kinds only if one etcd contains both kinds.
    Surely,
}

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

    /// Records a received version.
    pub(super) fn learn(&mut self, version: Version) {
        if version > self.newest {
            self.newest = version;
            self.grown_at = Instant::now();
        }
    }

    pub(super) fn forget_if_away_for_long(&mut self) {
        if self.heard_at.elapsed() > self.timeouts.resume_within {
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
        self.restores.take_note();
        self.version = None;
        self.is_rewound = true;
        self.is_unsure = true;
    }

    /// Checks whether the known versions still belong to this cluster's history. A consistent list of the same kind,
    /// sent after a version was received, never has an older version unless the cluster was restored. An older version
    /// causes a list; if a second request confirms it, it is also logged.
    pub(super) async fn look_at_history(&mut self, session: &Session) -> Result<(), LinkError> {
        self.forget_if_away_for_long();
        let is_service = self.query.kind == Kind::Service;
        let first = if is_service && self.behind == Behind::Surely {
            // By the second request, the cluster may have passed that version.
            Version(session.revision.min(self.newest.0.saturating_sub(1)))
        } else {
            self.ask_version(session).await?
        };
        if self.newest <= first {
            return self.settle_doubt(session, first).await;
        }
        let newest = self.newest;
        // Before the second request, because the latter may be interrupted.
        self.forget_history();
        self.restores.report(self.query.kind, session);
        let kind = self.query.kind.resource();
        match self.ask_version(session).await {
            Ok(second) if second < newest => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "{kind}: the cluster is at resourceVersion {} and was at {} before: it was restored, so everything is listed again",
                second.0, newest.0
            ),
            // The cluster may have been restored and have passed that version since. An unnecessary list is better than
            // a missed change.
            second => debug!("{kind}: at {} where {} was heard, then {second:?}: listed again", first.0, newest.0),
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
            debug!("{}: the cluster may have been restored: listed again", self.query.kind.resource());
            self.forget_history();
        }
        self.behind = Behind::No;
        Ok(())
    }

    /// The current resourceVersion of this kind, from a consistent list with a limit of one object.
    async fn ask_version(&mut self, session: &Session) -> Result<Version, LinkError> {
        let answer = session.link.get(&self.query.page("", 1)?, self.timeouts.timeout).await?;
        let mut page = Page::new(answer.into_body());
        while page.more(&mut self.decoder, self.timeouts.list_silence).await?.is_some() {}
        page.end().map(|shell| shell.version)
    }
}

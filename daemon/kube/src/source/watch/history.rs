//! Whether what a watcher has heard is still a part of the cluster's history.

use nodelb_core::messages;
use tokio::time::Instant;
use tracing::{debug, info};

use super::Watcher;
use crate::api::decode::{Kind, Version};
use crate::api::page::Page;
use crate::apiserver::error::LinkError;
use crate::apiserver::preflight;
use crate::apiserver::session::Session;

/// How the first question of a session, which is about Services, compares with what the watcher knew when it began to
/// follow the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behind {
    /// The answer is not behind.
    #[default]
    No,
    /// It is behind, and the watcher may have learned what is newer after the question was asked.
    Perhaps,
    /// It is behind what the watcher knew before the question was asked. For Services this proves a restore, for
    /// another kind only if one etcd holds both.
    Surely,
}

impl Watcher {
    /// Keeps what the first question of a session shows: writes that follow hide it from later questions.
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

    /// Takes note of a version that has arrived.
    pub(super) fn learn(&mut self, version: Version) {
        if version > self.newest {
            self.newest = version;
            self.grown_at = Instant::now();
        }
    }

    pub(super) fn forget_if_away_for_long(&mut self) {
        if self.heard_at.elapsed() > self.timing.resume_within {
            self.version = None;
        }
    }

    /// Everything is listed again, and no version from before counts.
    fn forget_history(&mut self) {
        self.version = None;
        self.newest = Version::default();
        self.is_rewound = true;
        (self.is_unsure, self.behind) = (false, Behind::No);
    }

    /// Another watcher has found that the cluster was restored. What this one finds out itself is for the log.
    pub(super) fn believe_restore(&mut self) {
        self.restores.take_note();
        self.version = None;
        self.is_rewound = true;
        self.is_unsure = true;
    }

    /// Whether what was heard before is still a part of this cluster's history: a consistent list of this very kind,
    /// asked for after that was heard, is never behind it, unless the cluster was restored. One that is leads to a
    /// list; it is logged when a second one agrees.
    pub(super) async fn look_at_history(&mut self, session: &Session) -> Result<(), LinkError> {
        self.forget_if_away_for_long();
        let is_service = self.query.kind == Kind::Service;
        let first = if is_service && self.behind == Behind::Surely {
            // Asked again, the cluster may have passed that version.
            Version(session.revision.min(self.newest.0.saturating_sub(1)))
        } else {
            self.ask_version(session).await?
        };
        if self.newest <= first {
            return self.settle_doubt(session, first).await;
        }
        let newest = self.newest;
        // Before the second question, which may be interrupted.
        self.forget_history();
        self.restores.report(self.query.kind, session);
        let kind = self.query.kind.resource();
        match self.ask_version(session).await {
            Ok(second) if second < newest => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "{kind}: the cluster is at resourceVersion {} and was at {} before: it was restored, so everything is listed again",
                second.0, newest.0
            ),
            // It may have been restored and have passed that version meanwhile: a list costs less than a change that is
            // missed.
            second => debug!("{kind}: at {} where {} was heard, then {second:?}: listed again", first.0, newest.0),
        }
        Ok(())
    }

    /// The kind itself is at `now`, not behind: what follows if the first question of the session was behind.
    async fn settle_doubt(&mut self, session: &Session, now: Version) -> Result<(), LinkError> {
        let is_service = self.query.kind == Kind::Service;
        let is_doubtful = match self.behind {
            Behind::No => false,
            // Proves nothing either way: a list costs less than a change that is missed.
            Behind::Perhaps => is_service,
            // With one etcd for both kinds, Services are never behind this kind when they are asked for after it. Where
            // they are, the kinds have histories of their own, and the first question says nothing of this one.
            Behind::Surely => preflight::ask(&session.link, self.timing.patience).await?.0 >= now.0,
        };
        if is_doubtful {
            debug!("{}: the cluster may have been restored: listed again", self.query.kind.resource());
            self.forget_history();
        }
        self.behind = Behind::No;
        Ok(())
    }

    /// The resourceVersion that this kind is at now, by a consistent list of one object at most.
    async fn ask_version(&mut self, session: &Session) -> Result<Version, LinkError> {
        let answer = session.link.get(&self.query.page("", 1), self.timing.patience).await?;
        let mut page = Page::new(answer.into_body());
        while page.more(&mut self.decoder, self.timing.list_silence).await?.is_some() {}
        page.end().map(|shell| shell.version)
    }
}

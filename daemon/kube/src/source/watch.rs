//! Lists and watches one kind of objects until the daemon ends, over the session in use. Keeps the position in the
//! cluster's history. The store interprets the objects, and the supervisor selects the apiserver.
//!
//! A watch resumes where it ended, also on the next session. It lists again if the server rejects the version as too
//! old, the cluster was restored from a backup, the server answers a watch with an error, or the watch was interrupted
//! for longer than etcd keeps its history.

mod history;
mod restores;
mod state;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

pub use self::restores::Restores;
use self::state::Behind;
pub use self::state::{Message, State, WatchTimeouts, Watcher};
use crate::api::decode::{Decoder, Kind, ListWatchEvent, Version, invalid};
use crate::api::list_watch::{ListWatch, Start, Timeouts};
use crate::api::request::Query;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::session::{Apiservers, Report, Session};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The list is complete; watch from its version.
    Listed,
    /// Resume from the current version.
    Resume,
    /// The version is too old; list again.
    TooOld,
    /// The server does not support the request; try a different one.
    Unsupported,
    /// The store wants the list to be confirmed.
    Doubted,
    /// Another watcher has found that the cluster was restored.
    Restored,
}

/// After this number of consecutive broken streaming lists, lists are requested in pages.
const MAX_BROKEN_LISTS: u32 = 3;

/// The minimum time between two reports of progress to the supervisor.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Watcher {
    /// The watcher of this number. `list_again` requests another list; `restores` is shared by all watchers.
    pub fn new(
        (number, query, decoder): (usize, Query, Decoder),
        apiservers: Apiservers,
        messages: mpsc::Sender<Message>,
        (list_again, restores): (Arc<Notify>, Restores),
        timeouts: WatchTimeouts,
    ) -> Self {
        Self {
            number,
            query,
            decoder,
            apiservers,
            messages,
            list_again,
            timeouts,
            version: None,
            newest: Version::default(),
            is_rewound: false,
            is_unsure: false,
            behind: Behind::No,
            grown_at: Instant::now(),
            restores: restores.of_new_watcher(),
            generation: 0,
            is_up: false,
            broken_lists: 0,
            received_at: Instant::now(),
            progress_at: None,
        }
    }

    /// Watches until the receiver of the messages is closed.
    pub async fn run(mut self) {
        loop {
            let session = self.apiservers.session.borrow_and_update().clone();
            match session {
                Some(session) => self.follow(&session).await,
                None => {
                    self.send_state(State::Waiting).await;
                    if self.apiservers.session.changed().await.is_err() {
                        return;
                    }
                }
            }
            if self.messages.is_closed() {
                return;
            }
        }
    }

    /// Lists and watches over one session until it is replaced.
    async fn follow(&mut self, session: &Session) {
        self.compare(session);
        // The first read of a session yields the version of Services only. Other kinds need their own check.
        self.is_unsure = self.query.kind != Kind::Service || self.behind != Behind::No;
        self.generation = session.link.generation();
        self.forget_if_away_for_long();
        // Another server may support what the previous one did not.
        self.query.streams = self.broken_lists < MAX_BROKEN_LISTS;
        let mut failures: u32 = 0;
        let mut changed = self.apiservers.session.clone();
        let list_again = Arc::clone(&self.list_again);
        loop {
            let begun = Instant::now();
            self.is_up = false;
            let restored = self.restores.clone().found_by_another();
            let end = tokio::select! {
                end = self.list_or_watch(session) => end,
                _ = changed.changed() => return,
                () = list_again.notified() => Ok(End::Doubted),
                () = restored => Ok(End::Restored),
            };
            // A successful list does not prove that the following watch will work.
            let was_up = self.is_up || self.version.is_some() && begun.elapsed() > self.timeouts.backoff.1;
            failures = if was_up { 0 } else { failures };
            let pause = self.conclude(session, end, &mut failures).await;
            tokio::select! {
                () = sleep(pause) => {}
                _ = changed.changed() => return,
            }
        }
    }

    /// Handles the end of a list or watch, and returns the time to wait before the next one.
    async fn conclude(&mut self, session: &Session, end: Result<End, LinkError>, failures: &mut u32) -> Duration {
        match end {
            Ok(End::Listed | End::Unsupported) => return Duration::ZERO,
            Ok(End::Resume) if self.is_up => return Duration::ZERO,
            Ok(End::Doubted) => {
                self.version = None;
                return self.timeouts.confirm;
            }
            Ok(End::Restored) => {
                self.believe_restore();
                return Duration::ZERO;
            }
            _ => {}
        }
        *failures = failures.saturating_add(1);
        match end {
            Ok(End::TooOld) => {
                self.version = None;
                // A single occurrence only means that the watch was interrupted for a while.
                if *failures == 1 { Duration::ZERO } else { self.backoff(*failures) }
            }
            Ok(_) => self.backoff(*failures),
            Err(error) => self.fail(session, error, *failures).await.max(self.backoff(*failures)),
        }
    }

    async fn list_or_watch(&mut self, session: &Session) -> Result<End, LinkError> {
        // Without HTTP/2 each watch has its own connection, possibly to a server that was restored in the meantime.
        // With HTTP/2 the link has a new connection if the server has drained the previous one.
        let generation = session.link.generation();
        let is_elsewhere = self.version.is_some() && (session.link.protocol() != "h2" || self.generation != generation);
        if self.newest != Version::default() && (self.is_unsure || is_elsewhere) {
            match self.check_history(session).await {
                Ok(()) => {}
                Err(error) if self.query.make_do_without(&error) => return Ok(End::Unsupported),
                Err(error) => return Err(error),
            }
        }
        (self.is_unsure, self.generation) = (false, generation);
        match self.version {
            Some(version) => self.watch(session, version).await,
            None => self.list(session).await,
        }
    }

    async fn watch(&mut self, session: &Session, version: Version) -> Result<End, LinkError> {
        let WatchTimeouts { watch_timeout: head, watch_silence: silence, watch, .. } = self.timeouts;
        let timeouts = Timeouts { head, silence, watch };
        let opening = ListWatch::open(&session.link, self.query.clone(), Start::Version(version), timeouts);
        let mut opening = std::pin::pin!(opening);
        let opened = match timeout(self.timeouts.watch_shown, &mut opening).await {
            Ok(opened) => opened,
            Err(_elapsed) => {
                self.send_state(State::Asking).await;
                opening.await
            }
        };
        let response = match opened {
            Ok(response) => response,
            Err(LinkError::Gone(_)) => return Ok(End::TooOld),
            Err(error) => return Err(error),
        };
        if session.link.generation() != self.generation {
            // The response came over a newer connection, possibly from another server than the one that was checked.
            self.is_unsure = true;
            return Ok(End::Resume);
        }
        self.send_state(State::Watching).await;
        self.read(session, response, false).await
    }

    /// Lists all objects. If the server supports streaming lists, the same response continues as a watch.
    async fn list(&mut self, session: &Session) -> Result<End, LinkError> {
        let is_streaming = self.query.streams;
        let start = if is_streaming { Start::StreamingList } else { Start::List { page: self.timeouts.page } };
        let response = match ListWatch::open(&session.link, self.query.clone(), start, self.list_timeouts()).await {
            Ok(response) => response,
            Err(error) if self.query.make_do_without(&error) => return Ok(End::Unsupported),
            Err(error) => return Err(error),
        };
        let begun = ListWatchEvent::ListStart { is_rewound: self.is_rewound };
        self.send(Message::Events(self.number, vec![begun])).await;
        // A list after a failed one may belong to a different history that has since passed the known versions.
        // Therefore, only the first list may treat equal versions as equal content.
        self.is_rewound = true;
        let end = self.read(session, response, true).await;
        match end {
            // The pages take longer than etcd keeps its history. A list without pages cannot expire.
            Ok(End::TooOld) if !is_streaming => self.timeouts.page = 0,
            Err(LinkError::Broken(_)) if is_streaming && self.version.is_none() => {
                self.broken_lists += 1;
                self.query.streams = self.broken_lists < MAX_BROKEN_LISTS;
            }
            _ => {}
        }
        end
    }

    fn list_timeouts(&self) -> Timeouts {
        let WatchTimeouts { timeout: head, list_silence: silence, watch, .. } = self.timeouts;
        Timeouts { head, silence, watch }
    }

    async fn read(
        &mut self,
        session: &Session,
        mut response: ListWatch<'_>,
        mut is_list: bool,
    ) -> Result<End, LinkError> {
        let is_streaming = response.is_streaming();
        loop {
            let events = match response.next(&mut self.decoder).await {
                Ok(Some(events)) => events,
                Ok(None) => return Ok(if is_streaming { End::Resume } else { End::Listed }),
                Err(LinkError::TimedOut(_)) if is_streaming && is_list => {
                    // A server that does not support streaming lists treats the request as a watch for new changes.
                    self.query.streams = false;
                    return Ok(End::Unsupported);
                }
                Err(LinkError::TimedOut(error)) if is_streaming => {
                    debug!("{}: {error}; restarting the watch", self.query.kind.resource());
                    return Ok(End::Resume);
                }
                Err(LinkError::Gone(_)) => return Ok(End::TooOld),
                Err(error) if !is_streaming && self.query.make_do_without(&error) => return Ok(End::Unsupported),
                Err(error) => {
                    self.version = self.version.filter(|_| !response.has_lost_events);
                    return Err(error);
                }
            };
            let was_list = is_list;
            let version = newest(&events);
            let is_unversioned = has_unknown_version(&events);
            is_list &= !events.iter().any(|event| matches!(event, ListWatchEvent::ListDone(_)));
            self.learn(version.unwrap_or_default());
            self.is_up |= !was_list && version.is_some();
            self.receive(session, events).await;
            self.version = version.filter(|_| !is_list).or(self.version);
            if is_unversioned {
                // A watch from version 0 would replay the present and no deletion.
                self.version = None;
                return Err(invalid("it has no resourceVersion from which nodelb could watch; nodelb lists again"));
            }
            if was_list && !is_list {
                self.broken_lists = 0;
                response.timeouts.silence = self.timeouts.watch_silence;
                if is_streaming {
                    self.send_state(State::Watching).await;
                }
            }
        }
    }

    async fn receive(&mut self, session: &Session, events: Vec<ListWatchEvent>) {
        let now = Instant::now();
        self.received_at = now;
        if !events.is_empty() {
            self.send(Message::Events(self.number, events)).await;
        }
        if self.progress_at.is_none_or(|at| now.duration_since(at) >= PROGRESS_EVERY) {
            self.progress_at = Some(now);
            // If the queue is full, the supervisor receives the next report.
            _ = self.apiservers.reports.try_send(Report::Progress { session: session.number });
        }
    }

    async fn send(&self, message: Message) {
        // Fails only if the daemon ends; `run` checks for that.
        _ = self.messages.send(message).await;
    }

    async fn send_state(&self, state: State) {
        self.send(Message::State(self.number, state)).await;
    }

    /// Records a failure and returns the minimum time to wait.
    async fn fail(&mut self, session: &Session, error: LinkError, failures: u32) -> Duration {
        debug!("{}: {error}", self.query.kind.resource());
        let mut pause = Duration::ZERO;
        match &error {
            LinkError::Busy { .. } => {
                pause = error.pause(self.timeouts.backoff.1);
                if failures > 2 {
                    self.version = None;
                }
            }
            LinkError::Status { .. } | LinkError::Gone(_) => self.version = None,
            LinkError::Unreachable(_) | LinkError::Broken(_) | LinkError::TimedOut(_) => self.is_unsure = true,
            _ => {}
        }
        self.send_state(State::Failing(error.clone())).await;
        // Without permission to read the Node, nodelb lacks only the zone, and the server is not to blame. Neither is it for
        // a namespace without a Role: the others would have to move to another server with it.
        let is_bearable = match error {
            LinkError::Broken(_) | LinkError::TimedOut(_) => false,
            LinkError::Forbidden(_) if self.query.is_narrow() => true,
            _ => self.query.kind == Kind::Node,
        };
        if !is_bearable {
            _ = self.apiservers.reports.send(Report::Failed { session: session.number, error }).await;
        }
        pause
    }

    fn backoff(&self, failures: u32) -> Duration {
        let (first, longest) = self.timeouts.backoff;
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
        // Random, so that the nodes of a cluster do not send their requests at the same time.
        doubled.mul_f64(0.5 + fastrand::f64())
    }
}

/// The highest version in these events. The version of a complete list replaces those of its objects. Version 0 is an
/// unknown one.
fn newest(events: &[ListWatchEvent]) -> Option<Version> {
    let mut newest = None;
    for event in events {
        match event {
            ListWatchEvent::Upsert(object) | ListWatchEvent::Delete(object) if object.version != Version::default() => {
                newest = newest.max(Some(object.version));
            }
            ListWatchEvent::Bookmark(version) if *version != Version::default() => newest = newest.max(Some(*version)),
            ListWatchEvent::ListDone(version) => newest = Some(*version).filter(|it| *it != Version::default()),
            _ => {}
        }
    }
    newest
}

/// Whether a list or a bookmark does not contain the version that it ends at.
fn has_unknown_version(events: &[ListWatchEvent]) -> bool {
    let unknown = Version::default();
    let is_unknown = |event: &ListWatchEvent| matches!(event, ListWatchEvent::Bookmark(it) | ListWatchEvent::ListDone(it) if *it == unknown);
    events.iter().any(is_unknown)
}

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;

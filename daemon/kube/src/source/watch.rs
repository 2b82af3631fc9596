//! Lists and watches one kind of objects until the daemon ends, over the session in use. Keeps the position in the
//! cluster's history. The store interprets the objects, and the supervisor selects the apiserver.
//!
//! A watch resumes where it ended, also on the next session. It lists again if the server rejects the version as too
//! old, the cluster was restored from a backup, the server answers a watch with an error, or the watch was interrupted
//! for longer than etcd keeps its history.

mod batch;
mod history;
mod restores;
mod timeouts;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use self::batch::Batch;
use self::history::Behind;
pub use self::restores::Restores;
pub use self::timeouts::WatchTimeouts;
use crate::api::decode::{Decoder, Kind, ObjectEvent, Shell, Version};
use crate::api::page::{Page, too_long};
use crate::api::request::{self, Query};
use crate::api::splitter::{Lines, Piece};
use crate::apiserver::error::LinkError;
use crate::apiserver::link::Body;
use crate::apiserver::session::{Apiservers, Report, Session};

/// A message of a watcher to the task of the Kubernetes source.
#[derive(Debug)]
pub enum WatcherEvent {
    /// Messages for the store, in this order.
    ObjectEvent(Kind, Vec<ObjectEvent>),
    /// The state of the watch.
    State(Kind, State),
    /// The server has sent something, for example a bookmark. Sent at most once per second.
    Progress(Kind),
    /// The uid of Service `default/kubernetes`.
    Cluster(String),
}

/// The state of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for an apiserver or for the first list.
    Waiting,
    /// An apiserver is connected and has not responded yet.
    Asking,
    /// It is up to date.
    Watching,
    /// It failed and will be retried.
    Failing(LinkError),
}

/// The watcher of one kind.
pub struct Watcher {
    query: Query,
    apiservers: Apiservers,
    reported: mpsc::Sender<WatcherEvent>,
    /// Requests another list.
    again: Arc<Notify>,
    timeouts: WatchTimeouts,
    decoder: Decoder,
    /// The version from which to resume; `None` if a list is necessary.
    version: Option<Version>,
    /// The newest version received so far. The store may contain objects of this version.
    newest: Version,
    /// Whether the next list may belong to another history than earlier versions.
    is_rewound: bool,
    /// Whether to check first that the cluster still has the known history: the server may have changed, or the cluster
    /// may have been restored.
    is_unsure: bool,
    /// The result of comparing the session's first read with the known versions, until the next check.
    behind: Behind,
    /// The time at which `newest` last increased.
    grown_at: Instant,
    /// The restores that the watchers have found.
    restores: Restores,
    /// The generation of the link at the latest check.
    generation: u64,
    /// Whether the watch has delivered an event since its start, apart from the initial list.
    is_up: bool,
    /// The number of consecutive streaming lists that broke off.
    broken_lists: u32,
    /// The time at which the server last sent anything.
    heard_at: Instant,
    progress_at: Option<Instant>,
}

/// The reason why a stream or list ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The list is complete; watch from its version.
    Listed,
    /// Resume from the current version.
    Resume,
    /// The version is too old; list again.
    TooOld,
    /// The server does not support the request; try a different one.
    AskOtherwise,
    /// The store wants the list to be confirmed.
    Doubted,
    /// The watcher of another kind has found that the cluster was restored.
    Restored,
}

/// The number of consecutive broken streaming lists after which lists are requested in pages.
const MAX_BROKEN_LISTS: u32 = 3;

impl Watcher {
    /// A watcher of one kind. `again` requests another list; `restores` is shared by all watchers.
    pub fn new(
        query: Query,
        apiservers: Apiservers,
        reported: mpsc::Sender<WatcherEvent>,
        (again, restores): (Arc<Notify>, Restores),
        timeouts: WatchTimeouts,
    ) -> Self {
        Self {
            decoder: Decoder::new(query.kind),
            query,
            apiservers,
            reported,
            again,
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
            heard_at: Instant::now(),
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
                    self.send(WatcherEvent::State(self.query.kind, State::Waiting)).await;
                    if self.apiservers.session.changed().await.is_err() {
                        return;
                    }
                }
            }
            if self.reported.is_closed() {
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
        let again = Arc::clone(&self.again);
        loop {
            let begun = Instant::now();
            self.is_up = false;
            let restored = self.restores.clone().found_by_another(self.query.kind);
            let end = tokio::select! {
                end = self.once(session) => end,
                _ = changed.changed() => return,
                () = again.notified() => Ok(End::Doubted),
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
            Ok(End::Listed | End::AskOtherwise) => return Duration::ZERO,
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

    /// Performs one list or one watch.
    async fn once(&mut self, session: &Session) -> Result<End, LinkError> {
        // Without HTTP/2 each watch has its own connection, possibly to a server that was restored in the meantime.
        // With HTTP/2 the link has a new connection if the server has drained the previous one.
        let generation = session.link.generation();
        let is_elsewhere = self.version.is_some() && (session.link.protocol() != "h2" || self.generation != generation);
        if self.newest != Version::default() && (self.is_unsure || is_elsewhere) {
            match self.look_at_history(session).await {
                Ok(()) => {}
                Err(error) if self.query.make_do_without(&error) => return Ok(End::AskOtherwise),
                Err(error) => return Err(error),
            }
        }
        (self.is_unsure, self.generation) = (false, generation);
        match self.version {
            Some(version) => self.watch(session, version).await,
            None if self.query.streams => self.stream_list(session).await,
            None => self.page_list(session).await,
        }
    }

    async fn watch(&mut self, session: &Session, from: Version) -> Result<End, LinkError> {
        let query = self.query.watch(&from.0.to_string(), self.timeouts.watch)?;
        let mut asked = std::pin::pin!(session.link.get(&query, self.timeouts.watch_timeout));
        let answer = match timeout(self.timeouts.watch_shown, &mut asked).await {
            Ok(answer) => answer,
            Err(_elapsed) => {
                self.send(WatcherEvent::State(self.query.kind, State::Asking)).await;
                asked.await
            }
        };
        let body = match answer {
            Ok(answer) => answer.into_body(),
            Err(LinkError::Gone(_)) => return Ok(End::TooOld),
            Err(error) => return Err(error),
        };
        if session.link.generation() != self.generation {
            // The response came over a newer connection, possibly from another server than the one that was checked.
            self.is_unsure = true;
            return Ok(End::Resume);
        }
        self.send(WatcherEvent::State(self.query.kind, State::Watching)).await;
        self.read_events(session, body, false).await
    }

    /// Starts a watch that begins with the existing objects (KEP-3157).
    async fn stream_list(&mut self, session: &Session) -> Result<End, LinkError> {
        let answer = session.link.get(&self.query.stream(self.timeouts.watch)?, self.timeouts.timeout).await;
        let body = match answer {
            Ok(answer) => answer.into_body(),
            Err(error) if self.query.make_do_without(&error) => return Ok(End::AskOtherwise),
            Err(error) => return Err(error),
        };
        self.begin_list().await;
        let end = self.read_events(session, body, true).await;
        if self.version.is_none() && matches!(end, Err(LinkError::Broken(_))) {
            self.broken_lists += 1;
            self.query.streams = self.broken_lists < MAX_BROKEN_LISTS;
        }
        end
    }

    async fn begin_list(&mut self) {
        let is_rewound = self.is_rewound;
        self.send(WatcherEvent::ObjectEvent(self.query.kind, vec![ObjectEvent::ListBegins { is_rewound }])).await;
        // A list after a failed one may belong to a different history that has since passed the known versions.
        // Therefore, only the first list may treat equal versions as equal content.
        self.is_rewound = true;
    }

    async fn read_events(&mut self, session: &Session, mut body: Body, mut is_list: bool) -> Result<End, LinkError> {
        let mut lines = Lines::default();
        loop {
            let silence = if is_list { self.timeouts.list_silence } else { self.timeouts.watch_silence };
            let frame = match timeout(silence, body.frame()).await {
                Ok(Some(frame)) => frame?,
                Ok(None) if is_list => return Err(LinkError::Broken("the list ended before it was complete".into())),
                Ok(None) => return Ok(End::Resume),
                Err(_elapsed) if is_list => {
                    // A server that does not support streaming lists treats the request as a watch for new changes.
                    self.query.streams = false;
                    return Ok(End::AskOtherwise);
                }
                Err(_elapsed) => {
                    debug!("{}: nothing for {silence:?}, watching anew", self.query.kind.resource());
                    return Ok(End::Resume);
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            let was_list = is_list;
            let batch = self.decode(&mut lines, &data, &mut is_list);
            self.learn(batch.version.unwrap_or_default());
            self.is_up |= !was_list && batch.version.is_some();
            self.deliver(session, batch.heard).await;
            self.version = batch.version.filter(|_| !is_list).or(self.version).filter(|_| !batch.is_nonsense);
            if was_list && !is_list {
                self.broken_lists = 0;
                self.send(WatcherEvent::State(self.query.kind, State::Watching)).await;
            }
            match batch.end {
                None => {}
                Some(Ok(end)) => return Ok(end),
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// Decodes a frame of the stream. The version of the batch is that of the last event.
    fn decode(&mut self, lines: &mut Lines, data: &[u8], is_list: &mut bool) -> Batch {
        let mut batch = Batch::default();
        let decoder = &mut self.decoder;
        let split = lines.feed(data, |piece| {
            if batch.end.is_some() {
                return;
            }
            match piece {
                Piece::Object(bytes) => batch.take(decoder.event(bytes), is_list),
                Piece::TooLong => batch.heard.push(too_long()),
                Piece::Shell(_) => {}
            }
        });
        if let Err(error) = split
            && batch.end.is_none()
        {
            batch.nonsense(&error.to_string());
        }
        batch
    }

    async fn page_list(&mut self, session: &Session) -> Result<End, LinkError> {
        let mut next = String::new();
        loop {
            let query = self.query.page(&next, self.timeouts.page)?;
            let body = match session.link.get(&query, self.timeouts.timeout).await {
                Ok(answer) => answer.into_body(),
                Err(LinkError::Gone(_)) if !next.is_empty() => {
                    // The pages take longer than etcd keeps its history. A list without pages cannot expire.
                    self.timeouts.page = 0;
                    return Ok(End::TooOld);
                }
                Err(error) if self.query.make_do_without(&error) => return Ok(End::AskOtherwise),
                Err(error) => return Err(error),
            };
            if next.is_empty() {
                self.begin_list().await;
            }
            let page = self.read_page(session, body).await?;
            if page.next.is_empty() {
                self.deliver(session, vec![ObjectEvent::Listed(page.version)]).await;
                self.version = Some(page.version);
                self.learn(page.version);
                self.broken_lists = 0;
                return Ok(End::Listed);
            }
            next = page.next;
        }
    }

    async fn read_page(&mut self, session: &Session, body: Body) -> Result<Shell, LinkError> {
        let mut page = Page::new(body);
        while let Some(arrived) = page.more(&mut self.decoder, self.timeouts.list_silence).await? {
            self.learn(arrived.newest);
            self.deliver(session, arrived.heard).await;
        }
        page.end()
    }

    async fn deliver(&mut self, session: &Session, heard: Vec<ObjectEvent>) {
        let now = Instant::now();
        self.heard_at = now;
        if !heard.is_empty() {
            self.send(WatcherEvent::ObjectEvent(self.query.kind, heard)).await;
        }
        if let Some(uid) = self.decoder.take_cluster() {
            self.send(WatcherEvent::Cluster(uid)).await;
        }
        if self.progress_at.is_none_or(|at| now.duration_since(at) >= Duration::from_secs(1)) {
            self.progress_at = Some(now);
            // If the queue is full, the supervisor receives the next report.
            _ = self.apiservers.reports.try_send(Report::Progress { session: session.number });
            // The same applies to the task of the Kubernetes source.
            _ = self.reported.try_send(WatcherEvent::Progress(self.query.kind));
        }
    }

    async fn send(&self, reported: WatcherEvent) {
        // Fails only if the daemon ends; `run` checks for that.
        _ = self.reported.send(reported).await;
    }

    /// Records a failure and returns the minimum time to wait.
    async fn fail(&mut self, session: &Session, error: LinkError, failures: u32) -> Duration {
        debug!("{}: {error}", self.query.kind.resource());
        let mut pause = Duration::ZERO;
        match &error {
            LinkError::Busy { code, retry_after, .. } => {
                // Only the `Retry-After` of a 429 is reliable; that of a server error is a guess.
                let most = if *code == 429 { request::MAX_RETRY_AFTER } else { self.timeouts.backoff.1 };
                pause = retry_after.unwrap_or_default().min(most);
                if failures > 2 {
                    self.version = None;
                }
            }
            LinkError::Status { .. } | LinkError::Gone(_) => self.version = None,
            LinkError::Unreachable(_) | LinkError::Broken(_) | LinkError::TimedOut(_) => self.is_unsure = true,
            _ => {}
        }
        self.send(WatcherEvent::State(self.query.kind, State::Failing(error.clone()))).await;
        // Without permission to read the Node, nodelb lacks only the zone, and the server is not to blame.
        let is_bearable =
            self.query.kind == Kind::Node && !matches!(error, LinkError::Broken(_) | LinkError::TimedOut(_));
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

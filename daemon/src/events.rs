//! Kubernetes Events on Services, if `kubernetes.events` is set: held, refused, conflicting, without backends. Owns the
//! task that writes them over the session in use. No other task waits for it: it reads snapshots, and keeps no Event
//! that it could not write, because the next snapshot shows whether the problem still exists.
//!
//! The Events are `core/v1`, not `events.k8s.io/v1`: the apiserver stores both as the same objects, and
//! `system:node-proxier` may create and patch either. Only `core/v1` has `count` and `lastTimestamp`, with which
//! `kubectl describe` shows that a problem continues, and which `events.k8s.io/v1` forbids to set.

mod board;
mod pace;
mod troubles;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::explain::reports;
use nodelb_core::explain::rows::FrontendReport;
use nodelb_core::filter::Filter;
use nodelb_core::messages;
use nodelb_core::model::service::{PortKey, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_kube::apiserver::error::LinkError;
use nodelb_kube::apiserver::session::Session;
use nodelb_kube::clock::{Clock, ticking, unix_seconds};
use nodelb_kube::events::{Event, PostOutcome, post};
use tokio::sync::watch;
use tracing::{debug, warn};

use self::board::{Board, Due, Now};
use self::pace::{Pace, REFUSED_FOR};
use self::troubles::{Seen, seen};

/// The time between two checks of the snapshot.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The inputs of the task.
#[derive(Clone, Debug)]
pub struct Reads {
    /// The owner's snapshots.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The session in use.
    pub session: watch::Receiver<Option<Arc<Session>>>,
    /// The name of this node, until a snapshot has another one.
    pub node: String,
    /// The clock that decides when an Event is due.
    pub clock: Clock,
}

/// Writes Events until `shutdown`.
pub async fn run(reads: Reads, shutdown: impl Future<Output = ()>) {
    tokio::select! {
        () = shutdown => {}
        () = Writer::new(reads).go_on() => {}
    }
}

struct Writer {
    reads: Reads,
    board: Board,
    pace: Pace,
    /// The last checked snapshot, and the problems found in it.
    last: Option<(Arc<Snapshot>, Arc<Seen>)>,
    was_refused: bool,
}

impl Writer {
    fn new(reads: Reads) -> Self {
        let board = Board::new(&reads.node);
        Self { reads, board, pace: Pace::default(), last: None, was_refused: false }
    }

    async fn go_on(mut self) {
        let mut look = ticking(LOOK_EVERY);
        loop {
            look.tick().await;
            self.follow_name();
            let seen = self.see().await;
            let now = self.now();
            let due = self.board.look(now, &seen);
            let session = self.reads.session.borrow().clone();
            let Some(session) = session.filter(|_| !due.is_empty()) else { continue };
            for due in due {
                if self.pace.is_quiet(self.now().since_start) {
                    break;
                }
                self.report(&session, &due).await;
            }
        }
    }

    /// Uses the node name that the owner knows.
    fn follow_name(&mut self) {
        let name = Arc::clone(&self.reads.snapshot.borrow().facts().node().name);
        if !name.is_empty() && *name != *self.reads.node {
            self.reads.node = name.to_string();
            self.board.rename(&self.reads.node);
        }
    }

    fn now(&self) -> Now {
        Now { since_start: self.reads.clock.now().0 / 1000, unix: unix_seconds(SystemTime::now()) }
    }

    /// Writes one Event. An error that concerns only this Event does not stop the others.
    async fn report(&mut self, session: &Session, due: &Due) {
        let Now { since_start: now, unix } = self.now();
        self.board.attempted(now);
        let reported = self.write(session, due, unix).await;
        if let Err(error) = &reported {
            debug!("a Kubernetes Event on {} ({}) was not written: {error}", due.service, due.reason);
        }
        match reported {
            // 409: an earlier attempt wrote it, and the answer was lost.
            Ok(PostOutcome::Written) | Err(LinkError::Status { code: 409, .. }) => {
                self.pace.written();
                self.board.reported(due, now);
            }
            Err(LinkError::Forbidden(why)) => self.refused(due, now, &why),
            // Apiservers delete Events after an hour, and an Event that one rejects would be rejected again a moment
            // later.
            Ok(PostOutcome::Moot) | Err(LinkError::Status { .. } | LinkError::Gone(_)) => self.board.forget(due),
            // Another part of nodelb reports an absent apiserver; problems that still exist are written later.
            Err(LinkError::Busy { retry_after, .. }) => {
                self.pace.failed(now, retry_after.map_or(0, |wanted| wanted.as_secs()));
            }
            Err(_) => self.pace.failed(now, 0),
        }
    }

    fn refused(&mut self, due: &Due, now: u64, why: &str) {
        self.board.put_off(due, now + REFUSED_FOR);
        if self.pace.refused(now, &due.service.namespace, why) && !std::mem::replace(&mut self.was_refused, true) {
            warn!(
                message_id = %messages::EVENTS_UNWRITTEN,
                "Kubernetes Events are not written, and are tried again in an hour: 403 Forbidden: {why}. Allow it \
                 (system:node-proxier does), or set kubernetes.events = false; services are not affected"
            );
        }
    }

    /// The problems of the latest snapshot, computed outside the worker threads.
    async fn see(&mut self) -> Arc<Seen> {
        let snapshot = Arc::clone(&self.reads.snapshot.borrow());
        if let Some((last, seen)) = &self.last
            && Arc::ptr_eq(last, &snapshot)
        {
            return Arc::clone(seen);
        }
        let looked_at = Arc::clone(&snapshot);
        let looking = tokio::task::spawn_blocking(move || {
            let of_kubernetes = |name: &_| {
                let owner = looked_at.facts().owner(name);
                owner.is_some_and(|(service, _)| service.source == Source::Kubernetes)
            };
            let empty: BTreeSet<&PortKey> = looked_at.empty_ports().map(AsRef::as_ref).collect();
            let is_empty = |row: &FrontendReport| empty.contains(&port_of(row));
            seen(&reports::frontends(&looked_at, &Filter::default()), of_kubernetes, is_empty)
        });
        let seen = Arc::new(looking.await.unwrap_or_default());
        self.last = Some((snapshot, Arc::clone(&seen)));
        seen
    }

    async fn write(&self, session: &Session, due: &Due, now: u64) -> Result<PostOutcome, LinkError> {
        let Due { service, reason, message, name, first, count } = due;
        let event = Event { service, reason: &reason.to_string(), message, name, first: *first, count: *count };
        post(session, &event, &self.reads.node, now).await
    }
}

/// The service port of a row.
fn port_of(row: &FrontendReport) -> PortKey {
    let (protocol, family) = (row.address.protocol, row.address.addr.family());
    PortKey { service: row.service.clone(), port: Arc::clone(&row.port), protocol, family }
}

/// Events by service and reason.
type ByTrouble<T> = BTreeMap<(nodelb_core::model::service::ServiceName, troubles::Reason), T>;

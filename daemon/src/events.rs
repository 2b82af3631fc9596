//! Kubernetes Events on Services, where `kubernetes.events` asks for them: held, refused, conflicting, without backends. Owns
//! the task that writes them over the session in use. Nothing waits for it: it reads snapshots, and what it could not write is
//! not kept, since it sees by the next snapshot whether there is still something to tell.
//!
//! What is told is `core/v1`, not `events.k8s.io/v1`: both are the same objects in the end, `system:node-proxier` may create
//! and patch either, and only the former has `count` and `lastTimestamp`, which is how `kubectl describe` shows that a trouble
//! goes on, and which the latter forbids to set.

mod board;
mod object;
mod troubles;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::engine::Snapshot;
use nodelb_core::report::Filter;
use nodelb_core::service::Source;
use tokio::sync::watch;
use tracing::{debug, warn};

use self::board::{Board, Due};
use self::troubles::{Seen, seen};
use crate::apiserver::link::LinkError;
use crate::apiserver::session::Session;
use crate::apiserver::visit::ask;
use crate::clock::{ticking, unix_seconds};
use crate::log::messages;
use crate::source::kube::request::question;
use crate::source::kube::seen::{Items, Metadata};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// After a refusal nobody is asked for so long: a permission is not given every second.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

/// What the task reads.
#[derive(Clone, Debug)]
pub struct Reads {
    /// What the owner publishes.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The session in use.
    pub session: watch::Receiver<Option<Arc<Session>>>,
    /// The name of this node.
    pub node: String,
}

/// Writes until `shutdown`.
pub async fn run(reads: Reads, shutdown: impl Future<Output = ()>) {
    tokio::select! {
        () = shutdown => {}
        () = Writer::new(reads).go_on() => {}
    }
}

struct Writer {
    reads: Reads,
    board: Board,
    /// Of which snapshot, and what was seen in it.
    last: Option<(Arc<Snapshot>, Arc<Seen>)>,
    was_refused: bool,
}

impl Writer {
    fn new(reads: Reads) -> Self {
        let board = Board::new(&reads.node);
        Self { reads, board, last: None, was_refused: false }
    }

    async fn go_on(mut self) {
        let mut look = ticking(LOOK_EVERY);
        loop {
            look.tick().await;
            let seen = self.see().await;
            let now = unix_seconds(SystemTime::now());
            let due = self.board.look(now, &seen);
            let session = self.reads.session.borrow().clone();
            let Some(session) = session.filter(|_| !due.is_empty()) else { continue };
            if self.tell(&session, &due, now).await.is_err() {
                tokio::time::sleep(REFUSED_FOR).await;
            }
        }
    }

    /// Tells what is due. An error is a refusal.
    async fn tell(&mut self, session: &Session, due: &[Due], now: u64) -> Result<(), LinkError> {
        for due in due {
            match self.write(session, due, now).await {
                Ok(()) => self.board.told(due, now),
                Err(error @ LinkError::Forbidden(_)) => {
                    if !std::mem::replace(&mut self.was_refused, true) {
                        warn!(
                            message_id = %messages::EVENTS_UNWRITTEN,
                            "Kubernetes Events are not written: {error}. Allow it (system:node-proxier does), or set \
                             kubernetes.events = false; services are not affected"
                        );
                    }
                    return Err(error);
                }
                // Apiservers forget Events after an hour.
                Err(LinkError::Status { code: 404, .. }) if due.count > 1 => self.board.forget(due),
                Err(error) => {
                    // It shows elsewhere if the apiserver is away; what still is will be told later.
                    debug!("a Kubernetes Event on {} ({}) was not written: {error}", due.service, due.reason);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The troubles of the latest snapshot, found beside the workers.
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
            seen(&looked_at.frontends(&Filter::default()), of_kubernetes)
        });
        let seen = Arc::new(looking.await.unwrap_or_default());
        self.last = Some((snapshot, Arc::clone(&seen)));
        seen
    }

    async fn write(&self, session: &Session, due: &Due, now: u64) -> Result<(), LinkError> {
        let statement = if due.count > 1 {
            object::again(due, now)
        } else {
            let Some(about) = about(session, due).await? else { return Ok(()) };
            object::first(due, &about, &self.reads.node, now)
        };
        session.link.tell(&statement, PATIENCE).await.map(drop)
    }
}

/// The Service as it is now: `kubectl describe` finds Events by its uid. `None` if it is gone.
async fn about(session: &Session, due: &Due) -> Result<Option<Metadata>, LinkError> {
    #[derive(serde::Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    let path = format!("/api/v1/namespaces/{}/services", due.service.namespace);
    let by_name = format!("metadata.name={}", due.service.name);
    let found: Items<Object> = ask(&session.link, &question(&path, &[("fieldSelector", &by_name)])).await?;
    Ok(found.items.into_iter().next().map(|object| object.metadata))
}

/// What is told by service and reason.
type ByTrouble<T> = BTreeMap<(nodelb_core::service::ServiceName, troubles::Reason), T>;

//! Kubernetes Events on Services, if `kubernetes.events` is set: held, refused, conflicting, without backends. Owns the
//! task that writes them over the session in use. No other task waits for it: it reads snapshots, and keeps no Event
//! that it could not write, because the next snapshot shows whether the problem still exists.
//!
//! The Events are `core/v1`, not `events.k8s.io/v1`: the apiserver stores both as the same objects, and
//! `system:node-proxier` may create and patch either. Only `core/v1` has `count` and `lastTimestamp`: `kubectl
//! describe` shows with them that a problem continues, and `events.k8s.io/v1` forbids to set them.

mod recorder;

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::{Clock, ticking, unix_seconds};
use nodelb_host::messages;
use nodelb_kube::apiserver::connection::error::LinkError;
use nodelb_kube::apiserver::session::Session;
use nodelb_kube::events::{Event, PostOutcome, post};
use tokio::sync::watch;
use tracing::{debug, warn};

use self::recorder::{Due, Now, Outcome, Problems, Recorder};

/// The time between two checks of the snapshot.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The texts of RBAC for a missing permission. Namespaces that are being terminated and exceeded quotas answer 403 too.
const BY_RBAC: [&str; 2] = ["cannot create resource", "cannot patch resource"];

#[derive(Clone, Debug)]
pub struct Reads {
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub session: watch::Receiver<Option<Arc<Session>>>,
    /// The name of this node, until a snapshot has another one.
    pub node: String,
    /// The clock that decides when an Event is due.
    pub clock: Clock,
}

pub async fn run(reads: Reads) {
    let mut recorder = Recorder::new(&reads.node);
    let mut last: Option<(Weak<Snapshot>, Arc<Problems>)> = None;
    let mut was_forbidden = false;
    let mut ticks = ticking(CHECK_EVERY);
    let now = || Now { since_start: reads.clock.now::<Duration>().as_secs(), unix: unix_seconds(SystemTime::now()) };
    loop {
        ticks.tick().await;
        let snapshot = Arc::clone(&reads.snapshot.borrow());
        recorder.set_node(&snapshot.facts.node().name);
        let problems = match &last {
            Some((checked, problems)) if Weak::ptr_eq(checked, &Arc::downgrade(&snapshot)) => Arc::clone(problems),
            _ => {
                let checked = Arc::clone(&snapshot);
                // A snapshot can be large: it is checked outside the worker threads.
                let problems = tokio::task::spawn_blocking(move || Problems::of_snapshot(&checked)).await;
                Arc::new(problems.unwrap_or_default())
            }
        };
        let due = recorder.due(now(), &problems);
        last = Some((Arc::downgrade(&snapshot), problems));
        drop(snapshot);
        let Some(session) = reads.session.borrow().clone() else { continue };
        for due in due {
            if recorder.is_paused(now().since_start) {
                break;
            }
            let outcome = write(&session, &due, recorder.node(), now().unix, &mut was_forbidden).await;
            recorder.record(&due, now().since_start, outcome);
        }
    }
}

/// Writes one Event, and decides what follows from its result for it and the other Events.
async fn write(session: &Session, due: &Due, node: &str, now: u64, was_forbidden: &mut bool) -> Outcome {
    let Due { service, reason, message, name, first, count } = due;
    let event = Event { service, reason: reason.as_ref(), message, name, first: *first, count: *count };
    let written = post(session, &event, node, now).await;
    if let Err(error) = &written {
        debug!("cannot write a Kubernetes Event on {service} ({}): {error}", reason.as_ref());
    }
    match written {
        // 409: an earlier attempt wrote it, and the answer was lost.
        Ok(PostOutcome::Written) | Err(LinkError::Status { code: 409, .. }) => Outcome::Written,
        Err(LinkError::Forbidden(why)) => {
            let is_everywhere = BY_RBAC.iter().any(|words| why.contains(words));
            if is_everywhere && !std::mem::replace(was_forbidden, true) {
                warn!(
                    message_id = %messages::EVENTS_UNWRITTEN,
                    "Kubernetes Events are not written; nodelb tries again in an hour: 403 Forbidden: {why}. Allow it \
                     (system:node-proxier does), or set kubernetes.events = false; services are not affected"
                );
            }
            Outcome::Forbidden { is_everywhere }
        }
        // Apiservers delete Events after an hour, and an Event that one rejects would be rejected again a moment later.
        Ok(PostOutcome::Moot) | Err(LinkError::Status { .. } | LinkError::Gone(_)) => Outcome::Rejected,
        // Another part of nodelb reports an absent apiserver; problems that still exist are written later.
        Err(LinkError::Busy { retry_after, .. }) => {
            Outcome::Failed { retry_after: retry_after.map_or(0, |it| it.as_secs()) }
        }
        Err(_) => Outcome::Failed { retry_after: 0 },
    }
}

//! Keeps the state file up to date: decides when to write it, and which cluster it belongs to.
//! [`remember`](super::remember) defines its format.
//!
//! Each access to the file runs in its own thread, one at a time. No task waits for it without a time limit, and
//! neither does the end of the process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::messages;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::remember::{self, Remembered};
use crate::apiserver::authorities::Authorities;
use crate::state::{aside, begin};

/// The maximum number of remembered names of certificate authorities. A rotation has two, and a third name for the
/// bundle of both.
const MAX_CLUSTERS: usize = 16;

/// The settings of the state file.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The state directory.
    pub directory: PathBuf,
    /// The certificate authorities, which identify the cluster; `None` if they cannot be read yet.
    pub cluster: Option<Authorities>,
    /// The minimum time between two writes.
    pub save_every: Duration,
    /// The time limit for reading the file at start, and for writing it at the end.
    pub timeout: Duration,
}

impl Memory {
    /// Reads the state file. Logs a warning and returns nothing if this fails or takes too long.
    pub async fn recall(&self, node: &str) -> Vec<nodelb_core::change::Change> {
        let (path, cluster, node) = (remember::path(&self.directory), self.cluster.clone(), node.to_owned());
        let shown = path.display().to_string();
        let reading = aside(move || remember::read(&path, cluster.as_ref(), &node));
        let read = match timeout(self.timeout, reading).await {
            Ok(read) => read,
            Err(_elapsed) => Err(io::Error::other(format!("not read within {:?}", self.timeout))),
        };
        let Remembered { changes, unreadable } = match read {
            Ok(remembered) => remembered,
            Err(error) => {
                warn!(
                    message_id = %messages::STATE_UNREADABLE,
                    "{shown} is not used: {error}; the services are learned from an apiserver"
                );
                return Vec::new();
            }
        };
        if unreadable > 0 {
            warn!(
                message_id = %messages::STATE_UNREADABLE,
                "{shown}: {unreadable} lines make no sense and are not used"
            );
        }
        if !changes.is_empty() {
            info!(
                message_id = %messages::STATE_LOADED,
                "{} objects remembered from {shown}; they count until an apiserver says otherwise", changes.len()
            );
        }
        changes
    }
}

/// A function like [`remember::write`].
type Write = fn(&Path, &[String], &Snapshot) -> io::Result<()>;

/// Writes the state file when necessary.
#[derive(Debug)]
pub(super) struct Saver {
    memory: Memory,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The names of the certificate authorities of the servers that were connected to in this run, the latest last.
    clusters: Vec<String>,
    /// The number of names at the end of `clusters` that belong to the session in use.
    latest: usize,
    write: Write,
    unsaved: Unsaved,
    writing: Option<Writing>,
    /// The time of the latest attempt to write.
    saved_at: Option<Instant>,
    save_failed: bool,
}

/// Whether the file lacks changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsaved {
    Nothing,
    /// The file was written, but the owner task may not yet have applied all changes to that snapshot.
    Perhaps,
    Something,
}

#[derive(Debug)]
struct Writing {
    done: oneshot::Receiver<io::Result<()>>,
    begun: Instant,
    was_reported: bool,
}

impl Saver {
    pub(super) fn new(memory: Memory, snapshot: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self {
            memory,
            snapshot,
            clusters: Vec::new(),
            latest: 0,
            write: remember::write,
            unsaved: Unsaved::Nothing,
            writing: None,
            saved_at: None,
            save_failed: false,
        }
    }

    /// Marks the file as outdated.
    pub(super) fn mark_behind(&mut self) {
        self.unsaved = Unsaved::Something;
    }

    /// Sets the certificate authorities of the session in use ([`Authorities::names`]). Earlier names of the same
    /// cluster stay valid: after a rotation, an administrator may restart nodelb with the previous certificate
    /// authority.
    pub(super) fn set_cluster(&mut self, names: &[String]) {
        let names = &names[names.len().saturating_sub(MAX_CLUSTERS)..];
        self.latest = names.len();
        if self.clusters.ends_with(names) {
            return;
        }
        self.clusters.retain(|known| !names.contains(known));
        self.clusters.extend_from_slice(names);
        let excess = self.clusters.len().saturating_sub(MAX_CLUSTERS);
        self.clusters.drain(..excess);
        self.unsaved = Unsaved::Something;
    }

    /// The uid of the cluster has changed: forgets the certificate authorities of the previous cluster.
    pub(super) fn forget_cluster(&mut self) {
        let before = self.clusters.len().saturating_sub(self.latest);
        self.clusters.drain(..before);
        self.unsaved = Unsaved::Something;
    }

    /// Handles the result of the current write, and starts the next one if it is due. Never waits.
    pub(super) fn tick(&mut self) {
        if let Some(writing) = &mut self.writing {
            match writing.done.try_recv() {
                Ok(result) => self.conclude(result),
                Err(oneshot::error::TryRecvError::Closed) => self.conclude(Err(io::Error::other("it was given up"))),
                Err(oneshot::error::TryRecvError::Empty) => self.complain(),
            }
        }
        // The first write is not delayed, because nodelb may be killed at any time.
        if self.saved_at.is_none_or(|at| at.elapsed() >= self.memory.save_every) {
            self.begin();
        }
    }

    /// Writes the latest state at the end of the process, within the time limit.
    pub(super) async fn end(&mut self) {
        let deadline = Instant::now() + self.memory.timeout;
        loop {
            self.begin();
            let Some(writing) = &mut self.writing else { return };
            match tokio::time::timeout_at(deadline, &mut writing.done).await {
                Ok(result) => self.conclude(result.map_err(io::Error::other).flatten()),
                Err(_elapsed) => {
                    let timeout = self.memory.timeout;
                    warn!(
                        message_id = %messages::STATE_UNWRITTEN,
                        "{} is not written: not done within {timeout:?}", self.path().display()
                    );
                    return;
                }
            }
            if self.save_failed {
                return;
            }
        }
    }

    fn path(&self) -> PathBuf {
        remember::path(&self.memory.directory)
    }

    /// Starts to write, if the source is synced and the file is outdated.
    fn begin(&mut self) {
        let is_behind = match self.unsaved {
            Unsaved::Nothing => false,
            Unsaved::Perhaps => self.snapshot.has_changed().unwrap_or(false),
            Unsaved::Something => true,
        };
        if self.writing.is_some() || !is_behind {
            return;
        }
        if !self.snapshot.borrow().facts().is_synced(Source::Kubernetes) {
            return;
        }
        let snapshot = self.snapshot.borrow_and_update().clone();
        let (path, clusters, write) = (self.path(), self.clusters.clone(), self.write);
        self.unsaved = if self.unsaved == Unsaved::Something { Unsaved::Perhaps } else { Unsaved::Nothing };
        match begin(move || write(&path, &clusters, &snapshot)) {
            Ok(done) => self.writing = Some(Writing { done, begun: Instant::now(), was_reported: false }),
            Err(error) => self.conclude(Err(error)),
        }
    }

    fn conclude(&mut self, result: io::Result<()>) {
        let was_reported = self.writing.take().is_some_and(|writing| writing.was_reported);
        self.saved_at = Some(Instant::now());
        match result {
            Ok(()) => {
                if self.save_failed || was_reported {
                    info!(message_id = %messages::STATE_WRITTEN, "{} is written again", self.path().display());
                }
                self.save_failed = false;
            }
            Err(error) => {
                if !self.save_failed {
                    unwritten(&self.path(), &error.to_string());
                }
                self.save_failed = true;
                self.unsaved = Unsaved::Something;
            }
        }
    }

    /// Logs once that a write does not finish.
    fn complain(&mut self) {
        let path = self.path();
        let Some(writing) = &mut self.writing else { return };
        let waited = writing.begun.elapsed();
        if !writing.was_reported && waited > self.memory.timeout {
            writing.was_reported = true;
            unwritten(&path, &format!("not done after {} s", waited.as_secs()));
        }
    }
}

fn unwritten(path: &Path, why: &str) {
    warn!(
        message_id = %messages::STATE_UNWRITTEN,
        "{} cannot be written: {why}; after a reboot without an apiserver the services would be missing",
        path.display()
    );
}

#[cfg(test)]
#[path = "tests/save.rs"]
mod tests;

//! Drift: changes of the kernel's maps and links by other programs. Every few minutes and on request a `Checker`
//! reads the maps while the owner continues to work, and sends it the entries that seem to differ from what it wrote.
//! Only the owner knows which operations are in progress: it reads these entries again and repairs those that really
//! differ ([`nodelb_core::engine::Engine::accept_actual`]). This module counts the results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::{Drift, EntryKey, differing_entries};
use nodelb_core::text::listed;
use nodelb_host::clock::{Clock, ticking};
use nodelb_host::messages;
use tokio::sync::{Notify, mpsc, watch};
use tracing::warn;

use crate::datapath::DatapathReader;

/// The interval of the comparison between the maps and their intended content.
pub const CHECK_EVERY: Duration = Duration::from_secs(120);

/// The maximum number of entries that the owner reads again in one round, which bounds the delay of changes.
const AT_A_TIME: usize = 2_048;

/// The label of links in metrics, in addition to the kinds of [`nodelb_core::state::kernel_check::DriftKind`].
pub const LINK: &str = "link";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriftReport {
    /// Number of completed checks.
    pub checks: u64,
    pub last_check: Option<Moment>,
    /// The error of the last attempt, if it failed.
    pub error: Option<String>,
    /// Number of repaired differences by kind.
    pub repaired: BTreeMap<&'static str, u64>,
}

pub type Reports = watch::Sender<Arc<DriftReport>>;

pub fn count(reports: &Reports, kind: &'static str, number: u64) {
    reports.send_modify(|report| *Arc::make_mut(report).repaired.entry(kind).or_default() += number);
}

/// Writes one line to the journal.
pub(crate) fn log_repairs(repaired: &[Drift]) {
    const SHOWN: usize = 8;
    if repaired.is_empty() {
        return;
    }
    let text = listed(repaired, SHOWN);
    warn!(
        message_id = %messages::MAPS_REPAIRED,
        entries = repaired.len(), "repaired map entries that another process modified: {text}"
    );
}

pub(super) struct Checker {
    pub(super) datapath: Arc<dyn DatapathReader>,
    pub(super) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// To the owner: entries of the maps that another program seems to have changed.
    pub(super) suspects: mpsc::Sender<Vec<EntryKey>>,
    pub(super) reports: Reports,
    /// Requests an immediate check.
    pub(super) asked: Arc<Notify>,
    pub(super) clock: Clock,
}

impl Checker {
    pub(super) async fn run(self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut due = ticking(CHECK_EVERY);
        // The first tick comes at once, and at a start the maps have just been read.
        due.tick().await;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = due.tick() => self.check().await,
                () = self.asked.notified() => self.check().await,
            }
        }
    }

    /// One comparison of everything.
    async fn check(&self) {
        let (datapath, snapshot) = (Arc::clone(&self.datapath), self.snapshot.clone());
        let looking = tokio::task::spawn_blocking(move || {
            let content = datapath.content()?;
            let believed = snapshot.borrow().realised.clone();
            Ok(differing_entries(&content, &believed))
        });
        match looking.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(suspects) => {
                for some in suspects.chunks(AT_A_TIME) {
                    // Fails only if the owner has ended; the daemon is then about to end too.
                    let _ = self.suspects.send(some.to_vec()).await;
                }
                self.done(None);
            }
            Err(error) => {
                if self.reports.borrow().error.as_ref() != Some(&error) {
                    warn!(
                        message_id = %messages::MAPS_UNREADABLE,
                        "cannot compare the maps with their expected content: {error}; retrying later"
                    );
                }
                self.done(Some(error));
            }
        }
    }

    fn done(&self, error: Option<String>) {
        let now = self.clock.now();
        self.reports.send_modify(|report| {
            let report = Arc::make_mut(report);
            if error.is_none() {
                (report.checks, report.last_check) = (report.checks + 1, Some(now));
            }
            report.error = error;
        });
    }
}

#[cfg(test)]
#[path = "tests/drift.rs"]
mod tests;

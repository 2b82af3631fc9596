//! Drift: what somebody else has done to the kernel's maps and links. Every few minutes, and whenever it is asked to, a
//! [`Checker`] reads the maps beside the owner, who goes on meanwhile, and tells it which entries look as if they were
//! not as it left them. The owner, who alone knows what is in flight, reads these again and puts right what really
//! differs ([`nodelb_core::engine::Engine::found`]). What came of it is counted here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::messages;
use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::{Content, Drift, EntryKey, differing};
use nodelb_kube::clock::{Clock, ticking};
use tokio::sync::{Notify, mpsc, watch};
use tracing::warn;

/// Reads the maps back from whatever holds them; may block. The error says what could not be read.
pub type ReadMaps = Arc<dyn Fn() -> Result<Content, String> + Send + Sync>;

/// How often the maps are compared with what they should hold.
pub const CHECK_EVERY: Duration = Duration::from_secs(120);

/// How many entries the owner reads again in one round: bounds how long that keeps it from changes.
const AT_A_TIME: usize = 2_048;

/// The label of the links among the kinds of [`nodelb_core::state::kernel_check::DriftKind`].
pub const LINK: &str = "link";

/// What came of the checks so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriftReport {
    /// How many were carried out.
    pub checks: u64,
    /// When the last of them was.
    pub last_check: Option<Moment>,
    /// Why the last attempt could not be carried out, if so.
    pub error: Option<String>,
    /// What was put right, by kind.
    pub repaired: BTreeMap<&'static str, u64>,
}

/// Where what came of the checks is published.
pub type Reports = watch::Sender<Arc<DriftReport>>;

/// Counts what was put right.
pub fn count(reports: &Reports, kind: &'static str, number: u64) {
    reports.send_modify(|report| *Arc::make_mut(report).repaired.entry(kind).or_default() += number);
}

/// How many links were put right so far.
pub(crate) fn links(reports: &Reports) -> u64 {
    reports.borrow().repaired.get(LINK).copied().unwrap_or(0)
}

/// Counts what a round put right.
pub(crate) fn count_round(reports: &Reports, repaired: &[Drift]) {
    repaired.iter().for_each(|drift| count(reports, drift.kind.label(), 1));
}

/// Tells the journal in one line.
pub(crate) fn tell(repaired: &[Drift]) {
    const SHOWN: usize = 8;
    if repaired.is_empty() {
        return;
    }
    let mut text = repaired.iter().take(SHOWN).map(Drift::to_string).collect::<Vec<_>>().join(", ");
    if repaired.len() > SHOWN {
        text.push_str(&format!(" and {} more", repaired.len() - SHOWN));
    }
    warn!(
        message_id = %messages::MAPS_REPAIRED,
        entries = repaired.len(), "somebody else changed nodelb's maps, which is put right: {text}"
    );
}

/// What the owner is told of drift, and where it tells what it put right.
pub struct Findings {
    /// Entries of the maps that look as if somebody else had changed them.
    pub suspects: mpsc::Receiver<Vec<EntryKey>>,
    /// What came of it.
    pub reports: Reports,
}

/// Looks for drift.
pub struct Checker {
    /// Reads the maps.
    pub read: ReadMaps,
    /// What the owner believes.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// What came of it.
    pub reports: Reports,
    /// Asks for a check at once.
    pub asked: Arc<Notify>,
    /// The time.
    pub clock: Clock,
}

impl Checker {
    /// Starts it, until `shutdown`; what it finds is for the owner.
    pub fn start(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Findings {
        let (to_owner, suspects) = mpsc::channel(1);
        let reports = self.reports.clone();
        tokio::spawn(self.run(to_owner, CHECK_EVERY, shutdown));
        Findings { suspects, reports }
    }

    /// Checks every so often until `shutdown`.
    async fn run(self, owner: mpsc::Sender<Vec<EntryKey>>, every: Duration, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut due = ticking(every);
        // The first tick is at once, and at a start the maps have just been read.
        due.tick().await;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = due.tick() => self.check(&owner).await,
                () = self.asked.notified() => self.check(&owner).await,
            }
        }
    }

    /// One look at everything. Before every source has told what it has, nothing is put right, so nothing is looked for.
    async fn check(&self, owner: &mpsc::Sender<Vec<EntryKey>>) {
        if !self.snapshot.borrow().is_ready {
            return;
        }
        let (read, snapshot) = (Arc::clone(&self.read), self.snapshot.clone());
        let looking = tokio::task::spawn_blocking(move || {
            let content = read()?;
            let believed = snapshot.borrow().realised.clone();
            Ok(differing(&content, &believed))
        });
        match looking.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(suspects) => {
                for some in suspects.chunks(AT_A_TIME) {
                    // An error means that the owner has ended, and so is the daemon about to.
                    let _ = owner.send(some.to_vec()).await;
                }
                self.done(None);
            }
            Err(error) => {
                if self.reports.borrow().error.as_ref() != Some(&error) {
                    warn!(
                        message_id = %messages::MAPS_UNREADABLE,
                        "the maps cannot be compared with what they should hold: {error}; tried again later"
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

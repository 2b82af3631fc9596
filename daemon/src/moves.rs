//! Sockets that move on: a task that ends those whose backend is gone, so that their owners dial again and reach another
//! one. Owns when to look; [`nodelb_core::stale`] says which, the [`crate::reaper`] does it.
//!
//! ```text
//! snapshot: moves ──> pass: read flows ─> judge ─> newer snapshot, read again, judge ─> reaper
//!                └──> addresses answered since ──────────────────────────────────────> reaper
//! ```
//!
//! Passes reconcile: each looks at every socket, and none depends on an event that might have been missed. One is due when
//! the engine's count of moves changes, once more shortly after (a connect() may have been under way), and every minute.
//! A reaper that has ended is replaced where somebody starts another one; what was missed meanwhile is the next pass's.

use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::addr::Protocol;
use nodelb_core::stale;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::messages;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::stale::{Answered, Flow, Stale};
use nodelb_core::state::moves::Moves;
use nodelb_kube::clock::{Clock, at, ticking};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::config::Disconnect;
use crate::reaper::wire::{BATCH, Hello, Order, Outcome};
use crate::reaper::{Line, Lost, Reaper};

mod boot;
mod judge;
mod report;

use judge::{Judge, Suspect};
pub use report::MovesReport;

/// The time from one pass to the next, at least.
const PASS_EVERY: Duration = Duration::from_millis(250);

/// How long a socket keeps a backend that its service has lost: an exchange of this length still gets its answer.
const LAST_ANSWER: Duration = Duration::from_millis(250);

/// How long a pass that failed is waited for.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How often all sockets are looked at although nothing has changed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How long until another reaper is called, at first and at most: twice as long each time that none gets anywhere.
const CALL_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// What it means that sockets cannot be ended, for the journal.
pub const STUCK: &str = "UDP sockets stay connected to backends that are gone until they are closed";

/// How long the owner may take to publish what it knows now.
const PICTURE_WITHIN: Duration = Duration::from_secs(5);

/// Reads the connections through services over one protocol, of every network namespace, one after the other; may block.
pub type ReadFlows = Arc<dyn Fn(Protocol, &mut dyn FnMut(Flow)) -> io::Result<()> + Send + Sync>;

/// What it takes to end sockets: found out, and started, before capabilities are dropped.
pub struct Means {
    /// What is.
    pub flows: ReadFlows,
    /// What ends them.
    pub reaper: Reaper,
    /// Whose sockets are ended for the address they dialled: those in this cgroup; `None` for all.
    pub cgroup: Option<PathBuf>,
}

/// What the task works with.
pub struct Mover {
    /// What is right.
    snapshot: watch::Receiver<Arc<Snapshot>>,
    /// To the owner, who is asked for nothing but a newer snapshot.
    changes: mpsc::Sender<Vec<Change>>,
    scope: Disconnect,
    /// Where it is remembered which boot nodelb ran in last.
    directory: PathBuf,
    report: watch::Sender<Arc<MovesReport>>,
    clock: Clock,
    call_again: [Duration; 2],
}

/// Why a pass came to no end.
#[derive(Debug, thiserror::Error)]
enum PassError {
    /// The kernel cannot be asked; the next pass tries again.
    #[error("the sockets of this node cannot be listed: {0}")]
    Flows(io::Error),
    /// The owner has something else to do; the next pass tries again.
    #[error("the reconcile loop has not said what it knows within {} s", PICTURE_WITHIN.as_secs())]
    Owner,
    /// Nothing can be ended any more, by this reaper.
    #[error("the reaper has ended, or does not answer ({0})")]
    Reaper(io::Error),
}

/// [`Means`], in use.
struct AtHand {
    flows: ReadFlows,
    line: Line,
}

/// What the task remembers between passes.
#[derive(Default)]
struct Memory {
    seen: Moves,
    answered: Option<Answered>,
    /// What became answered at the last pass: looked at once more.
    recent: Vec<L4Addr>,
    /// Whether the last pass failed: said once.
    is_failing: bool,
    /// Whether the journal was told last that there is no reaper.
    is_missed: bool,
    /// Whether the journal was told that pods are out of reach.
    is_told_reach: bool,
    report: MovesReport,
}

impl Mover {
    /// A task of this owner's, for sockets of this scope, with the state directory.
    pub fn new(
        snapshot: watch::Receiver<Arc<Snapshot>>,
        changes: mpsc::Sender<Vec<Change>>,
        (scope, directory): (Disconnect, PathBuf),
        clock: Clock,
    ) -> Self {
        let report = watch::Sender::default();
        Self { snapshot, changes, scope, directory, report, clock, call_again: CALL_AGAIN }
    }

    /// Starts it on the runtime; the figures are returned.
    pub fn start(
        self,
        means: Means,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> watch::Receiver<Arc<MovesReport>> {
        let reported = self.report.subscribe();
        tokio::spawn(self.run(means, shutdown));
        reported
    }

    /// Runs until `shutdown`, or until there is no reaper any more.
    async fn run(self, means: Means, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = shutdown => {}
            () = self.call_and_work(means) => {}
        }
    }

    async fn call_and_work(mut self, means: Means) {
        let Means { flows, mut reaper, cgroup } = means;
        // Before anything that is served now is new.
        let mut memory = Memory::beside(&self.snapshot.borrow());
        if memory.answered.is_none() && boot::is_another(self.directory.clone()).await {
            memory.begin_with_nothing();
        }
        let [at_first, at_most] = self.call_again;
        let mut pause = at_first;
        loop {
            let passes = memory.report.passes;
            let lost = match reaper.call(cgroup.as_deref()).await {
                Ok((line, hello)) => {
                    memory.found(hello);
                    self.publish(&memory);
                    let at_hand = AtHand { flows: Arc::clone(&flows), line };
                    let Some(error) = self.work(&mut memory, at_hand).await else { return };
                    reaper.lost(error)
                }
                Err(lost) => lost,
            };
            memory.miss(&lost);
            self.publish(&memory);
            if lost.is_final() {
                return;
            }
            pause = match lost.is_lasting() {
                true => at_most,
                false if memory.report.passes > passes => at_first,
                false => pause,
            };
            sleep(pause).await;
            pause = (pause * 2).min(at_most);
        }
    }

    /// Makes passes until the reaper is gone; why. Nothing if nobody publishes any more.
    async fn work(&mut self, memory: &mut Memory, mut at_hand: AtHand) -> Option<io::Error> {
        // The first tick is at once: what was missed is made up for.
        let mut look = ticking(LOOK_EVERY);
        let mut due: Option<Instant> = None;
        let mut last = Instant::now();
        loop {
            tokio::select! {
                error = at_hand.line.ended() => return Some(error),
                changed = self.snapshot.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                    if due.is_none() && self.is_moved(memory) {
                        due = Some(Instant::now().max(last + PASS_EVERY));
                    }
                    continue;
                }
                () = at(due) => {}
                _ = look.tick() => {}
            }
            let was_moved = self.is_moved(memory);
            let ended = self.pass(memory, &mut at_hand).await;
            last = Instant::now();
            due = match &ended {
                Err(_) => Some(last + RETRY_AFTER),
                Ok(destroyed) if was_moved || *destroyed > 0 || self.is_moved(memory) => Some(last + PASS_EVERY),
                Ok(_) => None,
            };
            let gone = memory.note(ended);
            self.publish(memory);
            if gone.is_some() {
                return gone;
            }
        }
    }

    /// Whether something has changed since the last pass that sockets may have to move on for.
    fn is_moved(&self, memory: &Memory) -> bool {
        let now = self.snapshot.borrow().moves;
        now.udp != memory.seen.udp || (self.scope == Disconnect::All && now.tcp != memory.seen.tcp)
    }

    /// Ends what should be ended now; how many that were.
    async fn pass(&mut self, memory: &mut Memory, at_hand: &mut AtHand) -> Result<u64, PassError> {
        let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
        memory.seen = snapshot.moves;
        // What is served now is not new until it is known what all sources say; unless it is known what was served before:
        // a socket that is connected to an address itself reaches no service, whatever the sources will say.
        if !snapshot.is_ready && memory.answered.is_none() {
            return Ok(0);
        }
        let mut destroyed = end_dialled(&snapshot, memory, at_hand).await?;
        // That a backend is gone is known from its source alone, never from what is remembered.
        if !snapshot.is_ready {
            return Ok(destroyed);
        }
        let protocols: &[Protocol] = match self.scope {
            Disconnect::None => &[],
            Disconnect::Udp => &[Protocol::Udp],
            Disconnect::All => &[Protocol::Udp, Protocol::Tcp],
        };
        for protocol in protocols {
            let stale = self.find_stale(*protocol, at_hand).await?;
            destroyed += end_stale(*protocol, stale, memory, at_hand).await?;
        }
        memory.report.passes += 1;
        memory.report.last_pass = Some(self.clock.now());
        Ok(destroyed)
    }

    /// The sockets that should move on. A record may have been read while it was written, and the kernel may be ahead of
    /// the snapshot: so a socket counts that should by a snapshot which is newer than what was read of it, and that reads
    /// the same twice, [`LAST_ANSWER`] apart.
    async fn find_stale(&mut self, protocol: Protocol, at_hand: &AtHand) -> Result<Vec<Suspect>, PassError> {
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let before = at_hand.suspects(protocol, snapshot).await?;
        if before.is_empty() {
            return Ok(before);
        }
        let before: BTreeSet<Vec<Flow>> = before.into_iter().map(|suspect| suspect.flows).collect();
        sleep(LAST_ANSWER).await;
        let snapshot = self.newer_snapshot().await?;
        let mut suspects = at_hand.suspects(protocol, snapshot).await?;
        suspects.retain(|suspect| before.contains(&suspect.flows));
        Ok(suspects)
    }

    /// One that says all that was in the kernel when this was called. The owner publishes after every round, and an empty
    /// batch makes a round.
    async fn newer_snapshot(&mut self) -> Result<Arc<Snapshot>, PassError> {
        self.snapshot.mark_unchanged();
        let published = async {
            self.changes.send(Vec::new()).await.map_err(|_closed| PassError::Owner)?;
            self.snapshot.changed().await.map_err(|_closed| PassError::Owner)
        };
        timeout(PICTURE_WITHIN, published).await.map_err(|_elapsed| PassError::Owner)??;
        Ok(Arc::clone(&self.snapshot.borrow_and_update()))
    }

    fn publish(&self, memory: &Memory) {
        self.report.send_replace(Arc::new(memory.report.clone()));
    }
}

impl AtHand {
    /// Reads every flow, and keeps those that should not be.
    async fn suspects(&self, protocol: Protocol, snapshot: Arc<Snapshot>) -> Result<Vec<Suspect>, PassError> {
        let flows = Arc::clone(&self.flows);
        let reading = tokio::task::spawn_blocking(move || {
            let mut judge = Judge::by(&snapshot);
            flows(protocol, &mut |flow| judge.see(flow))?;
            Ok(judge.suspects())
        });
        reading.await.map_err(io::Error::other).flatten().map_err(PassError::Flows)
    }

    async fn order(&mut self, order: Order) -> Result<Vec<Outcome>, PassError> {
        self.line.order(&order).await.map_err(PassError::Reaper)
    }
}

impl Memory {
    /// At a start, with this content of the kernel. Where that is nothing, something else may have answered until now, such
    /// as kube-proxy: what nodelb answers first is not new.
    fn beside(snapshot: &Snapshot) -> Self {
        let is_adopted = snapshot.serves_anything();
        Self { answered: is_adopted.then(|| stale::answered(snapshot)), ..Self::default() }
    }

    /// After a reboot of a node that nodelb served: until now nothing has answered, so all that is answered is new.
    fn begin_with_nothing(&mut self) {
        self.answered = Some(Answered::default());
    }

    /// There is a reaper.
    fn found(&mut self, hello: Hello) {
        self.report.is_working = true;
        if std::mem::take(&mut self.is_missed) {
            info!(message_id = %messages::SOCKETS_AGAIN, "a reaper works: sockets are ended again");
        }
        if !hello.everywhere && !std::mem::replace(&mut self.is_told_reach, true) {
            warn!(
                message_id = %messages::SOCKETS_STAY,
                "CAP_SYS_ADMIN and CAP_SYS_PTRACE are missing (see nodelb(8)): sockets can be ended in the host's network \
                 namespace only; those of pods stay connected to backends that are gone until they are closed"
            );
        }
    }

    /// There is none; said once.
    fn miss(&mut self, lost: &Lost) {
        self.report.is_working = false;
        self.report.errors += 1;
        if !std::mem::replace(&mut self.is_missed, true) {
            let until = match lost.is_final() {
                true => "until nodelb is restarted",
                false => "until one works",
            };
            warn!(message_id = %messages::SOCKETS_STAY, "{lost}: {STUCK}, {until}");
        }
    }

    /// Says what kept a pass from its end, once; the error, if the reaper did.
    fn note(&mut self, ended: Result<u64, PassError>) -> Option<io::Error> {
        match ended {
            Ok(_) => {
                self.is_failing = false;
                None
            }
            Err(PassError::Reaper(error)) => Some(error),
            Err(error) => {
                self.report.errors += 1;
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!(
                        message_id = %messages::SOCKETS_UNREADABLE,
                        "{error}; sockets that should move on wait for the next try"
                    );
                }
                None
            }
        }
    }

    fn take_error(&mut self, outcome: Outcome) {
        if outcome.is_over() {
            return;
        }
        self.report.errors += 1;
        if !self.report.has_told_error {
            self.report.has_told_error = true;
            let error = io::Error::from_raw_os_error(outcome.errno);
            warn!(
                message_id = %messages::SOCKETS_UNREADABLE,
                "a socket that should move on cannot be ended: {error}; more of these are only counted"
            );
        }
    }
}

async fn end_stale(
    protocol: Protocol,
    mut stale: Vec<Suspect>,
    memory: &mut Memory,
    at_hand: &mut AtHand,
) -> Result<u64, PassError> {
    // By namespace: each is looked for and entered once for a batch.
    stale.sort_unstable();
    let mut destroyed: BTreeMap<String, u64> = BTreeMap::new();
    for batch in stale.chunks(BATCH) {
        let first_of = |suspect: &Suspect| suspect.flows.first().map(|flow| (flow.socket, flow.backend));
        let targets = batch.iter().filter_map(first_of).collect();
        let outcomes = at_hand.order(Order::Sockets(targets)).await?;
        for (suspect, outcome) in batch.iter().zip(outcomes) {
            if outcome.destroyed > 0 {
                *destroyed.entry(name_of(&suspect.why)).or_default() += 1;
            }
            memory.take_error(outcome);
        }
    }
    let total = destroyed.values().sum();
    memory.report.count(protocol, total);
    report::tell_stale(protocol, &destroyed);
    Ok(total)
}

/// Ends the sockets that dialled a ClusterIP before it was answered.
async fn end_dialled(snapshot: &Snapshot, memory: &mut Memory, at_hand: &mut AtHand) -> Result<u64, PassError> {
    let now = stale::answered(snapshot);
    let new = memory.answered.as_ref().map(|before| now.since(before)).unwrap_or_default();
    let addresses = [memory.recent.as_slice(), new.as_slice()].concat();
    if !addresses.is_empty() {
        at_hand.line.spare_own().await.map_err(PassError::Reaper)?;
    }
    let mut destroyed: BTreeMap<String, u64> = BTreeMap::new();
    for batch in addresses.chunks(BATCH) {
        let outcomes = at_hand.order(Order::Dialled(batch.to_vec())).await?;
        for (address, outcome) in batch.iter().zip(outcomes) {
            if outcome.destroyed > 0 {
                *destroyed.entry(address.to_string()).or_default() += u64::from(outcome.destroyed);
            }
            memory.take_error(outcome);
        }
    }
    // Not before: a reaper that ends meanwhile leaves it to the next one.
    (memory.answered, memory.recent) = (Some(now), new);
    let total = destroyed.values().sum();
    memory.report.count(Protocol::Udp, total);
    report::tell_dialled(&destroyed);
    Ok(total)
}

fn name_of(why: &Stale) -> String {
    match why {
        Stale::Backend(key) => key.service.to_string(),
        Stale::Frontend(address) => address.to_string(),
    }
}

#[cfg(test)]
#[path = "tests/moves.rs"]
mod tests;

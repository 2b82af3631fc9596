//! Ends stale sockets: a task that ends sockets with a removed backend, so that their programs connect again and reach
//! another one. Owns the schedule; [`nodelb_core::stale`] decides which sockets are stale, and the
//! [`crate::sockets::reaper`] ends them.
//!
//! ```text
//! snapshot: moves ──> pass: read flows ─> judge ─> newer snapshot, read again, judge ─> reaper
//!                                          └──> not ready for a moment only: the next pass
//!                └──> addresses answered since ──────────────────────────────────────> reaper
//! ```
//!
//! Passes reconcile: each checks every socket, and none depends on an event that might be lost. A pass is due when the
//! engine's count of moves changes, once more shortly after (a connect() may have been in progress), and every minute.
//! If a reaper has ended, another one is used where another process starts reapers; the next pass catches up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::stale;
use nodelb_core::stale::{Answered, Flow, Stale};
use nodelb_core::state::stale_generation::StaleGeneration;
use nodelb_host::clock::{Clock, at, ticking, until};
use nodelb_host::messages;
use nodelb_sources::OwnerHandle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::config::Disconnect;
use crate::reconcile::Marks;
use crate::sockets::reaper::wire::{BATCH, Hello, Order, Outcome};
use crate::sockets::reaper::{Lost, Reaper, ReaperLine};

mod boot;
mod judge;
mod report;
mod unready;

use judge::{Judge, Suspect};
pub use report::StaleSocketsReport;
use unready::Unready;

const PASS_EVERY: Duration = Duration::from_millis(250);

/// How long a socket keeps a backend that its service has lost: a request that is answered within this time still gets
/// its answer.
const LAST_ANSWER: Duration = Duration::from_millis(250);

const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The interval of checks of all sockets without a change.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The first and the longest delay before another connect to a reaper. It doubles each time that no reaper succeeds.
const CALL_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The consequence when sockets cannot be ended, for the journal.
pub const STUCK: &str = "sockets stay connected to removed backends until their programs close them";

/// How long the owner may take to publish its current state.
const PICTURE_WITHIN: Duration = Duration::from_secs(5);

/// Reads the connections through services over one protocol, in every network namespace, one after the other; may
/// block.
pub type ReadFlows = Arc<dyn Fn(Protocol, &mut dyn FnMut(Flow)) -> io::Result<()> + Send + Sync>;

/// The handles to end sockets: probed and started before the capabilities are dropped.
pub struct Handles {
    pub flows: ReadFlows,
    pub reaper: Reaper,
    /// The cgroup with the sockets that may be ended because of the address they connected to; `None` for all sockets.
    pub cgroup: Option<PathBuf>,
}

pub struct StaleSockets {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Changes of it that may make sockets stale.
    marks: Marks,
    /// To the owner; used only to request a newer snapshot.
    changes: mpsc::Sender<Vec<Change>>,
    scope: Disconnect,
    /// How long TCP sockets stay connected to a backend that is not ready; `None`: forever.
    tcp_for: Option<Duration>,
    directory: PathBuf,
    report: watch::Sender<Arc<StaleSocketsReport>>,
    clock: Clock,
    call_again: [Duration; 2],
}

#[derive(Debug, thiserror::Error)]
enum PassError {
    /// The kernel cannot list the sockets; the next pass tries again.
    #[error("cannot list the sockets of this node: {0}")]
    Flows(io::Error),
    /// The owner is busy; the next pass tries again.
    #[error("the reconcile loop did not publish its state within {} s", PICTURE_WITHIN.as_secs())]
    Owner,
    /// This reaper cannot end sockets any more.
    #[error("the reaper has ended or does not respond ({0})")]
    Reaper(io::Error),
}

/// [`Handles`] with a connected reaper.
struct Deps {
    flows: ReadFlows,
    line: ReaperLine,
}

#[derive(Default)]
struct PassState {
    seen: StaleGeneration,
    answered: Option<Answered>,
    /// The addresses that were new at the last pass; the next pass checks them once more.
    recent: Vec<L4Addr>,
    unready: Unready,
    /// Whether the last pass failed, so that it is logged once.
    is_failing: bool,
    /// Whether the last journal line reports that there is no reaper.
    is_missed: bool,
    has_logged_reach: bool,
    report: StaleSocketsReport,
}

impl StaleSockets {
    /// A task for the sockets in this scope; TCP sockets stay connected to a backend that is not ready for this time, or
    /// forever. `directory` is the state directory.
    pub fn new(
        (owner, marks): (&OwnerHandle, &Marks),
        (scope, tcp_for): (Disconnect, Option<Duration>),
        directory: &Path,
    ) -> Self {
        let OwnerHandle { changes, snapshot, clock } = owner.clone();
        let (marks, directory, report) = (marks.clone(), directory.to_owned(), watch::Sender::default());
        Self { snapshot, marks, changes, scope, tcp_for, directory, report, clock, call_again: CALL_AGAIN }
    }

    pub fn start(
        self,
        handles: Handles,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> watch::Receiver<Arc<StaleSocketsReport>> {
        let reported = self.report.subscribe();
        tokio::spawn(until(shutdown, self.run(handles)));
        reported
    }

    /// Runs until no reaper is left.
    async fn run(mut self, handles: Handles) {
        let Handles { flows, mut reaper, cgroup } = handles;
        // Before any frontend counts as new.
        let mut state = PassState::since(&self.snapshot.borrow(), self.tcp_for);
        // At every start, so that the next boot is recognised.
        let is_another_boot = boot::is_another(self.directory.clone()).await;
        if state.answered.is_none() && is_another_boot {
            state.begin_with_nothing();
        }
        let [at_first, at_most] = self.call_again;
        let mut pause = at_first;
        loop {
            state.begin_when_ready(&self.snapshot.borrow());
            let passes = state.report.passes;
            let lost = match reaper.call(cgroup.as_deref()).await {
                Ok((line, hello)) => {
                    state.found(hello);
                    self.publish(&state);
                    let deps = Deps { flows: Arc::clone(&flows), line };
                    let Some(error) = self.work(&mut state, deps).await else { return };
                    reaper.lost(error)
                }
                Err(lost) => lost,
            };
            state.miss(&lost);
            self.publish(&state);
            if lost.is_final() {
                return;
            }
            pause = match lost.is_lasting() {
                true => at_most,
                false if state.report.passes > passes => at_first,
                false => pause,
            };
            sleep(pause).await;
            pause = (pause * 2).min(at_most);
        }
    }

    /// Makes passes until the reaper has ended; returns the reason, or `None` if the owner has ended.
    async fn work(&mut self, state: &mut PassState, mut deps: Deps) -> Option<io::Error> {
        // The first tick comes at once: it catches up with missed changes.
        let mut look = ticking(LOOK_EVERY);
        let mut due: Option<Instant> = None;
        let mut last = Instant::now();
        loop {
            // The next pass looks at all changes before it.
            let waits_for_change = due.is_none() || state.answered.is_none() || state.unready.pause().is_some();
            tokio::select! {
                error = deps.line.ended() => return Some(error),
                changed = moved(self.scope, &mut self.marks), if waits_for_change => {
                    if changed.is_err() {
                        return None;
                    }
                    state.begin_when_ready(&self.snapshot.borrow());
                    if self.is_moved(state) {
                        let soon = Instant::now().max(last + PASS_EVERY);
                        due = Some(due.map_or(soon, |due| due.min(soon)));
                    }
                    continue;
                }
                () = at(due) => {}
                _ = look.tick() => {}
            }
            let was_moved = self.is_moved(state);
            let ended = self.pass(state, &mut deps).await;
            last = Instant::now();
            due = match &ended {
                Err(_) => Some(last + RETRY_AFTER),
                Ok(destroyed) if was_moved || *destroyed > 0 || self.is_moved(state) => Some(last + PASS_EVERY),
                Ok(_) => state.unready.pause().map(|pause| last + pause),
            };
            let gone = state.note(ended);
            self.publish(state);
            if gone.is_some() {
                return gone;
            }
        }
    }

    /// Whether anything has changed since the last pass that may make sockets stale.
    fn is_moved(&self, state: &PassState) -> bool {
        let now = self.snapshot.borrow().stale_generation;
        now.udp != state.seen.udp || (self.scope == Disconnect::All && now.tcp != state.seen.tcp)
    }

    /// Ends the stale sockets; returns how many.
    async fn pass(&mut self, state: &mut PassState, deps: &mut Deps) -> Result<u64, PassError> {
        let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
        state.seen = snapshot.stale_generation;
        state.begin_when_ready(&snapshot);
        let mut destroyed = end_connected_before(&snapshot, state, deps).await?;
        // Only a source shows that a backend was removed, never the remembered state.
        if !snapshot.is_ready {
            return Ok(destroyed);
        }
        let protocols: &[Protocol] = match self.scope {
            Disconnect::None => &[],
            Disconnect::Udp => &[Protocol::Udp],
            Disconnect::All => &[Protocol::Udp, Protocol::Tcp],
        };
        for protocol in protocols {
            let stale = self.find_stale(*protocol, state, deps).await?;
            destroyed += end_stale(*protocol, stale, state, deps).await?;
        }
        state.report.passes += 1;
        state.report.last_pass = Some(self.clock.now());
        Ok(destroyed)
    }

    /// The stale sockets. A record may have been read while it was written, and the kernel may be ahead of the
    /// snapshot. Therefore a socket counts as stale if two equal reads, [`LAST_ANSWER`] apart, show it by a snapshot
    /// that is newer than the first read.
    async fn find_stale(
        &mut self,
        protocol: Protocol,
        state: &mut PassState,
        deps: &Deps,
    ) -> Result<Vec<Suspect>, PassError> {
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let mut before = deps.suspects(protocol, snapshot).await?;
        before = state.unready.without_waiting(protocol, before, Instant::now());
        if before.is_empty() {
            return Ok(before);
        }
        let before: BTreeSet<Vec<Flow>> = before.into_iter().map(|suspect| suspect.flows).collect();
        sleep(LAST_ANSWER).await;
        let snapshot = self.newer_snapshot().await?;
        let mut suspects = deps.suspects(protocol, snapshot).await?;
        suspects.retain(|suspect| before.contains(&suspect.flows));
        Ok(suspects)
    }

    /// A snapshot with everything that was in the kernel at the time of the call. The owner publishes after every
    /// round, and an empty batch causes a round.
    async fn newer_snapshot(&mut self) -> Result<Arc<Snapshot>, PassError> {
        self.snapshot.mark_unchanged();
        let published = async {
            self.changes.send(Vec::new()).await.map_err(|_closed| PassError::Owner)?;
            self.snapshot.changed().await.map_err(|_closed| PassError::Owner)
        };
        timeout(PICTURE_WITHIN, published).await.map_err(|_elapsed| PassError::Owner)??;
        Ok(Arc::clone(&self.snapshot.borrow_and_update()))
    }

    fn publish(&self, state: &PassState) {
        self.report.send_replace(Arc::new(state.report.clone()));
    }
}

/// Waits for a snapshot with a change that may make sockets in the scope stale, or that is the first one with everything.
async fn moved(scope: Disconnect, marks: &mut Marks) -> Result<(), watch::error::RecvError> {
    match scope {
        Disconnect::All => marks.stale.changed().await,
        Disconnect::Udp | Disconnect::None => marks.stale_udp.changed().await,
    }
}

impl Deps {
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

impl PassState {
    /// The state at a start, with this content of the kernel. If the kernel is empty, another program such as
    /// kube-proxy may have answered until now: what nodelb answers first is then not new.
    fn since(snapshot: &Snapshot, tcp_for: Option<Duration>) -> Self {
        let is_adopted = snapshot.serves_anything();
        let answered = is_adopted.then(|| stale::answered(snapshot));
        Self { answered, unready: Unready::new(tcp_for), ..Self::default() }
    }

    /// The state after a reboot of a node that nodelb served: nothing has answered until now, so every answered address
    /// is new.
    fn begin_with_nothing(&mut self) {
        self.answered = Some(Answered::default());
    }

    /// Takes the addresses that are answered once all sources are synced as the first ones. If the previous ones are
    /// unknown, no address counts as new before that. If they are known, this does nothing: a socket that is connected
    /// to the address of a frontend itself reaches no service, whatever the sources will send.
    fn begin_when_ready(&mut self, snapshot: &Snapshot) {
        if snapshot.is_ready && self.answered.is_none() {
            self.answered = Some(stale::answered(snapshot));
        }
    }

    fn found(&mut self, hello: Hello) {
        self.report.is_working = true;
        if std::mem::take(&mut self.is_missed) {
            info!(message_id = %messages::SOCKET_CLOSING_RESUMED, "reaper restarted; closing stale sockets resumed");
        }
        if !hello.everywhere && !std::mem::replace(&mut self.has_logged_reach, true) {
            warn!(
                message_id = %messages::SOCKETS_NOT_CLOSED,
                "CAP_SYS_ADMIN or CAP_SYS_PTRACE is missing (see nodelb(8)): sockets can be closed in the network \
                 namespace of the host only; sockets of pods stay connected to removed backends until their programs \
                 close them"
            );
        }
    }

    fn miss(&mut self, lost: &Lost) {
        self.report.is_working = false;
        self.report.errors += 1;
        if !std::mem::replace(&mut self.is_missed, true) {
            let until = match lost.is_final() {
                true => "until nodelb is restarted",
                false => "until one works",
            };
            warn!(message_id = %messages::SOCKETS_NOT_CLOSED, "{lost}: {STUCK}, {until}");
        }
    }

    /// Logs why a pass failed, once; returns the error if the reaper caused it.
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
                        "{error}; stale sockets wait for the next pass"
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
        if !self.report.has_logged_error {
            self.report.has_logged_error = true;
            let error = io::Error::from_raw_os_error(outcome.errno);
            warn!(
                message_id = %messages::SOCKETS_UNREADABLE,
                "cannot close a stale socket: {error}; further failures are only counted"
            );
        }
    }
}

async fn end_stale(
    protocol: Protocol,
    mut stale: Vec<Suspect>,
    state: &mut PassState,
    deps: &mut Deps,
) -> Result<u64, PassError> {
    // Sorted by namespace: each is searched and entered once per batch.
    stale.sort_unstable();
    let (mut lost, mut unready) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for batch in stale.chunks(BATCH) {
        let first_of = |suspect: &Suspect| suspect.flows.first().map(|flow| (flow.socket, flow.backend));
        let targets = batch.iter().filter_map(first_of).collect();
        let outcomes = deps.order(Order::Sockets(targets)).await?;
        for (suspect, outcome) in batch.iter().zip(outcomes) {
            if outcome.destroyed > 0 {
                let destroyed = if matches!(suspect.why, Stale::Unready(..)) { &mut unready } else { &mut lost };
                *destroyed.entry(name_of(&suspect.why)).or_default() += 1;
            }
            state.take_error(outcome);
        }
    }
    let total = lost.values().chain(unready.values()).sum();
    state.report.count(protocol, total);
    report::log(protocol, "have lost their backend", &lost);
    report::log(protocol, "have a backend that is not ready", &unready);
    Ok(total)
}

/// Ends the sockets that connected to a ClusterIP before nodelb answered it.
async fn end_connected_before(snapshot: &Snapshot, state: &mut PassState, deps: &mut Deps) -> Result<u64, PassError> {
    let Some(before) = &state.answered else { return Ok(0) };
    let now = stale::answered(snapshot);
    let new = now.since(before);
    let addresses = [state.recent.as_slice(), new.as_slice()].concat();
    if !addresses.is_empty() {
        deps.line.spare_own().await.map_err(PassError::Reaper)?;
    }
    let mut destroyed: BTreeMap<String, u64> = BTreeMap::new();
    for batch in addresses.chunks(BATCH) {
        let outcomes = deps.order(Order::ConnectedTo(batch.to_vec())).await?;
        for (address, outcome) in batch.iter().zip(outcomes) {
            if outcome.destroyed > 0 {
                *destroyed.entry(address.to_string()).or_default() += u64::from(outcome.destroyed);
            }
            state.take_error(outcome);
        }
    }
    // Not earlier: if a reaper ends meanwhile, the next one does the work.
    (state.answered, state.recent) = (Some(now), new);
    let total = destroyed.values().sum();
    state.report.count(Protocol::Udp, total);
    report::log(Protocol::Udp, "had connected to an address before it had a backend", &destroyed);
    Ok(total)
}

fn name_of(why: &Stale) -> String {
    match why {
        Stale::Backend(key) | Stale::Unready(key, _) => key.service.to_string(),
        Stale::Frontend(address) => address.to_string(),
    }
}

#[cfg(test)]
#[path = "tests/stale.rs"]
mod tests;

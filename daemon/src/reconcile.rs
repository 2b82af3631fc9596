//! The owner task: the only writer of the maps. Owns the engine and the datapath; all other tasks send it changes or
//! read what it publishes.
//!
//! ```text
//!  files (1) ──┐  Vec<Change>,                        ┌── watch: Arc<Snapshot> ──> admin (n readers), observers
//!              ├─ bounded queue ──> owner (1) ──ops──> datapath (kernel or memory)
//!  node  (1) ──┘                        │             └── watch: Arc<Health> ────> admin, systemd
//!                                       └── canary, every CANARY_EVERY; watchdog, from this loop only
//! ```
//!
//! An idle owner applies a change at once. Under load, all changes that are waiting go into one round, and a burst of
//! changes costs one round per batch. No change waits for a timer, except Services and EndpointSlices while Kubernetes is
//! not synced: they arrive separately, and each service that is compiled without its slices is compiled twice.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, Kernel, What};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;
use nodelb_core::state::kernel_check::EntryKey;
use nodelb_core::text::counted;
use nodelb_host::clock::{Clock, Taken, at, ticking};
use nodelb_host::messages;
use nodelb_report::problems::HOOKS;
use nodelb_sources::OwnerHandle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::datapath::DatapathReader;
use crate::notify::Notifier;
use crate::reconcile::rounds::Rounds;
use crate::recorder::Reporter;
use crate::status::{Check, Health};

pub mod canary;
pub mod drift;
mod handle;
mod report;
pub mod rounds;

pub(crate) use handle::{Marker, publish};
pub use handle::{Marks, OwnerOutputs};
use report::{Losses, reconciled, report, report_last_resorts, report_losses, warn_of_kept, warn_of_refused};

/// How many batches of changes may wait for the owner before a source must wait.
pub const QUEUE: usize = 64;

/// The maximum number of changes in one round, which limits the time between two watchdog messages.
const ROUND_CHANGES: usize = 65_536;

/// The minimum time from one round to the next one for Services and EndpointSlices while Kubernetes is not synced.
const ROUND_EVERY: Duration = Duration::from_millis(500);

/// The interval of the canary check of the hooks.
pub const CANARY_EVERY: Duration = Duration::from_secs(10);

/// The interval of the loop without changes.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// The minimum time between two rounds that publish the health. Without them, the loop publishes it every [`TICK_EVERY`].
const HEALTH_EVERY: Duration = Duration::from_millis(250);

/// How many milliseconds systemd waits for a source at most. Units that are ordered after nodelb must start in the end,
/// above all the kubelet: on a control-plane node it starts the apiserver itself.
const READY_WITHOUT_ALL: u64 = 10_000;

/// Tests whether the datapath is in effect, and repairs its links.
pub type Probe<D> = Box<dyn FnMut(&mut D) -> ProbeResult + Send>;

#[derive(Debug, Default)]
pub struct ProbeResult {
    /// The results as conditions of readiness; none for maps in memory.
    pub checks: Vec<Check>,
    /// What was repaired, with the effect on connections.
    pub repairs: Vec<String>,
    pub repaired_links: u64,
}

/// The owner task before it runs: its state, and its ends of all channels.
pub struct Owner<D> {
    engine: Engine,
    datapath: D,
    changes: mpsc::Receiver<Vec<Change>>,
    /// Map entries that other programs seem to have changed.
    suspects: mpsc::Receiver<Vec<EntryKey>>,
    drift: drift::Reports,
    snapshot: watch::Sender<Arc<Snapshot>>,
    marker: Marker,
    rounds: Rounds,
    health: watch::Sender<Arc<Health>>,
    /// Receives the events of every round.
    reporter: Reporter,
    notifier: Arc<Notifier>,
    probe: Probe<D>,
    clock: Clock,
}

/// The state of the loop between rounds.
#[derive(Default)]
struct LoopState {
    was_ready: bool,
    /// Whether systemd was notified of readiness before all sources were synced.
    goes_without: bool,
    probes: Vec<Check>,
    losses: Losses,
    latest_round: Option<Instant>,
    /// The time of the latest round that has published the health.
    latest_health: Option<Instant>,
    /// The time of the first change that waits for a round, and the time of that round.
    waiting: Option<(Taken, Instant)>,
}

impl<D: Datapath> Owner<D> {
    /// An owner, and its handles for other tasks. Changes wait in the queue until it runs. `probe` tests the datapath.
    pub fn new(
        engine: Engine,
        (datapath, probe): (D, Probe<D>),
        reporter: Reporter,
        notifier: Arc<Notifier>,
        clock: Clock,
    ) -> (Self, OwnerHandle, OwnerOutputs) {
        let now = clock.now();
        let first = engine.snapshot(now);
        let (changes_in, changes) = mpsc::channel(QUEUE);
        let (snapshot, snapshots) = watch::channel(Arc::new(first));
        let (health, healths) = watch::channel(Arc::new(Health::unchecked(now)));
        let (drift, rounds) = (drift::Reports::default(), Rounds::default());
        let published = OwnerOutputs {
            snapshot: snapshots.clone(),
            health: healths,
            rounds: rounds.clone(),
            drift: drift.subscribe(),
        };
        // Nothing is suspect until the checker is started.
        let suspects = mpsc::channel(1).1;
        let handle = OwnerHandle { changes: changes_in, snapshot: snapshots, clock };
        let owner = Self {
            engine,
            datapath,
            changes,
            suspects,
            drift,
            snapshot,
            marker: Marker::default(),
            rounds,
            health,
            reporter,
            notifier,
            probe,
            clock,
        };
        (owner, handle, published)
    }

    /// The parts of the snapshots that tasks wait for.
    pub fn marks(&self) -> Marks {
        self.marker.marks()
    }

    /// Starts the task that looks for changes of the maps by other programs, which runs until `shutdown`. Returns what
    /// requests a comparison at once.
    pub fn start_drift_checker(
        &mut self,
        datapath: Arc<dyn DatapathReader>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<Notify> {
        let (suspects_in, suspects) = mpsc::channel(1);
        self.suspects = suspects;
        let asked = Arc::new(Notify::new());
        let checker = drift::Checker {
            datapath,
            snapshot: self.snapshot.subscribe(),
            suspects: suspects_in,
            reports: self.drift.clone(),
            asked: Arc::clone(&asked),
            clock: self.clock,
        };
        tokio::spawn(checker.run(shutdown));
        asked
    }

    /// Runs until `shutdown`, and then takes the changes that wait. Leaves the datapath as it is then: connections
    /// continue.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut state = LoopState::default();
        let mut heartbeat = ticking(TICK_EVERY);
        let mut canary = ticking(CANARY_EVERY);
        // Without a watchdog, the notifier sends nothing.
        let mut watchdog = ticking(self.notifier.watchdog_interval().unwrap_or(TICK_EVERY));
        tokio::pin!(shutdown);
        self.round(&mut state, Taken::now());
        loop {
            let retry = self.engine.next_round().map(|at| self.clock.instant_of(at));
            let due = state.waiting.map(|(_, due)| due);
            tokio::select! {
                () = &mut shutdown => return self.finish(&mut state),
                Some(batch) = self.changes.recv() => {
                    let taken = state.waiting.map_or_else(Taken::now, |(first, _)| first);
                    let due = self.next_round(&state, &batch);
                    self.take(batch);
                    state.waiting = due.map(|due| (taken, due));
                    if state.waiting.is_none() {
                        self.round(&mut state, taken);
                    }
                }
                () = at(due) => {
                    let taken = state.waiting.map_or_else(Taken::now, |(first, _)| first);
                    self.round(&mut state, taken);
                }
                () = at(retry) => {
                    self.reporter.count_retry();
                    self.round(&mut state, Taken::now());
                }
                Some(suspects) = self.suspects.recv() => self.look_again(&suspects, &mut state),
                _ = canary.tick() => {
                    self.try_canary(&mut state);
                    self.publish_health(&state);
                }
                _ = watchdog.tick() => self.notifier.watchdog(),
                _ = heartbeat.tick() => {
                    self.go_without_all(&mut state);
                    state.losses.report(self.clock.now());
                    self.publish_health(&state);
                }
            }
        }
    }

    /// The last round, if any change waits for one: what was taken from a source is in the maps, in the snapshot and in
    /// the records, which other tasks store once this one has ended.
    fn finish(mut self, state: &mut LoopState) {
        self.changes.close();
        let waiting = self.changes.try_recv().ok();
        if let Some(taken) = state.waiting.map(|(first, _)| first).or(waiting.as_ref().map(|_| Taken::now())) {
            self.take(waiting.unwrap_or_default());
            self.round(state, taken);
        }
        let detail = format!("nodelb {} stopped; traffic continues", env!("CARGO_PKG_VERSION"));
        self.reporter.record(vec![Event::for_daemon(What::Stopped, detail)], Taken::now());
    }

    /// Processes the batch and all other waiting batches.
    fn take(&mut self, batch: Vec<Change>) {
        let mut taken = batch.len();
        batch.into_iter().for_each(|change| self.engine.change(change));
        while taken < ROUND_CHANGES
            && let Ok(batch) = self.changes.try_recv()
        {
            taken += batch.len();
            batch.into_iter().for_each(|change| self.engine.change(change));
        }
    }

    /// The time of the round for the batch if that is not at once.
    fn next_round(&self, state: &LoopState, batch: &[Change]) -> Option<Instant> {
        let due = state.latest_round? + ROUND_EVERY;
        let is_part_of_list = self.engine.unsynced().contains(&Source::Kubernetes)
            && !batch.is_empty()
            && batch.iter().all(|change| change.is_object_of(Source::Kubernetes));
        (is_part_of_list && Instant::now() < due).then_some(due)
    }

    /// Reads the entries again, while no operation is in progress, and repairs real differences.
    fn look_again(&mut self, suspects: &[EntryKey], state: &mut LoopState) {
        match self.datapath.read(suspects) {
            Ok(content) if self.engine.accept_actual(&content, suspects) > 0 => self.round(state, Taken::now()),
            Ok(_as_believed) => {}
            Err(error) => warn!(
                message_id = %messages::MAPS_UNREADABLE,
                "cannot read map entries that another process may have changed: {error}"
            ),
        }
    }

    fn round(&mut self, state: &mut LoopState, taken: Taken) {
        let (now, began) = (self.clock.now(), Taken::now());
        (state.latest_round, state.waiting) = (Some(Instant::now()), None);
        self.rounds.begin();
        let mut round = self.engine.reconcile(&mut self.datapath, now);
        self.engine.end_round(&mut self.datapath, self.clock.now());
        let elapsed = began.elapsed();
        // The flight recorder takes the events of the round.
        report(&round);
        report_last_resorts(&round.events);
        self.reporter.report(&mut round, taken, elapsed);
        drift::log_repairs(&round.repaired);
        round.repaired.iter().for_each(|repaired| drift::count(&self.drift, repaired.kind.into(), 1));
        report_losses(&round, &mut state.losses, now);
        self.snapshot.send_replace(Arc::new(self.engine.snapshot(now)));
        self.marker.publish(&self.snapshot.borrow());
        self.rounds.end();
        let becomes_ready = self.engine.is_ready() && !state.was_ready;
        if becomes_ready {
            state.was_ready = true;
            self.try_canary(state);
        }
        if becomes_ready || state.latest_health.is_none_or(|at| at.elapsed() >= HEALTH_EVERY) {
            state.latest_health = Some(Instant::now());
            // Before systemd is notified: units that wait for it may send requests at once.
            self.publish_health(state);
        }
        if becomes_ready {
            let (services, kept) = (self.engine.sizes().services, self.engine.kept());
            info!(message_id = %messages::READY, services, "{}", reconciled(&kept));
            warn_of_kept(&kept);
            warn_of_refused(&self.snapshot.borrow());
            self.notifier.started(&format!("serving {services} services"));
        }
    }

    /// Notifies systemd that everything possible is done, although not every source is synced.
    fn go_without_all(&mut self, state: &mut LoopState) {
        let is_due = self.clock.now::<Moment>() >= self.clock.started::<Moment>().plus(READY_WITHOUT_ALL);
        if !is_due || state.was_ready || state.goes_without {
            return;
        }
        let missing = match self.lacks_kubernetes_only() {
            true => "no apiserver has responded yet",
            false => "the services directory has not been read yet",
        };
        state.goes_without = true;
        self.try_canary(state);
        self.publish_health(state);
        let services = counted(self.engine.sizes().services, "service");
        let status = format!("{missing}; serving {services} of the previous run");
        info!(message_id = %messages::READY, "{status}");
        self.notifier.started(&status);
    }

    fn lacks_kubernetes_only(&self) -> bool {
        self.engine.unsynced() == [Source::Kubernetes]
    }

    /// Checks the hooks. Logs only changes: a hook that stays broken causes one line, not one every ten seconds.
    fn try_canary(&mut self, state: &mut LoopState) {
        let taken = Taken::now();
        let ProbeResult { checks, repairs, repaired_links: links } = (self.probe)(&mut self.datapath);
        let mut events = Vec::new();
        for check in &checks {
            let before = state.probes.iter().find(|before| before.name == check.name);
            let said = format!("{}: {}", check.name, check.detail);
            if !check.passed && before.is_none_or(|before| before != check) {
                warn!(message_id = %messages::HOOKS_FAILED, "{said}");
                events.push(Event::for_daemon(What::Failed, said));
            } else if check.passed && before.is_some_and(|before| !before.passed) {
                info!(message_id = %messages::HOOKS_WORK, "{said}");
                events.push(Event::for_daemon(What::Healed, said));
            }
        }
        if links > 0 {
            drift::count(&self.drift, drift::LINK, links);
        }
        let of_hooks = |repair| Event::for_daemon(What::Repaired, format!("{HOOKS}{repair}"));
        events.extend(repairs.into_iter().map(of_hooks).map(|event| Event { kernel: Kernel::Done, ..event }));
        self.reporter.record(events, taken);
        state.probes = checks;
    }

    fn publish_health(&self, state: &LoopState) {
        let waiting = || self.engine.unsynced().iter().map(Source::to_string).collect::<Vec<_>>().join(", ");
        let serves_from_before = || self.snapshot.borrow().serves_anything();
        let reconcile = if state.was_ready {
            Check::passed("reconcile", reconciled(&self.engine.kept()))
        } else if state.goes_without && self.lacks_kubernetes_only() && serves_from_before() {
            let detail = format!("serving the last known state; waiting for the initial sync of: {}", waiting());
            Check::passed("reconcile", detail)
        } else {
            Check::failed("reconcile", format!("waiting for the initial sync of: {}", waiting()))
        };
        let mut checks = vec![reconcile];
        checks.extend(state.probes.iter().cloned());
        // No reason to mark the node as not ready: connections are translated all the same.
        let unanswered = self.snapshot.borrow().facts.health_check_port_error(None).map(ToString::to_string);
        checks.extend(unanswered.map(|error| Check::passed("healthz", error)));
        checks.extend(node_addresses(&self.snapshot.borrow()));
        self.health.send_replace(Arc::new(Health { heartbeat: self.clock.now(), checks }));
    }
}

/// The number of service ports in the maps, without the service of the canaries.
pub fn service_ports(maps: &MapState) -> usize {
    maps.services.len().saturating_sub(1)
}

/// The addresses for NodePorts that the kernel has not accepted; usually none.
fn node_addresses(snapshot: &Snapshot) -> Option<Check> {
    let (addr, error) = snapshot.unanswered_node_addrs().next()?;
    let count = snapshot.unanswered_node_addrs().count();
    let detail = format!("NodePorts do not work on {count} addresses of this node, the first is {addr}: {error}");
    Some(Check::passed("node-addresses", detail))
}

#[cfg(test)]
#[path = "tests/reconcile.rs"]
mod tests;

//! The owner task: the only writer of the maps. Owns the engine and the datapath; all other tasks send it changes or
//! read what it publishes.
//!
//! ```text
//!  files (1) ──┐  Vec<Change>,                        ┌── watch: Arc<Snapshot> ──> admin (n readers)
//!              ├─ bounded queue ──> owner (1) ──ops──> datapath (kernel or memory)
//!  node  (1) ──┘                        │             └── watch: Arc<Health> ────> admin, systemd
//!                                       └── canary, every CANARY_EVERY; watchdog, from this loop only
//! ```
//!
//! An idle owner applies a change at once. Under load, all changes that are waiting go into one round: no change waits
//! for a timer, and a burst of changes costs one round per batch.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::{AddressConflict, Engine, Kept, KeptBecause, Round, Takeover};
use nodelb_core::history::{Event, Kernel, What};
use nodelb_core::holds::{Emptied, Release};
use nodelb_core::messages;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{Origin, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::kernel_check::EntryKey;
use nodelb_core::text::listed;
use nodelb_kube::clock::{Clock, Taken, at, ticking};
use tokio::sync::{mpsc, watch};
use tokio::time::Interval;
use tracing::{info, warn};

use crate::notify::Notifier;
use crate::reconcile::drift::Findings;
use crate::reconcile::rounds::Rounds;
use crate::recorder::Reporter;
use crate::status::{Check, Health};

pub mod canary;
pub mod drift;
pub mod rounds;

/// How many batches of changes may wait for the owner before a source must wait.
pub const QUEUE: usize = 64;

/// The maximum number of changes in one round, which limits the time between two watchdog messages.
const ROUND_CHANGES: usize = 65_536;

/// The interval of the canary check of the hooks.
const CANARY_EVERY: Duration = Duration::from_secs(10);

/// The interval of the loop without changes.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// How many milliseconds systemd waits for a source at most. Units that are ordered after nodelb must start in the end,
/// above all the kubelet: on a control-plane node it starts the apiserver itself.
const READY_WITHOUT_ALL: u64 = 10_000;

/// Tests whether the datapath is in effect, and returns the results as checks.
pub type Probe<D> = Box<dyn FnMut(&mut D) -> Vec<Check> + Send>;

/// All inputs and outputs of the loop.
pub struct Owner<D> {
    /// The state machine.
    pub engine: Engine,
    /// The datapath that the engine writes to.
    pub datapath: D,
    /// Changes from the sources and the node.
    pub changes: mpsc::Receiver<Vec<Change>>,
    /// Possible changes of the maps by other programs.
    pub drift: Findings,
    /// The published snapshots, for readers.
    pub snapshot: watch::Sender<Arc<Snapshot>>,
    /// The count of rounds, for readers that compare maps and snapshot.
    pub rounds: Rounds,
    /// The published health, for readers.
    pub health: watch::Sender<Arc<Health>>,
    /// Receives the events of every round.
    pub reporter: Reporter,
    /// The connection to systemd.
    pub notifier: Arc<Notifier>,
    /// Tests the datapath; returns no checks for the memory datapath.
    pub probe: Probe<D>,
    /// The clock.
    pub clock: Clock,
}

/// The state of the loop between rounds.
#[derive(Default)]
struct LoopState {
    was_ready: bool,
    /// Whether systemd was notified of readiness before all sources were synced.
    goes_without: bool,
    probes: Vec<Check>,
    losses: Losses,
}

impl<D: Datapath> Owner<D> {
    /// Runs until `shutdown`. Leaves the datapath unchanged: connections continue.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut state = LoopState::default();
        let mut heartbeat = ticking(TICK_EVERY);
        let mut canary = ticking(CANARY_EVERY);
        let mut watchdog = self.notifier.watchdog_interval().map(ticking);
        tokio::pin!(shutdown);
        self.round(&mut state, Taken::now());
        loop {
            let retry = self.engine.next_round().map(|at| self.clock.instant_of(at));
            tokio::select! {
                () = &mut shutdown => return,
                Some(batch) = self.changes.recv() => {
                    let taken = Taken::now();
                    self.take(batch);
                    self.round(&mut state, taken);
                }
                () = at(retry) => {
                    self.reporter.count_retry();
                    self.round(&mut state, Taken::now());
                }
                Some(suspects) = self.drift.suspects.recv() => self.look_again(&suspects, &mut state),
                _ = canary.tick() => {
                    self.try_canary(&mut state);
                    self.publish_health(&state);
                }
                () = tick(&mut watchdog) => self.notifier.watchdog(),
                _ = heartbeat.tick() => {
                    self.go_without_all(&mut state);
                    state.losses.report(self.clock.now());
                    self.publish_health(&state);
                }
            }
        }
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
        self.rounds.begin();
        let mut round = self.engine.reconcile(&mut self.datapath, now);
        self.engine.end_round(&mut self.datapath, self.clock.now());
        self.reporter.report(&mut round, taken, began.elapsed());
        report(&round);
        drift::log_repairs(&round.repaired);
        drift::count_round(&self.drift.reports, &round.repaired);
        report_losses(&round, &mut state.losses, now);
        self.snapshot.send_replace(Arc::new(self.engine.snapshot(now)));
        self.rounds.end();
        let becomes_ready = self.engine.is_ready() && !state.was_ready;
        if becomes_ready {
            state.was_ready = true;
            self.try_canary(state);
        }
        // Published before systemd is notified: units that wait for it may send requests at once.
        self.publish_health(state);
        if becomes_ready {
            let (services, kept) = (self.engine.sizes().services, self.engine.kept());
            info!(message_id = %messages::READY, services, "{}", reconciled(&kept));
            warn_of_kept(&kept);
            self.notifier.ready(&format!("serving {services} services"));
        }
    }

    /// Notifies systemd that everything possible is done, although not every source is synced.
    fn go_without_all(&mut self, state: &mut LoopState) {
        let is_due = self.clock.now().0 >= READY_WITHOUT_ALL;
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
        let served = match self.engine.sizes().services {
            1 => "serving 1 service of the previous run".to_owned(),
            services => format!("serving {services} services of the previous run"),
        };
        let status = format!("{missing}; {served}");
        info!(message_id = %messages::READY, "{status}");
        self.notifier.ready(&status);
    }

    fn lacks_kubernetes_only(&self) -> bool {
        self.engine.unsynced() == [Source::Kubernetes]
    }

    /// Checks the hooks. Logs only changes: a hook that stays broken causes one line, not one every ten seconds.
    fn try_canary(&mut self, state: &mut LoopState) {
        let (taken, links) = (Taken::now(), drift::links(&self.drift.reports));
        let checks = (self.probe)(&mut self.datapath);
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
        let links = drift::links(&self.drift.reports) - links;
        if links > 0 {
            let detail = format!("reattached {links} BPF links that another process had changed");
            events.push(Event { kernel: Kernel::Done, ..Event::for_daemon(What::Repaired, detail) });
        }
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
        let unanswered = self.snapshot.borrow().facts().health_check_port_error(None).map(ToString::to_string);
        checks.extend(unanswered.map(|error| Check::passed("healthz", error)));
        checks.extend(node_addresses(&self.snapshot.borrow()));
        self.health.send_replace(Arc::new(Health { heartbeat: self.clock.now(), checks }));
    }
}

/// The addresses for NodePorts that the kernel has not accepted; usually none.
fn node_addresses(snapshot: &Snapshot) -> Option<Check> {
    let (addr, error) = snapshot.unanswered_node_addrs().next()?;
    let count = snapshot.unanswered_node_addrs().count();
    let detail = format!("NodePorts do not work on {count} addresses of this node, the first is {addr}: {error}");
    Some(Check::passed("node-addresses", detail))
}

/// Logs one line for each important change; a steady state logs nothing.
fn report(round: &Round) {
    const SHOWN: usize = 8;
    for (address, error) in round.errors.iter().take(SHOWN) {
        warn!(message_id = %messages::FRONTEND_REFUSED, frontend = %address, "{address} cannot be served: {error}");
    }
    if round.errors.len() > SHOWN {
        warn!(
            message_id = %messages::FRONTEND_REFUSED,
            "{} more frontends cannot be served: see `nodelb frontends`", round.errors.len() - SHOWN
        );
    }
    for address in round.healed.iter().take(SHOWN) {
        info!(message_id = %messages::FRONTEND_SERVED, frontend = %address, "{address} is served again");
    }
    report_node_addrs(round, SHOWN);
    report_uplinks(round, SHOWN);
    report_contests(round, SHOWN);
    if round.pruned > 0 {
        info!(
            message_id = %messages::PRUNED,
            "{} frontends that no source describes are removed", round.pruned
        );
    }
    // The checker reports backends with a changed health.
    if round.done > 0 && round.compiled.len() > round.by_checks {
        let names = listed(&round.compiled, SHOWN);
        info!(
            message_id = %messages::APPLIED,
            operations = round.done, failed = round.failed, "applied: {names}"
        );
    }
}

/// Reports addresses of the node that should answer NodePorts but do not.
fn report_node_addrs(round: &Round, shown: usize) {
    for (addr, error) in round.unanswered.iter().take(shown) {
        warn!(
            message_id = %messages::NODE_ADDRESS_REFUSED,
            "NodePorts do not work on {addr}: {error}"
        );
    }
    if round.unanswered.len() > shown {
        warn!(
            message_id = %messages::NODE_ADDRESS_REFUSED,
            "NodePorts do not work on {} more addresses of this node: see `nodelb diff`",
            round.unanswered.len() - shown
        );
    }
    match &round.answered[..] {
        [] => {}
        [addr] => info!(message_id = %messages::NODE_ADDRESS_SERVED, "NodePorts now work on {addr}"),
        [addr, more @ ..] => info!(
            message_id = %messages::NODE_ADDRESS_SERVED,
            "NodePorts now work on {addr} and {} more addresses of this node", more.len()
        ),
    }
}

/// Reports devices by which clients outside the node should be served, but are not.
fn report_uplinks(round: &Round, shown: usize) {
    for (name, error) in round.refused_uplinks.iter().take(shown) {
        warn!(message_id = %messages::UPLINK_REFUSED, "backends beyond {name} cannot be reached from outside: {error}");
    }
    if !round.accepted_uplinks.is_empty() {
        let names = listed(&round.accepted_uplinks, shown);
        info!(message_id = %messages::UPLINK_SERVED, "backends can be reached from outside again by {names}");
    }
}

/// Reports services that lose or regain an address because another service owns it or no longer owns it.
fn report_contests(round: &Round, shown: usize) {
    for AddressConflict { address, claimant, owner, text, described } in round.conflicts.iter().take(shown) {
        warn!(
            message_id = %messages::FRONTEND_CONFLICT,
            frontend = %address, service = %claimant.service, owner = %owner.service,
            "address conflict: {text}; {described} is not served there; remove the address from one of the two"
        );
    }
    if round.conflicts.len() > shown {
        warn!(
            message_id = %messages::FRONTEND_CONFLICT,
            "{} more address conflicts: see `nodelb frontends`", round.conflicts.len() - shown
        );
    }
    for Takeover { address, owner, before } in round.takeovers.iter().take(shown) {
        info!(
            message_id = %messages::FRONTEND_TAKEN_OVER,
            frontend = %address, service = %owner.service, "{owner} takes over {address} from {before}"
        );
    }
    if round.takeovers.len() > shown {
        info!(
            message_id = %messages::FRONTEND_TAKEN_OVER,
            "{} more frontends now belong to the next service that claims them", round.takeovers.len() - shown
        );
    }
}

/// The maximum number of ports without a backend that the journal names in a second: a source that disappears may empty
/// all.
const LOSSES_BY_NAME: usize = 20;

/// The lost backends that were logged in one second.
#[derive(Default)]
struct Losses {
    second: u64,
    logged: usize,
    suppressed: usize,
}

impl Losses {
    /// Begins the current second if it is a new one; returns how many lost backends were not logged in the previous
    /// one.
    fn turn_over(&mut self, now: Moment) -> usize {
        if now.0 / 1_000 == self.second {
            return 0;
        }
        std::mem::replace(self, Self { second: now.0 / 1_000, logged: 0, suppressed: 0 }).suppressed
    }

    /// How many of `count` may be logged by name.
    fn admit(&mut self, count: usize) -> usize {
        let admitted = count.min(LOSSES_BY_NAME.saturating_sub(self.logged));
        self.logged += admitted;
        self.suppressed += count - admitted;
        admitted
    }

    fn report(&mut self, now: Moment) {
        match self.turn_over(now) {
            0 => {}
            suppressed => warn!(
                message_id = %messages::BACKENDS_LOST,
                "{suppressed} more service ports have no usable backend: see `nodelb services`"
            ),
        }
    }
}

/// Reports lost backends with the source that removed them: administrators look for these lines first.
fn report_losses(round: &Round, losses: &mut Losses, now: Moment) {
    losses.report(now);
    for Emptied { key, cause } in &round.emptied[..losses.admit(round.emptied.len())] {
        let Origin { object, resource_version, writer, .. } = &cause.origin;
        warn!(
            message_id = %messages::BACKENDS_LOST,
            service = %key.service, port = %key.port, %object, %resource_version, %writer,
            "{key} has no usable backend: {cause} removed the last one; connections are refused"
        );
    }
    for port in &round.held {
        let Origin { object, resource_version, writer, .. } = &port.cause.origin;
        let (key, text) = (&port.key, &port.text);
        warn!(
            message_id = %messages::SERVICE_HELD,
            service = %key.service, port = %key.port, %object, %resource_version, %writer, "{key} is {text}"
        );
    }
    for Release { port, is_deleted, .. } in &round.released {
        let key = &port.key;
        let why = if *is_deleted { "it was deleted" } else { "it has backends again" };
        info!(
            message_id = %messages::SERVICE_RELEASED,
            service = %key.service, port = %key.port, "{key} is no longer held: {why}"
        );
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The text of the check `reconcile` after the first full reconcile.
fn reconciled(kept: &[Kept]) -> String {
    let reported: Vec<String> = kept.iter().filter_map(describe_kept).collect();
    match reported.as_slice() {
        [] => "every source is synced and the first full reconcile is done".into(),
        reported => format!("the first full reconcile is done, but {}", reported.join("; and ")),
    }
}

/// Logs the sources that are not configured. A file that cannot be read has its own line.
fn warn_of_kept(kept: &[Kept]) {
    for it in kept.iter().filter(|it| it.because == KeptBecause::NotConfigured) {
        if let Some(text) = describe_kept(it) {
            warn!(message_id = %messages::SOURCE_ABSENT, "{text}");
        }
    }
}

/// What is missing, the consequence, and what to do. `None` if nothing of an absent source is left.
fn describe_kept(Kept { source, ports, because }: &Kept) -> Option<String> {
    let count = match ports {
        0 => "no service port is".to_owned(),
        1 => "1 service port is".to_owned(),
        ports => format!("{ports} service ports are"),
    };
    match because {
        KeptBecause::NotConfigured if *ports == 0 => None,
        KeptBecause::NotConfigured => Some(format!(
            "{source} is no longer configured as a source: {count} kept as last known and not updated; configure \
             [{source}] again, or set {source}.enabled to false to remove them"
        )),
        KeptBecause::Incomplete(what) => Some(format!(
            "the source {source} is incomplete: {what}; {count} kept from before the start until it is read"
        )),
    }
}

#[cfg(test)]
#[path = "tests/reconcile.rs"]
mod tests;

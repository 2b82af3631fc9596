//! The task of the health checks: checks the targets that the schedule names, and reports the results to the owner task.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodelb_core::compile::guard::Guard;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::Source;
use nodelb_core::state::used::Used;
use nodelb_core::table::Facts;
use nodelb_host::clock::{at, ticking, until};
use nodelb_host::state_file::Limits;
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinHandle, JoinSet};

use super::ask::{CheckFailure, Prepare, ask};
use super::board::{Board, Entered, Followed, TargetId};
use super::journal::Journal;
use super::routes::{Routes, evidence_after};
use super::schedule::{Due, Schedule};
use super::state::{CheckOutcome, CheckReport, LastCheck};
use super::state_file::{self, Stored};
use crate::OwnerHandle;

struct Checker {
    owner: OwnerHandle,
    /// The addresses that Kubernetes services must not make this host connect to; `None` if these are not checked.
    kubernetes: Option<Guard>,
    reports: watch::Sender<Arc<CheckReport>>,
    prepare: Prepare,
    /// Seed of the jitter, which keeps the hosts of a network from checking at the same times.
    seed: u64,
    /// Maximum number of file descriptors for checks.
    sockets: usize,
    timeouts: CheckTimeouts,
}

/// Intervals and time limits that need no configuration.
#[derive(Clone, Copy, Debug)]
struct CheckTimeouts {
    /// Time during which turns are collected and then reported together.
    gather: Duration,
    /// Due checks begin together in steps of this length.
    grain: Duration,
    /// Interval between updates of the journal, the metrics and the state directory.
    tick: Duration,
    /// Minimum time between two writes to the state directory.
    save_every: Duration,
    /// Time limit for the state directory at the end.
    timeout: Duration,
}

impl Default for CheckTimeouts {
    fn default() -> Self {
        Self {
            gather: Duration::from_millis(50),
            grain: Duration::from_millis(5),
            tick: Duration::from_secs(1),
            save_every: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        }
    }
}

impl CheckTimeouts {
    fn of_file(self) -> Limits {
        Limits { every: self.save_every, retry: self.save_every, timeout: self.timeout }
    }
}

/// Maximum number of open checks: far more than ten thousand healthy targets need.
const MAX_OPEN: usize = 4_096;

/// File descriptors that are not for checks: maps, links, the admin API, apiservers.
const OTHER_DESCRIPTORS: u64 = 512;

/// Returns the number of sockets that this process may use for checks. Raises the process's own soft limit as far as
/// permitted: systemd leaves it low for programs that use select(2), which nodelb does not.
fn room_for_sockets() -> usize {
    let wanted = MAX_OPEN as u64 + OTHER_DESCRIPTORS;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return MIN_SOCKETS };
    let limit = soft.max(wanted.min(hard));
    let limit = if limit > soft && setrlimit(Resource::RLIMIT_NOFILE, limit, hard).is_err() { soft } else { limit };
    usize::try_from(limit.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX).max(MIN_SOCKETS)
}

/// Minimum number of sockets: with fewer, nothing would be checked.
const MIN_SOCKETS: usize = 64;

/// The results of the previous run, from the state directory.
pub async fn load(directory: &Path) -> Stored {
    state_file::load(directory, CheckTimeouts::default().of_file()).await
}

/// Sends the results of the previous run to the owner task, then starts the checker, which runs until `shutdown` is ready or
/// the owner task has ended. Returns its reports, and the task. `kubernetes` has the addresses that Kubernetes services must
/// not make this host connect to, if their backends are checked.
pub async fn start(
    owner: &OwnerHandle,
    kubernetes: Option<Guard>,
    stored: Stored,
    prepare: Prepare,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> (watch::Receiver<Arc<CheckReport>>, JoinHandle<()>) {
    let (reports_in, reports) = watch::channel(Arc::default());
    let checker = Checker {
        owner: owner.clone(),
        kubernetes,
        reports: reports_in,
        prepare,
        seed: std::process::id().into(),
        sockets: room_for_sockets(),
        timeouts: CheckTimeouts::default(),
    };
    (reports, start_with(checker, stored, shutdown).await)
}

/// No connection goes to a backend that was unhealthy before the start if the owner task has the results before the source
/// reports.
async fn start_with(
    checker: Checker,
    mut stored: Stored,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let is_checked = |source| source == Source::Files || checker.kubernetes.is_some();
    let maps = checker.owner.snapshot.borrow().realised.clone();
    let used = (Used::of(&maps, is_checked), Used::of_passed(&maps, is_checked));
    let mut board = Board::new(used, checker.kubernetes.clone());
    state_file::log(stored.saved());
    board.recall(stored.saved().clone());
    let mut running = RunningChecker {
        board,
        schedule: Schedule::new(checker.seed, MAX_OPEN.min(checker.sockets)),
        asking: JoinSet::new(),
        open: HashMap::new(),
        routes: Routes::default(),
        journal: Journal::default(),
        report: CheckReport::default(),
        tell_at: None,
        checker,
    };
    running.publish().await;
    tokio::spawn(async move {
        until(shutdown, running.run_until_closed(&mut stored)).await;
        stored.close(running.board.unhealthy()).await;
    })
}

/// Whether the address belongs to the node: it can be reached without a network. True for every address while the
/// node's addresses are unknown.
fn is_local(node: &NodeFacts, addr: Addr) -> bool {
    addr.is_loopback() || node.addresses.is_empty() || node.addresses.contains(&addr)
}

struct Open {
    due: Due,
    asked: Moment,
    interval: Duration,
    addr: Addr,
}

struct RunningChecker {
    checker: Checker,
    board: Board,
    schedule: Schedule,
    asking: JoinSet<Ended>,
    open: HashMap<task::Id, Open>,
    routes: Routes,
    journal: Journal,
    report: CheckReport,
    /// When turns are reported.
    tell_at: Option<Moment>,
}

impl RunningChecker {
    async fn run_until_closed(&mut self, stored: &mut Stored) {
        // Whether the unhealthy backends may differ from those in the state file.
        let mut is_outdated = false;
        // Whether a turn was the reason for a write since the last tick: the first one does not wait for it.
        let mut has_saved = false;
        let mut tick = ticking(self.checker.timeouts.tick);
        let clock = self.checker.owner.clock;
        let instant_of = |moment: Option<Moment>| moment.map(|moment| clock.instant_of(moment));
        let mut snapshots = self.checker.owner.snapshot.clone();
        snapshots.mark_changed();
        loop {
            let begin_at = self.schedule.next_due().map(|due| self.in_grains(due));
            let tell_at = self.tell_at;
            tokio::select! {
                changed = snapshots.changed() => {
                    let facts = snapshots.borrow_and_update().facts.clone();
                    is_outdated |= self.follow(&facts);
                    if changed.is_err() || !self.publish().await {
                        return;
                    }
                }
                Some(asked) = self.asking.join_next_with_id() => {
                    is_outdated |= self.take(asked);
                }
                unhealthy = stored.late() => {
                    state_file::log(&unhealthy);
                    self.board.recall(unhealthy);
                    is_outdated = true;
                    if !self.publish().await {
                        return;
                    }
                }
                () = at(instant_of(begin_at)) => {}
                () = at(instant_of(tell_at)) => {
                    self.tell_at = None;
                    if !self.publish().await {
                        return;
                    }
                    if !std::mem::replace(&mut has_saved, true) {
                        is_outdated = false;
                        stored.save(self.board.unhealthy());
                    }
                }
                _ = tick.tick() => {
                    has_saved = false;
                    self.tick();
                    if !self.publish().await {
                        return;
                    }
                    if std::mem::take(&mut is_outdated) {
                        stored.save(self.board.unhealthy());
                    }
                }
            }
            self.begin();
        }
    }

    /// Checks what follows from these facts. Returns whether the unhealthy backends may have changed.
    fn follow(&mut self, facts: &Facts) -> bool {
        let Followed { entered, left } = self.board.follow(facts);
        let now = self.checker.owner.clock.now();
        for target in left {
            self.schedule.leave(target);
            self.routes.leave(target);
        }
        for Entered { id, service, interval, .. } in entered {
            self.schedule.enter(id, &service, interval, now);
        }
        self.board.has_results()
    }

    async fn publish(&mut self) -> bool {
        let changes = self.board.changes(self.checker.owner.clock.now());
        self.checker.owner.send(changes).await
    }

    fn begin(&mut self) {
        let now = self.checker.owner.clock.now();
        while let Some(due) = self.schedule.next(now) {
            self.report.late_millis += due.late;
            let snapshot = Arc::clone(&self.checker.owner.snapshot.borrow());
            let Some(question) = self.board.question(due.target, &snapshot.realised) else {
                // Not reached: the schedule does not name a target that has left.
                self.schedule.leave(due.target);
                self.schedule.close(due, false, Duration::ZERO, now);
                continue;
            };
            let prepare = Arc::clone(&self.checker.prepare);
            let (interval, addr) = (question.check.interval, Addr::from(question.at.ip()));
            let open = Open { due, asked: now, interval, addr };
            let asking = self.asking.spawn(async move {
                let begun = Instant::now();
                (ask(&question, &prepare).await, begun.elapsed())
            });
            self.open.insert(asking.id(), open);
        }
    }

    /// Takes an answer and all others that are waiting. Returns whether a backend has turned.
    fn take(&mut self, first: Answered) -> bool {
        let now = self.checker.owner.clock.now();
        let (mut next, mut has_turned) = (Some(first), false);
        while let Some(answered) = next {
            let (id, (answer, took)) = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    let text = format!("the health check task failed; please report this: {error}").into();
                    let failure = CheckFailure { outcome: CheckOutcome::Unasked, text, has_no_route: false };
                    (error.id(), (Err(failure), Duration::ZERO))
                }
            };
            if let Some(open) = self.open.remove(&id) {
                let answer = self.weigh(&open, answer);
                let Open { due, interval, .. } = open;
                let target = due.target;
                let outcome = answer.as_ref().map_or_else(|failure| failure.outcome, |()| CheckOutcome::Passed);
                self.schedule.close(due, outcome == CheckOutcome::Timeout, interval, now);
                *self.report.done.entry(outcome).or_default() += 1;
                if outcome != CheckOutcome::Unasked {
                    self.board.note(target, LastCheck { outcome, at: now, took });
                }
                has_turned |= self.record(target, answer, now);
            }
            next = self.asking.try_join_next_with_id();
        }
        has_turned
    }

    /// Returns the answer as it counts. A host that has had no route to any target of the family for a while, such as
    /// before its network is up, shows nothing about a backend, until that has lasted for long. A target on this host
    /// has a route in any state of the network.
    fn weigh(&mut self, open: &Open, answer: Result<(), CheckFailure>) -> Result<(), CheckFailure> {
        let (target, family) = (open.due.target, open.addr.family());
        let is_unasked = matches!(&answer, Err(failure) if failure.outcome == CheckOutcome::Unasked);
        // A target may have left during its check.
        let Some(check) = self.board.check(target).filter(|_| !is_unasked) else { return answer };
        match answer {
            Err(failure) if failure.has_no_route => {
                let has_lasted = self.routes.note_missing(target, &check, open.asked);
                let after = evidence_after(&check, open.asked);
                let counts = has_lasted || self.routes.lead_anywhere(family, after);
                let outcome = if counts { failure.outcome } else { CheckOutcome::Unasked };
                Err(CheckFailure { outcome, ..failure })
            }
            answer => {
                if is_local(self.checker.owner.snapshot.borrow().facts.node(), open.addr) {
                    self.routes.leave(target);
                } else {
                    self.routes.note(target, family, open.asked);
                }
                answer
            }
        }
    }

    /// Returns whether the answer has turned the target's backends.
    fn record(&mut self, target: TargetId, answer: Result<(), CheckFailure>, now: Moment) -> bool {
        if let Err(CheckFailure { outcome: CheckOutcome::Unasked, text, .. }) = &answer {
            self.journal.cannot_ask(text);
            return false;
        }
        self.journal.note_asked();
        let Some(turn) = self.board.record(target, answer.map_err(|failure| failure.text)) else { return false };
        self.journal.log(&turn);
        let gather = u64::try_from(self.checker.timeouts.gather.as_millis()).unwrap_or(u64::MAX);
        self.tell_at.get_or_insert(now.plus(gather));
        true
    }

    fn tick(&mut self) {
        self.report.targets = self.board.counts();
        let has_targets = self.report.targets.values().any(|number| *number > 0);
        self.report.unsent = self.journal.tick(self.checker.owner.clock.now()).filter(|_| has_targets);
        self.report.open = self.schedule.open();
        self.report.last = self.board.last();
        if **self.checker.reports.borrow() != self.report {
            self.checker.reports.send_replace(Arc::new(self.report.clone()));
        }
    }

    /// Rounds up to a moment when checks begin, so that not every check wakes the task separately.
    fn in_grains(&self, due: Moment) -> Moment {
        let grain = u64::try_from(self.checker.timeouts.grain.as_millis()).unwrap_or(1).max(1);
        Moment(due.0.next_multiple_of(grain))
    }
}

/// The answer, and the time that it took.
type Ended = (Result<(), CheckFailure>, Duration);

type Answered = Result<(task::Id, Ended), JoinError>;

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;

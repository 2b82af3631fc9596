//! The task of the resolver: passes on the changes of the file source, asks the questions that are due, and sends the
//! slices that follow from the answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{ServiceName, Slice, SliceName, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::{at, ticking, unix_seconds, until};
use nodelb_host::register::Register;
use nodelb_host::state_file::{Limits, SavedState};
use nodelb_host::threads::Threads;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinError, JoinHandle, JoinSet};

use super::ask::AskTimeouts;
use super::ask_all::{Asked, ask_all};
use super::due::Which;
use super::frontends::Frontends;
use super::in_use::{InUse, Settled};
use super::journal;
use super::names::{Bounds, Names, Reply};
use super::report::{DnsReport, QueryResult, report};
use super::servers::Servers;
use super::state_file::{self, Saved};
use super::system;
use crate::config::{Dns, DnsServer};
use crate::files::Batch;
use crate::files::merge::inline_service;
use crate::files::named::Question;
use crate::reconcile::OwnerHandle;

/// The maximum number of questions that wait for an answer.
const MAX_OPEN: usize = 64;
/// The maximum number of these that have failed before. Names that no server answers for do not delay the others.
const MAX_FAILED_OPEN: usize = MAX_OPEN / 2;
/// Interval at which reports are published, and at which addresses are compared with the frontends of nodelb.
const TICK_EVERY: Duration = Duration::from_millis(TICK);
/// The same in milliseconds.
const TICK: u64 = 1_000;
const SYSTEM_EVERY: Duration = Duration::from_secs(5);
const SYSTEM_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of readings of resolv.conf(5) that hang.
const MAX_READS: usize = 4;
/// How long the report that the files are synced waits for the first answers, in milliseconds.
const FIRST_ANSWERS: u64 = 3_000;
/// Questions that are due begin together in steps of this length, in milliseconds.
const GRAIN: u64 = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct DnsTimeouts {
    pub(super) ask: AskTimeouts,
    /// The time after which the state directory is written again if it could not be.
    pub(super) save_again: Duration,
    /// Time limit for the state directory: at start, while services wait for it, and at the end.
    pub(super) timeout: Duration,
}

impl Default for DnsTimeouts {
    fn default() -> Self {
        Self {
            ask: AskTimeouts {
                udp: Duration::from_secs(2),
                tcp: Duration::from_secs(5),
                total: Duration::from_secs(10),
            },
            save_again: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        }
    }
}

pub(super) struct Resolver {
    /// From the file source.
    pub(super) incoming: mpsc::Receiver<Batch>,
    /// To the owner task.
    pub(super) outgoing: mpsc::Sender<Vec<Change>>,
    pub(super) snapshot: watch::Receiver<Arc<Snapshot>>,
    pub(super) clock: nodelb_host::clock::Clock,
    pub(super) reports: watch::Sender<Arc<DnsReport>>,
    pub(super) register: Register,
    /// The servers; empty for those of `resolv_conf`.
    pub(super) servers: Vec<DnsServer>,
    pub(super) resolv_conf: PathBuf,
    pub(super) bounds: Bounds,
    pub(super) directory: PathBuf,
    pub(super) timeouts: DnsTimeouts,
}

pub struct Started {
    pub reports: watch::Receiver<Arc<DnsReport>>,
    /// The task, which stores its state when it ends.
    pub task: JoinHandle<()>,
}

/// Starts the resolver between the file source and the owner task; it runs until `shutdown` is ready or the owner task has
/// ended. `directory` is the state directory.
pub fn start(
    incoming: mpsc::Receiver<Batch>,
    config: &Dns,
    owner: &OwnerHandle,
    (directory, register): (PathBuf, Register),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Started {
    let (reports_in, reports) = watch::channel(Arc::default());
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let resolver = Resolver {
        incoming,
        outgoing: owner.changes.clone(),
        snapshot: owner.snapshot.clone(),
        clock: owner.clock,
        reports: reports_in,
        register,
        servers: config.servers.clone(),
        resolv_conf: PathBuf::from("/etc/resolv.conf"),
        bounds: Bounds {
            min_ttl: u64::from(config.min_ttl.0) * 1_000,
            max_ttl: u64::from(config.max_ttl.0) * 1_000,
            hold: config.hold.0.map(millis),
        },
        directory,
        timeouts: DnsTimeouts::default(),
    };
    Started { reports, task: tokio::spawn(run(resolver, shutdown)) }
}

/// Runs the resolver. The changes of the file source are passed on only after the answers of the previous run are known.
pub(super) async fn run(resolver: Resolver, shutdown: impl Future<Output = ()>) {
    let DnsTimeouts { save_again: retry, timeout, .. } = resolver.timeouts;
    // Each tick writes at most once.
    let limits = Limits { every: Duration::ZERO, retry, timeout };
    let mut stored = state_file::load(&resolver.directory, limits).await;
    let mut names = Names::new(resolver.bounds, std::process::id().into(), stored.saved().answers.clone());
    names.recall_held(stored.saved().held.clone(), resolver.clock.now());
    let mut running = Running {
        names,
        in_use: InUse::new(stored.saved().in_use.clone()),
        servers: Servers::default(),
        server_problems: Vec::new(),
        reads: Threads::new("resolv-conf", MAX_READS),
        asking: JoinSet::new(),
        open: HashMap::new(),
        sent: BTreeMap::new(),
        leaving: BTreeMap::new(),
        refused: BTreeMap::new(),
        files: None,
        frontends: Frontends::default(),
        synced: None,
        wait_until: resolver.clock.now::<Moment>().plus(FIRST_ANSWERS),
        is_complete: false,
        is_outdated: false,
        stored_at: None,
        compared: Weak::new(),
        report: DnsReport::default(),
        resolver,
    };
    until(shutdown, running.run_until_closed(&mut stored)).await;
    stored.close(running.saved()).await;
}

struct Running {
    resolver: Resolver,
    names: Names,
    in_use: InUse,
    servers: Servers,
    /// Servers that are configured and cannot be asked.
    server_problems: Vec<String>,
    reads: Threads,
    asking: JoinSet<Asked>,
    /// The questions that wait for an answer, and whether each had failed before.
    open: HashMap<task::Id, (Question, bool)>,
    /// The slices as the owner task has them.
    sent: BTreeMap<SliceName, Slice>,
    /// Slices that the files do not have any more and the owner task still has, with their services.
    leaving: BTreeMap<SliceName, ServiceName>,
    /// Addresses that are left out, by slice.
    refused: BTreeMap<SliceName, String>,
    /// The last [`Change::Synced`] of the file source: what it could not read.
    files: Option<Option<Arc<str>>>,
    frontends: Frontends,
    /// The last [`Change::Synced`] that was sent.
    synced: Option<Option<Arc<str>>>,
    /// Until when the first [`Change::Synced`] waits for the first answers, so that a usual start is complete at once.
    wait_until: Moment,
    /// Whether the files were read completely once since the start, and the owner task knows it.
    is_complete: bool,
    /// Whether the state file lacks something.
    is_outdated: bool,
    /// When something was stored and reported without waiting for a tick.
    stored_at: Option<Moment>,
    /// The snapshot with which the addresses were compared.
    compared: Weak<Snapshot>,
    report: DnsReport,
}

impl Running {
    async fn run_until_closed(&mut self, stored: &mut SavedState<Saved>) {
        let (mut tick, mut system) = (ticking(TICK_EVERY), ticking(SYSTEM_EVERY));
        self.read_servers().await;
        loop {
            let has_room = self.asking.len() < MAX_OPEN;
            let due = self.names.next_due(self.startable()).filter(|_| has_room);
            let begin_at = due.map(|due| self.resolver.clock.instant_of(Moment(due.0.next_multiple_of(GRAIN))));
            let passed = tokio::select! {
                Some(batch) = self.resolver.incoming.recv() => {
                    let passed = self.pass_on(batch).await;
                    self.store_at_once(stored);
                    passed
                }
                Some(asked) = self.asking.join_next_with_id() => {
                    self.is_outdated |= self.take(asked);
                    let passed = self.publish().await;
                    if self.is_outdated {
                        self.store_at_once(stored);
                    }
                    passed
                }
                () = at(begin_at) => Ok(()),
                _ = tick.tick() => {
                    self.store_and_report(stored);
                    self.publish().await
                }
                _ = system.tick() => {
                    self.read_servers().await;
                    Ok(())
                }
                // The file source has ended.
                else => return,
            };
            if passed.is_err() {
                return;
            }
            self.begin();
        }
    }

    /// Stores and reports what has changed, unless that has just been done: then the next tick does. A daemon that is killed
    /// would otherwise start with backends that are older than those of the maps.
    fn store_at_once(&mut self, stored: &mut SavedState<Saved>) {
        let now: Moment = self.resolver.clock.now();
        if self.stored_at.is_none_or(|stored_at| now >= stored_at.plus(TICK)) {
            self.stored_at = Some(now);
            self.store_and_report(stored);
        }
    }

    fn store_and_report(&mut self, stored: &mut SavedState<Saved>) {
        if std::mem::take(&mut self.is_outdated) {
            stored.save(self.saved());
        }
        self.tick();
    }

    fn saved(&self) -> Saved {
        Saved { answers: self.names.known(), in_use: self.in_use.saved(), held: self.names.held() }
    }

    /// Reads the servers of the system, if no others are configured and there are names.
    async fn read_servers(&mut self) {
        if self.names.wanted().is_empty() && !self.servers.is_empty() {
            return;
        }
        let (path, configured) = (self.resolver.resolv_conf.clone(), self.resolver.servers.clone());
        let read = move || system::read(&configured, &path);
        if let Ok((servers, problems)) = self.reads.run_within(SYSTEM_TIMEOUT, read).await {
            self.servers.set(&servers);
            self.server_problems = problems;
        }
    }

    /// Passes a batch of the file source on. Slices of new names with known answers come before its changes, and those
    /// that are removed leave after them, so that no service is without backends in between.
    async fn pass_on(&mut self, batch: Batch) -> Result<(), SendError<Vec<Change>>> {
        let now = self.resolver.clock.now();
        self.names.follow(Arc::clone(&batch.named), now);
        self.in_use.follow(&batch.named, !self.is_complete);
        self.frontends.note(&batch.changes);
        let mut changes = self.slices();
        for change in batch.changes {
            match change {
                Change::Synced { source: Source::Files, incomplete } => self.files = Some(incomplete),
                Change::RemoveSlice(slice, Source::Files) => match inline_service(&slice) {
                    Some(service) => drop(self.leaving.insert(slice, service)),
                    None => changes.push(Change::RemoveSlice(slice, Source::Files)),
                },
                Change::UpsertSlice(slice) => {
                    self.leaving.remove(&slice.name);
                    changes.push(Change::UpsertSlice(slice));
                }
                change => changes.push(change),
            }
        }
        let wanted = self.names.wanted();
        let (sent, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.sent).into_iter().partition(|(slice, _)| wanted.contains_key(slice));
        self.sent = sent;
        self.leaving.extend(gone.into_iter().map(|(name, slice)| (name, slice.service)));
        self.refused.retain(|slice, _| wanted.contains_key(slice));
        changes.extend(self.departures());
        self.read_servers().await;
        self.send(changes).await
    }

    /// The removals of slices. A slice stays while its service has no backends but those of names that have no answer
    /// yet.
    fn departures(&mut self) -> Vec<Change> {
        if self.leaving.is_empty() {
            return Vec::new();
        }
        let awaiting = self.awaiting_backends();
        let leaving = std::mem::take(&mut self.leaving);
        let (staying, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            leaving.into_iter().partition(|(_, service)| awaiting.contains(service));
        self.leaving = staying;
        gone.into_keys().map(|slice| Change::RemoveSlice(slice, Source::Files)).collect()
    }

    /// The services with a name that has no answer yet, and without backends of other names.
    fn awaiting_backends(&self) -> BTreeSet<ServiceName> {
        let has_backends = |slice: &Slice| slice.ports.iter().any(|port| !port.backends.is_empty());
        let is_unanswered =
            |question| self.names.entry(question).is_some_and(|entry| entry.known.is_none() && !entry.was_answered);
        let (mut awaiting, mut served) = (BTreeSet::new(), BTreeSet::new());
        for (name, named) in self.names.wanted() {
            let services = match self.sent.get(name) {
                Some(slice) if has_backends(slice) => &mut served,
                Some(_) if !is_unanswered(&named.question) => continue,
                _ => &mut awaiting,
            };
            services.insert(&named.service);
        }
        awaiting.difference(&served).copied().cloned().collect()
    }

    async fn publish(&mut self) -> Result<(), SendError<Vec<Change>>> {
        let mut changes = self.slices();
        changes.extend(self.departures());
        self.send(changes).await
    }

    /// Fails only if the owner task has ended, because the daemon ends.
    async fn send(&mut self, mut changes: Vec<Change>) -> Result<(), SendError<Vec<Change>>> {
        if let Some(incomplete) = self.new_sync() {
            if incomplete.is_none() && !self.is_complete {
                self.is_complete = true;
                self.names.forget_recalled();
                self.in_use.forget_recalled();
                // The maps may have backends of names that have no slice yet.
                self.names.mark_all_dirty();
                changes.extend(self.slices());
            }
            changes.push(Change::Synced { source: Source::Files, incomplete });
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.resolver.outgoing.send(changes).await
    }

    /// The slices that differ from those of the owner task.
    fn slices(&mut self) -> Vec<Change> {
        let dirty = self.names.take_dirty();
        if dirty.is_empty() {
            return Vec::new();
        }
        let snapshot = Arc::clone(&self.resolver.snapshot.borrow());
        let is_frontend = |address: L4Addr| self.frontends.has(address) || snapshot.is_frontend(address);
        let mut changes = Vec::new();
        for name in dirty {
            let Some(named) = self.names.wanted().get(&name).cloned() else { continue };
            let before = self.sent.get(&name);
            let reported = self.in_use.reported(&name, before.is_some(), self.is_complete);
            let Some(settled) = self.in_use.settle(&named, &self.names, &is_frontend, reported) else { continue };
            let Settled { slice: new, refused, has_changed } = settled;
            self.is_outdated |= has_changed;
            match refused {
                Some(refused) => drop(self.refused.insert(name.clone(), refused)),
                None => drop(self.refused.remove(&name)),
            }
            if before.is_none_or(|before| (&before.ports, &before.problem) != (&new.ports, &new.problem)) {
                self.leaving.remove(&name);
                self.sent.insert(name, new.clone());
                changes.push(Change::UpsertSlice(new));
            }
        }
        changes
    }

    /// What the files lacked, if it differs from the last report about it. The first report waits for the first answers.
    fn new_sync(&mut self) -> Option<Option<Arc<str>>> {
        let files = self.files.clone()?;
        let is_early = || self.resolver.clock.now::<Moment>() < self.wait_until;
        if self.synced.is_none() && self.names.has_unheard() && is_early() || self.synced.as_ref() == Some(&files) {
            return None;
        }
        self.synced = Some(files.clone());
        Some(files)
    }

    fn startable(&self) -> Which {
        let failed = self.open.values().filter(|(_, has_failed)| *has_failed).count();
        if failed < MAX_FAILED_OPEN { Which::All } else { Which::NotFailed }
    }

    fn begin(&mut self) {
        let now = self.resolver.clock.now();
        while self.asking.len() < MAX_OPEN {
            let Some(question) = self.names.take_due(now, self.startable()) else { return };
            let has_failed = self.names.has_failed(&question);
            let servers = self.servers.in_order(now);
            let (asked, register, limits) =
                (question.clone(), Arc::clone(&self.resolver.register), self.resolver.timeouts.ask);
            let asking = self.asking.spawn(async move { ask_all(&asked, &servers, &register, limits).await });
            self.open.insert(asking.id(), (question, has_failed));
        }
    }

    /// Takes an answer and all others that are waiting. Returns whether any records have changed.
    fn take(&mut self, first: Result<(task::Id, Asked), JoinError>) -> bool {
        let (now, unix) = (self.resolver.clock.now(), unix_seconds(SystemTime::now()));
        let (mut next, mut has_changed) = (Some(first), false);
        while let Some(asked) = next {
            let (id, asked) = match asked {
                Ok(asked) => asked,
                Err(error) => {
                    let why = format!("the query failed; please report this: {error}").into();
                    (error.id(), Asked { reply: Reply::Failed(why), tried: Vec::new() })
                }
            };
            let open = self.open.remove(&id);
            for (server, result) in asked.tried {
                let has_responded = result.as_ref().map_or_else(|failure| failure.has_responded, |_| true);
                match &open {
                    _ if has_responded => self.servers.note_response(server),
                    Some((it, _)) => self.servers.note_silence(server, (&it.name, &self.names.asking()), now),
                    None => {}
                }
                let result = result.unwrap_or_else(|failure| QueryResult::of_failure(&failure));
                *self.report.queries.entry(result).or_default() += 1;
            }
            if let Some((question, _)) = open {
                has_changed |= self.names.answer(&question, asked.reply, now, unix);
            }
            next = self.asking.try_join_next_with_id();
        }
        has_changed
    }

    fn tick(&mut self) {
        let snapshot = Arc::downgrade(&self.resolver.snapshot.borrow());
        if !self.compared.ptr_eq(&snapshot) {
            self.compared = snapshot;
            self.names.mark_all_dirty();
        }
        let (now, unix) = (self.resolver.clock.now(), unix_seconds(SystemTime::now()));
        let queries = std::mem::take(&mut self.report.queries);
        let problems = (&self.refused, &*self.server_problems);
        let new = report(&self.names, problems, queries, (now, unix), self.report.source.as_ref());
        journal::log(self.report.source.as_ref(), new.source.as_ref());
        self.report = new;
        if **self.resolver.reports.borrow() != self.report {
            self.resolver.reports.send_replace(Arc::new(self.report.clone()));
        }
    }
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;

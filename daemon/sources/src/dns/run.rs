//! The task of the resolver: asks the questions that are due about the names in the snapshot, and sends what is known about
//! each to the owner task.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::Question;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::table::Facts;
use nodelb_host::clock::{at, ticking, unix_seconds, until};
use nodelb_host::register::Register;
use nodelb_host::state_file::Limits;
use nodelb_host::threads::Threads;
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinHandle, JoinSet};

use super::ask::AskTimeouts;
use super::ask_all::{Asked, ask_all};
use super::entry::Saved;
use super::journal;
use super::names::{Bounds, Names, Reply, Wanted};
use super::report::{DnsReport, QueryResult, report};
use super::server_address::DnsServer;
use super::servers::Servers;
use super::state_file::{self, Stored};
use super::system;
use crate::OwnerHandle;
use crate::shares::{Share, Shares};

/// The maximum number of questions that wait for an answer.
const MAX_OPEN: usize = 128;
/// Interval at which reports are published.
const TICK_EVERY: Duration = Duration::from_millis(TICK);
/// The same in milliseconds.
const TICK: u64 = 1_000;
const SYSTEM_EVERY: Duration = Duration::from_secs(5);
const SYSTEM_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of readings of resolv.conf(5) that hang.
const MAX_READS: usize = 4;
/// Questions that are due begin together in steps of this length, in milliseconds.
const GRAIN: u64 = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct DnsTimeouts {
    pub(super) ask: AskTimeouts,
    /// The time after which the state directory is written again if it could not be.
    pub(super) save_again: Duration,
    /// Time limit for the state directory at the end.
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

impl DnsTimeouts {
    /// Each tick writes at most once.
    pub(super) fn of_file(&self) -> Limits {
        Limits { every: Duration::ZERO, retry: self.save_again, timeout: self.timeout }
    }
}

pub(super) struct Resolver {
    pub(super) owner: OwnerHandle,
    pub(super) reports: watch::Sender<Arc<DnsReport>>,
    pub(super) register: Register,
    /// The servers; empty for those of `resolv_conf`.
    pub(super) servers: Vec<DnsServer>,
    pub(super) resolv_conf: PathBuf,
    pub(super) bounds: Bounds,
    pub(super) timeouts: DnsTimeouts,
}

/// The answers of the previous run, from the state directory.
pub async fn load(directory: &Path) -> Stored {
    state_file::load(directory, DnsTimeouts::default().of_file()).await
}

/// Sends the answers of the previous run to the owner task, then starts the resolver, which runs until `shutdown` is ready or
/// the owner task has ended. Returns its reports, and the task, which stores its state when it ends. Asks these servers, or
/// those of the system if there are none.
pub async fn start(
    (servers, bounds): (Vec<DnsServer>, Bounds),
    owner: &OwnerHandle,
    stored: Stored,
    register: Register,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> (watch::Receiver<Arc<DnsReport>>, JoinHandle<()>) {
    let (reports_in, reports) = watch::channel(Arc::default());
    let resolver = Resolver {
        owner: owner.clone(),
        reports: reports_in,
        register,
        servers,
        resolv_conf: PathBuf::from("/etc/resolv.conf"),
        bounds,
        timeouts: DnsTimeouts::default(),
    };
    (reports, start_with(resolver, stored, shutdown).await)
}

/// No connection goes to other backends than before the start if the owner task has the answers before the files are read.
pub(super) async fn start_with(
    resolver: Resolver,
    mut stored: Stored,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let mut names = Names::new(resolver.bounds, std::process::id().into());
    state_file::log(stored.saved());
    let recalled = names.recall(stored.saved().clone(), resolver.owner.clock.now());
    resolver.owner.send(recalled).await;
    let mut running = Running {
        names,
        servers: Servers::default(),
        server_problems: Vec::new(),
        reads: Threads::new("resolv-conf", MAX_READS),
        asking: JoinSet::new(),
        shares: Shares::new(MAX_OPEN),
        open: HashMap::new(),
        facts: Facts::default(),
        is_outdated: false,
        stored_at: None,
        report: DnsReport::default(),
        resolver,
    };
    tokio::spawn(async move {
        until(shutdown, running.run_until_closed(&mut stored)).await;
        stored.close(running.names.saved(&running.facts)).await;
    })
}

struct Running {
    resolver: Resolver,
    names: Names,
    servers: Servers,
    /// Servers that are configured and cannot be asked.
    server_problems: Vec<String>,
    reads: Threads,
    asking: JoinSet<Asked>,
    /// The questions that wait to be asked.
    shares: Shares<Question>,
    /// The questions that wait for an answer, and the share of each.
    open: HashMap<task::Id, (Share, Question)>,
    /// The facts that the names are from.
    facts: Facts,
    /// Whether the state file lacks something.
    is_outdated: bool,
    /// When something was stored and reported without waiting for a tick.
    stored_at: Option<Moment>,
    report: DnsReport,
}

impl Running {
    async fn run_until_closed(&mut self, stored: &mut Stored) {
        let (mut tick, mut system) = (ticking(TICK_EVERY), ticking(SYSTEM_EVERY));
        let mut snapshots = self.resolver.owner.snapshot.clone();
        snapshots.mark_changed();
        self.read_servers().await;
        loop {
            let begin_at = self
                .names
                .next_due()
                .map(|due| self.resolver.owner.clock.instant_of(Moment(due.0.next_multiple_of(GRAIN))));
            let is_received = tokio::select! {
                changed = snapshots.changed() => {
                    let facts = snapshots.borrow_and_update().facts.clone();
                    if changed.is_err() {
                        return;
                    }
                    if self.follow(facts) {
                        self.read_servers().await;
                        self.store_at_once(stored);
                    }
                    self.publish().await
                }
                Some(asked) = self.asking.join_next_with_id() => {
                    self.is_outdated |= self.take(asked);
                    let is_received = self.publish().await;
                    if self.is_outdated {
                        self.store_at_once(stored);
                    }
                    is_received
                }
                saved = stored.late() => self.recall(saved).await,
                () = at(begin_at) => true,
                _ = tick.tick() => {
                    self.store_and_report(stored);
                    true
                }
                _ = system.tick() => {
                    self.read_servers().await;
                    true
                }
            };
            if !is_received {
                return;
            }
            self.begin();
        }
    }

    /// Stores and reports what has changed, unless that has just been done: then the next tick does. A daemon that is killed
    /// would otherwise start with backends that are older than those of the maps.
    fn store_at_once(&mut self, stored: &mut Stored) {
        let now: Moment = self.resolver.owner.clock.now();
        if self.stored_at.is_none_or(|stored_at| now >= stored_at.plus(TICK)) {
            self.stored_at = Some(now);
            self.store_and_report(stored);
        }
    }

    fn store_and_report(&mut self, stored: &mut Stored) {
        if std::mem::take(&mut self.is_outdated) {
            stored.save(self.names.saved(&self.facts));
        }
        self.tick();
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

    /// Asks for the names in these facts. Returns whether they, or the backends in use for them, are others than before.
    fn follow(&mut self, facts: Facts) -> bool {
        let now = self.resolver.owner.clock.now();
        let is_of_name = |service: &ServiceName| self.names.services().contains(service);
        let has_used = !self.names.services().is_empty() && facts.reported_since(&self.facts).any(is_of_name);
        let has_names = !facts.named.ptr_eq(&self.facts.named);
        if has_names {
            let wanted: Wanted = facts.named.iter().map(|(slice, named)| (slice.clone(), Arc::clone(named))).collect();
            self.names.follow(Arc::new(wanted), now);
        }
        if is_complete(&facts) && !is_complete(&self.facts) {
            self.names.forget_recalled();
        }
        self.facts = facts;
        self.is_outdated |= has_names || has_used;
        has_names || has_used
    }

    /// Takes what the previous run has stored, which arrives after the start.
    async fn recall(&mut self, saved: Saved) -> bool {
        state_file::log(&saved);
        let recalled = self.names.recall(saved, self.resolver.owner.clock.now());
        if is_complete(&self.facts) {
            self.names.forget_recalled();
        }
        self.is_outdated = true;
        self.resolver.owner.send(recalled).await && self.publish().await
    }

    async fn publish(&mut self) -> bool {
        self.resolver.owner.send(self.names.take_news()).await
    }

    fn begin(&mut self) {
        let now = self.resolver.owner.clock.now();
        while let Some((share, question)) = self.names.take_due(now) {
            self.shares.wait(&share, question);
        }
        while let Some((share, question)) = self.shares.begin() {
            // It may have left the files while it waited, and may have returned.
            if !self.names.is_open(&question) || self.open.values().any(|(_, open)| *open == question) {
                self.shares.end(&share);
                continue;
            }
            let servers = self.servers.in_order(now);
            let (asked, register, limits) =
                (question.clone(), Arc::clone(&self.resolver.register), self.resolver.timeouts.ask);
            let asking = self.asking.spawn(async move { ask_all(&asked, &servers, &register, limits).await });
            self.open.insert(asking.id(), (share, question));
        }
    }

    /// Takes an answer and all others that are waiting. Returns whether any records have changed.
    fn take(&mut self, first: Result<(task::Id, Asked), JoinError>) -> bool {
        let (now, unix) = (self.resolver.owner.clock.now(), unix_seconds(SystemTime::now()));
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
                    Some((_, it)) => self.servers.note_silence(server, (&it.name, &self.names.asking()), now),
                    None => {}
                }
                let result = result.unwrap_or_else(|failure| QueryResult::of_failure(&failure));
                *self.report.queries.entry(result).or_default() += 1;
            }
            if let Some((share, question)) = open {
                self.shares.end(&share);
                has_changed |= self.names.answer(&question, asked.reply, now, unix);
            }
            next = self.asking.try_join_next_with_id();
        }
        has_changed
    }

    fn tick(&mut self) {
        let (now, unix) = (self.resolver.owner.clock.now(), unix_seconds(SystemTime::now()));
        let queries = std::mem::take(&mut self.report.queries);
        let problems = (&self.facts, &*self.server_problems);
        let new = report(&self.names, problems, queries, (now, unix), self.report.source.as_ref());
        journal::log(self.report.source.as_ref(), new.source.as_ref());
        self.report = new;
        if **self.resolver.reports.borrow() != self.report {
            self.resolver.reports.send_replace(Arc::new(self.report.clone()));
        }
    }
}

fn is_complete(facts: &Facts) -> bool {
    facts.is_synced(Source::Files) && facts.incomplete(Source::Files).is_none()
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;

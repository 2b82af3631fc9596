//! The Kubernetes source: remembers, watches, and tells the owner. Owns the store; the only task that does.
//!
//! ```text
//!  state directory ──> remembered changes ──┐
//!  Service watch ───┐                       ├──> Vec<Change> ──> owner
//!  EndpointSlice ───┼── Told ──> store ─────┤
//!  Node ────────────┘                       └──> endpoints of default/kubernetes ──> supervisor
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::addr::Protocol;
use nodelb_core::change::Change;
use nodelb_core::engine::Snapshot;
use nodelb_core::service::{BackendState, ServiceName, Slice, SliceName, Source};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use super::cidrs;
use super::decode::{Heard, Key, Kind};
use super::remember::{self, Remembered};
use super::report::{self, KindReport};
use super::request::Query;
use super::store::{Store, Verdict};
use super::watch::{State, Timing, Told, Watcher};
use crate::apiserver::session::{Apiservers, Report};
use crate::source::SourceReport;

/// How many pieces of news may wait for the store before a watch has to.
const QUEUE: usize = 64;

/// How often the rows of `/sources` are made again, if something changed.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// How many remembered changes make a batch.
const BATCH: usize = 1000;

/// The Kubernetes source: what it is connected to.
pub struct KubernetesSource {
    /// How apiservers are reached.
    pub apiservers: Apiservers,
    /// The owner.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The rows of `/sources`.
    pub reports: watch::Sender<Arc<Vec<SourceReport>>>,
    /// What the owner made of it: what is remembered.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// How things are remembered.
    pub memory: Memory,
    /// Name of this node; its zone is read.
    pub node: String,
    /// How many service ports the kernel holds at start.
    pub expected: usize,
    /// How long everything may take.
    pub timing: Timing,
}

/// What outlives a reboot.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Where.
    pub directory: PathBuf,
    /// A digest of the certificate authority, which tells one cluster from another.
    pub cluster: Option<String>,
    /// How often at most the state is written.
    pub save_every: Duration,
}

/// Runs the source until `shutdown` is ready or the owner no longer listens.
pub async fn run(source: KubernetesSource, shutdown: impl Future<Output = ()>) {
    let (told_in, told) = mpsc::channel(QUEUE);
    let mut running = Running::new(source);
    if running.recall().await.is_err() {
        return;
    }
    let mut watchers = JoinSet::new();
    for kind in Kind::ALL {
        let query = if kind == Kind::Node { Query::node(&running.source.node) } else { Query::all(kind) };
        let (apiservers, timing) = (running.source.apiservers.clone(), running.source.timing.clone());
        let again = Arc::clone(&running.kinds[&kind].again);
        watchers.spawn(Watcher::new(query, apiservers, told_in.clone(), again, timing).run());
    }
    watchers.spawn(cidrs::follow(running.source.apiservers.clone()));
    tokio::select! {
        () = shutdown => {}
        () = running.listen(told) => {}
    }
    watchers.shutdown().await;
    running.save().await;
}

/// The owner no longer listens.
struct OwnerIsGone;

struct Running {
    source: KubernetesSource,
    store: Store,
    kinds: BTreeMap<Kind, OneKind>,
    /// The endpoints of `default/kubernetes`, by slice.
    apiservers: BTreeMap<SliceName, BTreeSet<SocketAddr>>,
    is_reported: bool,
    unsaved: Unsaved,
    /// When the state was last written, if it was.
    saved_at: Option<Instant>,
    save_failed: bool,
}

/// Whether the state on disk is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsaved {
    Nothing,
    /// It was written, perhaps from a snapshot that the owner had not yet brought up to date.
    Perhaps,
    Something,
}

struct OneKind {
    state: State,
    since: SystemTime,
    again: Arc<Notify>,
}

impl Running {
    fn new(source: KubernetesSource) -> Self {
        let kind = |kind| {
            let one = OneKind { state: State::Waiting, since: SystemTime::now(), again: Arc::new(Notify::new()) };
            (kind, one)
        };
        Self {
            store: Store::new(source.expected),
            source,
            kinds: Kind::ALL.into_iter().map(kind).collect(),
            apiservers: BTreeMap::new(),
            is_reported: false,
            unsaved: Unsaved::Nothing,
            saved_at: None,
            save_failed: false,
        }
    }

    /// Tells the owner what was known when the daemon last ran.
    async fn recall(&mut self) -> Result<(), OwnerIsGone> {
        let (path, cluster) = (remember::path(&self.source.memory.directory), self.source.memory.cluster.clone());
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || remember::read(&path, cluster.as_deref()));
        let Remembered { changes, unreadable } = match read.await.map_err(std::io::Error::other).flatten() {
            Ok(remembered) => remembered,
            Err(error) => {
                warn!("{shown} is not used: {error}; the services are learned from an apiserver");
                return Ok(());
            }
        };
        if unreadable > 0 {
            warn!("{shown}: {unreadable} lines make no sense and are not used");
        }
        if changes.is_empty() {
            return Ok(());
        }
        info!("{} objects remembered from {shown}; they count until an apiserver says otherwise", changes.len());
        for change in &changes {
            match change {
                Change::UpsertService(service) => {
                    let ServiceName { namespace, name } = service.name.clone();
                    self.store.remember(Kind::Service, Key { namespace, name });
                }
                Change::UpsertSlice(slice) => {
                    let SliceName { namespace, name } = slice.name.clone();
                    self.store.remember(Kind::EndpointSlice, Key { namespace, name });
                }
                _ => {}
            }
        }
        let mut changes = changes.into_iter();
        loop {
            let batch: Vec<Change> = changes.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.tell(batch).await?;
        }
    }

    async fn listen(&mut self, mut told: mpsc::Receiver<Told>) {
        let mut beat = interval(REPORT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let heard = tokio::select! {
                told = told.recv() => match told {
                    Some(Told::Heard(kind, heard)) => self.hear(kind, heard).await,
                    Some(Told::State(kind, state)) => { self.note(kind, state); Ok(()) }
                    None => return,
                },
                _ = beat.tick() => {
                    self.report();
                    // The first time at once: nodelb may be killed any moment.
                    if self.saved_at.is_none_or(|at| at.elapsed() >= self.source.memory.save_every) {
                        self.save().await;
                    }
                    Ok(())
                }
            };
            if heard.is_err() {
                return;
            }
        }
    }

    async fn hear(&mut self, kind: Kind, heard: Vec<Heard>) -> Result<(), OwnerIsGone> {
        let mut changes = Vec::new();
        for heard in heard {
            if let Verdict::ListAgain { missing, known } = self.store.hear(kind, heard, &mut changes) {
                warn!(
                    "the list of {} lacks {missing} of {known} known objects: nothing is removed before a second list agrees",
                    kind.resource()
                );
                self.kinds[&kind].again.notify_one();
            }
        }
        self.is_reported = false;
        if changes.is_empty() {
            return Ok(());
        }
        self.unsaved = Unsaved::Something;
        self.tell(changes).await
    }

    async fn tell(&mut self, changes: Vec<Change>) -> Result<(), OwnerIsGone> {
        let endpoints = self.learn(&changes);
        self.source.changes.send(changes).await.map_err(|_closed| OwnerIsGone)?;
        if let Some(endpoints) = endpoints {
            // Without a supervisor the daemon ends.
            _ = self.source.apiservers.reports.send(Report::Endpoints(endpoints)).await;
        }
        Ok(())
    }

    /// The endpoints of `default/kubernetes`, if these changes concern them.
    fn learn(&mut self, changes: &[Change]) -> Option<BTreeSet<SocketAddr>> {
        let mut is_concerned = false;
        for change in changes {
            match change {
                Change::UpsertSlice(slice) if is_of_kubernetes(&slice.service) => {
                    is_concerned = true;
                    self.apiservers.insert(slice.name.clone(), endpoints(slice));
                }
                Change::UpsertSlice(Slice { name, .. }) | Change::RemoveSlice(name, _) => {
                    is_concerned |= self.apiservers.remove(name).is_some();
                }
                _ => {}
            }
        }
        is_concerned.then(|| self.apiservers.values().flatten().copied().collect())
    }

    fn note(&mut self, kind: Kind, state: State) {
        let Some(one) = self.kinds.get_mut(&kind) else { return };
        if one.state == state {
            return;
        }
        let (before, now) = (report::permission(kind, &one.state), report::permission(kind, &state));
        match (before, now) {
            (before, Some(now)) if before.as_ref() != Some(&now) => warn!("{now}; what is known stays served"),
            (Some(_), None) if state == State::Watching => info!("{} can be watched", kind.resource()),
            _ => {}
        }
        // One failure after the other is one trouble, since the first.
        if std::mem::discriminant(&one.state) != std::mem::discriminant(&state) {
            one.since = SystemTime::now();
        }
        one.state = state;
        self.is_reported = false;
    }

    fn report(&mut self) {
        if self.is_reported {
            return;
        }
        self.is_reported = true;
        let row = |(kind, one): (&Kind, &OneKind)| {
            let tally = self.store.tally(*kind);
            let is_listed = self.store.was_listed(*kind);
            report::row(&KindReport { kind: *kind, state: &one.state, since: one.since, tally, is_listed })
        };
        let rows: Vec<SourceReport> = self.kinds.iter().map(row).collect();
        self.source.reports.send_if_modified(|reports| {
            let is_new = **reports != rows;
            if is_new {
                *reports = Arc::new(rows);
            }
            is_new
        });
    }

    /// Writes the state, if it is complete and there is something new in it.
    async fn save(&mut self) {
        let is_behind = match self.unsaved {
            Unsaved::Nothing => false,
            Unsaved::Perhaps => self.source.snapshot.has_changed().unwrap_or(false),
            Unsaved::Something => true,
        };
        let is_complete = self.source.snapshot.borrow().facts().is_synced(Source::Kubernetes);
        if !is_behind || !is_complete {
            self.unsaved = if is_behind { self.unsaved } else { Unsaved::Nothing };
            return;
        }
        let snapshot = self.source.snapshot.borrow_and_update().clone();
        let Memory { directory, cluster, .. } = self.source.memory.clone();
        let path = remember::path(&directory);
        let shown = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || remember::write(&path, cluster.as_deref(), &snapshot));
        let error = written.await.map_err(std::io::Error::other).flatten().err();
        if let Some(error) = &error
            && !self.save_failed
        {
            warn!(
                "{shown} cannot be written: {error}; after a reboot without an apiserver the services would be missing"
            );
        }
        self.save_failed = error.is_some();
        self.unsaved = match (self.unsaved, &error) {
            (_, Some(_)) => Unsaved::Something,
            (Unsaved::Something, None) => Unsaved::Perhaps,
            (_, None) => Unsaved::Nothing,
        };
        self.saved_at = Some(Instant::now());
    }
}

fn is_of_kubernetes(service: &ServiceName) -> bool {
    &*service.namespace == "default" && &*service.name == "kubernetes"
}

fn endpoints(slice: &Slice) -> BTreeSet<SocketAddr> {
    let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let backends = ports.flat_map(|port| &port.backends).filter(|backend| backend.state == BackendState::Active);
    backends.map(|backend| SocketAddr::new(backend.addr.ip(), backend.port)).collect()
}

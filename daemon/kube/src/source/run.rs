//! The task of the Kubernetes source: loads the remembered state, starts the watches, and sends changes to the owner
//! task. It is the only task that uses the store.
//!
//! ```text
//!  state directory ──> remembered changes ──┐
//!  Service watch ───┐                       ├──> Vec<Change> ──> owner
//!  EndpointSlice ───┼── WatcherEvent ──> store ─────┤
//!  Node ────────────┘                       └──> endpoints of default/kubernetes ──> supervisor
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::messages;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::service::{BackendState, ServiceName, Slice, SliceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cidrs;
use super::report::{self, KindReport};
use super::state_file::{Saver, StateSettings};
use super::store::{Store, Verdict};
use super::trouble::{Transition, Trouble};
use super::watch::{Restores, State, WatchTimeouts, Watcher, WatcherEvent};
use crate::api::decode::{Key, Kind, ObjectEvent};
use crate::api::request::Query;
use crate::apiserver::session::{Apiservers, Report};
use crate::clock::ticking;

/// The capacity of the queue from the watchers to the store. A full queue blocks the watchers.
const QUEUE: usize = 64;

/// The period at which the rows of `/sources` are updated, if something has changed.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The message for a node that Kubernetes does not know.
const MISSING: &str = "Kubernetes has no Node of this name (if that is not this node's name, set node.name)";

/// The number of remembered changes in a batch.
const BATCH: usize = 1000;

/// The inputs and outputs of the Kubernetes source.
pub struct KubernetesSource {
    /// The connection to an apiserver.
    pub apiservers: Apiservers,
    /// The queue to the owner task.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The rows of `/sources`.
    pub reports: watch::Sender<Arc<Vec<SourceReport>>>,
    /// The latest snapshot of the owner task, which is the state to remember.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The settings of the state file.
    pub state: StateSettings,
    /// The name of this node.
    pub node: String,
    /// The number of service ports in the maps at start.
    pub expected: usize,
    /// The time limits of the watchers.
    pub timeouts: WatchTimeouts,
}

/// Runs the source until `shutdown` is ready or the owner task has ended.
pub async fn run(source: KubernetesSource, shutdown: impl Future<Output = ()>) {
    let (events_in, reported) = mpsc::channel(QUEUE);
    let mut running = Running::new(source);
    let mut shutdown = std::pin::pin!(shutdown);
    let recalled = tokio::select! {
        () = &mut shutdown => return,
        recalled = running.recall() => recalled,
    };
    if recalled.is_err() {
        return;
    }
    let mut watchers = JoinSet::new();
    for kind in Kind::SERVED {
        watchers.spawn(running.watcher(Query::all(kind), events_in.clone()).run());
    }
    let node = running.watch_node();
    watchers.spawn(cidrs::follow(running.source.apiservers.clone()));
    tokio::select! {
        () = &mut shutdown => {}
        () = running.listen(reported, node) => {}
    }
    watchers.shutdown().await;
    running.saver.close().await;
}

/// The owner task has ended.
struct OwnerIsGone;

struct Running {
    source: KubernetesSource,
    store: Store,
    kinds: BTreeMap<Kind, OneKind>,
    /// The state that the watchers share.
    restores: Restores,
    /// The endpoints of `default/kubernetes`, by slice.
    apiservers: BTreeMap<SliceName, BTreeSet<SocketAddr>>,
    is_reported: bool,
    saver: Saver,
    /// The latest known uid of Service `default/kubernetes`.
    cluster: Option<String>,
    /// The reason why `/healthz` asks load balancers to avoid this node.
    leaving: Option<Arc<str>>,
}

/// The watch of this node's Node. Dropping it ends the watch and discards its queued messages.
struct NodeWatch {
    reported: mpsc::Receiver<WatcherEvent>,
    _task: JoinSet<()>,
}

struct OneKind {
    state: State,
    since: SystemTime,
    /// The time at which the apiserver last sent anything about this kind.
    heard: Option<SystemTime>,
    trouble: Trouble,
    again: Arc<Notify>,
}

impl OneKind {
    fn new() -> Self {
        let (since, again) = (SystemTime::now(), Arc::new(Notify::new()));
        Self { state: State::Waiting, since, heard: None, trouble: Trouble::default(), again }
    }
}

impl Running {
    fn new(source: KubernetesSource) -> Self {
        Self {
            store: Store::new(source.expected),
            saver: Saver::new(&source.state, source.snapshot.clone()),
            source,
            kinds: Kind::ALL.into_iter().map(|kind| (kind, OneKind::new())).collect(),
            restores: Restores::default(),
            apiservers: BTreeMap::new(),
            is_reported: false,
            cluster: None,
            leaving: None,
        }
    }

    fn watcher(&self, query: Query, reported: mpsc::Sender<WatcherEvent>) -> Watcher {
        let (apiservers, timeouts) = (self.source.apiservers.clone(), self.source.timeouts.clone());
        let again = Arc::clone(&self.kinds[&query.kind].again);
        Watcher::new(query, apiservers, reported, (again, self.restores.clone()), timeouts)
    }

    fn watch_node(&self) -> NodeWatch {
        let (events_in, reported) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn(self.watcher(Query::node(&self.source.node), events_in).run());
        NodeWatch { reported, _task: task }
    }

    /// If the owner task uses another name for this node now, forgets the previous Node and watches the one of that
    /// name.
    async fn follow_name(&mut self, watch: &mut NodeWatch) -> Result<(), OwnerIsGone> {
        let name = Arc::clone(&self.source.snapshot.borrow().facts().node().name);
        // Without a name, the owner task has not yet processed the facts about the node.
        if name.is_empty() || *name == *self.source.node {
            return Ok(());
        }
        info!(
            message_id = %messages::NODE_NAMED,
            "this node is {name} now, and was {} before: the Node {name} is watched", self.source.node
        );
        self.source.node = name.to_string();
        self.store.forget_node();
        self.kinds.insert(Kind::Node, OneKind::new());
        self.leaving = None;
        self.is_reported = false;
        *watch = self.watch_node();
        self.saver.mark_outdated();
        self.send(vec![Change::NodeObjectUnknown]).await
    }

    /// Sends the remembered state to the owner task.
    async fn recall(&mut self) -> Result<(), OwnerIsGone> {
        let changes = self.source.state.load(&self.source.node).await;
        self.tell_of_node(&changes);
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
                Change::NodeObject(Some(_)) => self.store.remember(Kind::Node, Key::of_node(&self.source.node)),
                _ => {}
            }
        }
        let mut changes = changes.into_iter();
        loop {
            let batch: Vec<Change> = changes.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.send(batch).await?;
        }
    }

    async fn listen(&mut self, mut reported: mpsc::Receiver<WatcherEvent>, mut node: NodeWatch) {
        let mut tick = ticking(REPORT_EVERY);
        let mut published = self.source.snapshot.clone();
        loop {
            let heard = tokio::select! {
                Some(reported) = reported.recv() => self.take(reported).await,
                Some(reported) = node.reported.recv() => self.take(reported).await,
                Ok(()) = published.changed() => self.follow_name(&mut node).await,
                _ = tick.tick() => {
                    self.tick();
                    Ok(())
                }
            };
            if heard.is_err() {
                return;
            }
        }
    }

    async fn take(&mut self, reported: WatcherEvent) -> Result<(), OwnerIsGone> {
        match reported {
            WatcherEvent::ObjectEvent(kind, heard) => return self.apply_events(kind, heard).await,
            WatcherEvent::State(kind, state) => self.note(kind, state),
            WatcherEvent::Progress(kind) => self.progress(kind),
            WatcherEvent::Cluster(uid) => self.identify(uid).await,
        }
        Ok(())
    }

    async fn apply_events(&mut self, kind: Kind, heard: Vec<ObjectEvent>) -> Result<(), OwnerIsGone> {
        let mut changes = Vec::new();
        for heard in heard {
            if kind == Kind::Node && is_of_another(&heard, &self.source.node) {
                continue;
            }
            if let Verdict::ListAgain { missing, known } = self.store.apply(kind, heard, &mut changes) {
                if kind != Kind::Node {
                    warn!(
                        message_id = %messages::MASS_REMOVAL_SUSPECTED,
                        "the list of {} lacks {missing} of {known} that are known, or of the service ports in the kernel: nothing is removed before a second list agrees",
                        kind.resource()
                    );
                }
                self.kinds[&kind].again.notify_one();
            }
        }
        self.tell_of_node(&changes);
        self.is_reported = false;
        if changes.is_empty() {
            return Ok(());
        }
        self.vouch();
        self.saver.mark_outdated();
        self.send(changes).await
    }

    /// Logs that the node is about to be removed, or that it stays after all.
    fn tell_of_node(&mut self, changes: &[Change]) {
        let said = changes.iter().rev().find_map(|change| match change {
            Change::NodeObject(Some(object)) => Some(object.leaving.clone()),
            Change::NodeObject(None) => Some(Some(MISSING.into())),
            _ => None,
        });
        let Some(leaving) = said.filter(|leaving| *leaving != self.leaving) else { return };
        let node = &self.source.node;
        match &leaving {
            Some(why) => warn!(
                message_id = %messages::NODE_BEING_REMOVED,
                "Node {node}: {why}; /healthz tells load balancers to turn away, services go on"
            ),
            None => info!(
                message_id = %messages::NODE_NOT_REMOVED,
                "Node {node} stays: /healthz tells load balancers to come back"
            ),
        }
        self.leaving = leaving;
    }

    async fn send(&mut self, changes: Vec<Change>) -> Result<(), OwnerIsGone> {
        let endpoints = self.learn(&changes);
        self.source.changes.send(changes).await.map_err(|_closed| OwnerIsGone)?;
        if let Some(endpoints) = endpoints {
            // Fails only if the supervisor has ended; then the daemon ends, too.
            _ = self.source.apiservers.reports.send(Report::Endpoints(endpoints)).await;
        }
        Ok(())
    }

    /// The endpoints of `default/kubernetes`, if the changes affect them.
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

    /// Stores the identity of the cluster. Reports it to the supervisor every time, because the supervisor may have
    /// ignored an earlier report.
    async fn identify(&mut self, uid: String) {
        if self.cluster.as_ref().is_some_and(|known| *known != uid) {
            self.vouch();
            self.saver.forget_previous_cluster();
        }
        self.cluster = Some(uid.clone());
        _ = self.source.apiservers.reports.send(Report::Cluster(uid)).await;
    }

    /// Passes the certificate authorities of the session in use to the saver.
    fn vouch(&mut self) {
        if let Some(session) = &*self.source.apiservers.session.borrow() {
            self.saver.set_authorities(&session.link.login().authority.names());
        }
    }

    fn progress(&mut self, kind: Kind) {
        if let Some(one) = self.kinds.get_mut(&kind) {
            one.heard = Some(SystemTime::now());
            self.is_reported = false;
        }
    }

    fn note(&mut self, kind: Kind, state: State) {
        let Some(one) = self.kinds.get_mut(&kind) else { return };
        one.trouble.note(Instant::now(), &state);
        // A retry does not end the failure.
        if one.state == state || state == State::Asking && matches!(one.state, State::Failing(_)) {
            return;
        }
        let (before, now) = (report::permission(kind, &one.state), report::permission(kind, &state));
        match (before, now) {
            (before, Some(now)) if before.as_ref() != Some(&now) => warn!(
                message_id = %messages::WATCH_FORBIDDEN,
                "{now}; what is known stays served"
            ),
            (Some(_), None) if state == State::Watching => info!(
                message_id = %messages::WATCH_WORKS,
                "{} can be watched", kind.resource()
            ),
            _ => {}
        }
        // Consecutive failures keep the time of the first one.
        if std::mem::discriminant(&one.state) != std::mem::discriminant(&state) {
            one.since = SystemTime::now();
        }
        let begins = state == State::Watching;
        one.state = state;
        self.is_reported = false;
        if begins {
            // A client that has seen readiness must not read here that the source still waits for an apiserver.
            self.report();
        }
    }

    /// The periodic work. Never waits.
    fn tick(&mut self) {
        self.vouch();
        let is_connected = self.source.apiservers.session.borrow().is_some();
        for (kind, one) in &mut self.kinds {
            match one.trouble.tick(Instant::now(), is_connected) {
                Some(Transition::Failing(failures, error)) => {
                    let consequence = report::consequence(*kind);
                    let resource = kind.resource();
                    warn!(
                        message_id = %messages::WATCH_FAILED,
                        "{resource}: {failures} requests failed, so {consequence}: {error}; what is known stays served"
                    );
                }
                Some(Transition::Works) => info!(
                    message_id = %messages::WATCH_WORKS,
                    "{} are watched again", kind.resource()
                ),
                None => {}
            }
        }
        self.saver.save_if_outdated();
        self.report();
    }

    fn report(&mut self) {
        if self.is_reported {
            return;
        }
        self.is_reported = true;
        let row = |(kind, one): (&Kind, &OneKind)| {
            let tally = self.store.tally(*kind);
            let is_listed = self.store.was_listed(*kind);
            let (state, since, heard) = (&one.state, one.since, one.heard);
            report::row(&KindReport { kind: *kind, state, since, heard, tally, is_listed })
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
}

/// Whether the message is about another Node than the requested one.
fn is_of_another(heard: &ObjectEvent, node: &str) -> bool {
    let key = match heard {
        ObjectEvent::Upsert(item) => Some(&item.identity.key),
        ObjectEvent::Delete(identity) => Some(&identity.key),
        ObjectEvent::Skipped { key, .. } => key.as_ref(),
        ObjectEvent::ListBegins { .. } | ObjectEvent::Listed(_) => None,
    };
    key.is_some_and(|key| &*key.name != node)
}

fn is_of_kubernetes(service: &ServiceName) -> bool {
    &*service.namespace == "default" && &*service.name == "kubernetes"
}

fn endpoints(slice: &Slice) -> BTreeSet<SocketAddr> {
    let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let backends = ports.flat_map(|port| &port.backends).filter(|backend| backend.state == BackendState::Active);
    backends.map(|backend| SocketAddr::new(backend.addr.ip(), backend.port)).collect()
}

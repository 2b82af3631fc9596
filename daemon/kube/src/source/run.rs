//! The task of the Kubernetes source: loads the remembered state, starts the watches, and sends changes to the owner
//! task. It is the only task that uses the store.
//!
//! ```text
//!  state directory ──> remembered changes ──┐
//!  Service scopes ──┐                       ├──> Vec<Change> ──> owner
//!  EndpointSlices ──┼── Message ──> store ──┘                      │
//!  Node ────────────┘                                              │
//!  supervisor <── endpoints of default/kubernetes <── Followed <───┘
//! ```

use std::future::Future;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::{BackendState, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::cidrs;
use super::followed::Followed;
use super::selecting::{Accept, Selecting};
use super::state_file::{Loaded, Saver, StateSettings};
use super::status::WatchStatus;
use super::store::{InMaps, Store, Verdict};
use super::watch::{Message, Restores, State, WatchTimeouts, Watcher};
use crate::api::decode::{Decoder, Kind, ListWatchEvent};
use crate::api::request::Query;
use crate::api::scope::{Scope, Selection};
use crate::api::translate::ForwardByClass;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::credentials::login::Login;
use crate::apiserver::session::{Apiservers, Report};
use nodelb_host::clock::{Clock, ticking};
use nodelb_host::state_file::Reading;

/// The capacity of the queue from the watchers to the store. A full queue blocks the watchers.
const QUEUE: usize = 64;

/// The rows of `/sources` are updated at this interval, if something has changed.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The reason to avoid a node that Kubernetes does not know.
const NO_NODE: &str = "Kubernetes has no Node of this name (if this node has another name, set node.name; if it has no \
                       kubelet, set kubernetes.node-object to false)";

/// The number of remembered changes in a batch.
const BATCH: usize = 1000;

/// The inputs and outputs of the Kubernetes source.
pub struct KubernetesSource {
    pub apiservers: Apiservers,
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The rows of `/sources`.
    pub reports: watch::Sender<Arc<Vec<SourceReport>>>,
    /// The latest snapshot of the owner task, which is the state to remember.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The part of it that this task must know at once.
    pub followed: watch::Receiver<Followed>,
    pub state: StateSettings,
    pub selection: Selection,
    pub forward: Arc<ForwardByClass>,
    pub node: String,
    /// The clock of all times in snapshots.
    pub clock: Clock,
    /// Whether Kubernetes has a Node object for this host. Without one, the source reads no Nodes.
    pub has_node_object: bool,
    pub in_maps: InMaps,
    /// What the operator accepts.
    pub accepts: mpsc::Receiver<Accept>,
    pub timeouts: WatchTimeouts,
}

/// Runs the source until `shutdown` is ready or the owner task has ended.
pub async fn run(source: KubernetesSource, shutdown: impl Future<Output = ()>) {
    let (messages_in, messages) = mpsc::channel(QUEUE);
    let mut running = Running::new(source);
    let mut shutdown = std::pin::pin!(shutdown);
    let recalled = tokio::select! {
        () = &mut shutdown => return,
        recalled = running.recall_in_time() => recalled,
    };
    if recalled.is_err() {
        return;
    }
    let mut watchers = JoinSet::new();
    for number in 0..running.node {
        watchers.spawn(running.watcher(number, messages_in.clone()).run());
    }
    let node = running.watch_node();
    watchers.spawn(cidrs::follow(running.source.apiservers.clone()));
    tokio::select! {
        () = &mut shutdown => {}
        () = running.receive(messages, node) => {}
    }
    watchers.shutdown().await;
    running.saver.close().await;
}

struct OwnerIsGone;

struct Running {
    source: KubernetesSource,
    store: Store,
    /// The watches; those of Services and EndpointSlices have the numbers of the scopes in the store.
    watches: Vec<WatchStatus>,
    /// The number of the Node's watch, which is the last one, if this host has a Node.
    node: usize,
    restores: Restores,
    /// The slices of `default/kubernetes` with the endpoints that the supervisor knows.
    apiserver_slices: Vec<Arc<Slice>>,
    /// Whether the rows of `/sources` are up to date.
    is_reported: bool,
    saver: Saver,
    /// The login with the certificate authorities that the saver has.
    vouched: Option<Arc<Login>>,
    /// The latest known uid of Service `default/kubernetes`.
    cluster: Option<String>,
    /// The reason why `/healthz` lets load balancers avoid this node.
    leaving: Option<Arc<str>>,
    selecting: Selecting,
}

/// The watch of this node's Node; without messages if it has none. Dropping it ends the watch and discards its queued
/// messages.
struct NodeWatch {
    messages: mpsc::Receiver<Message>,
    _task: JoinSet<()>,
}

impl Running {
    fn new(source: KubernetesSource) -> Self {
        let scopes = source.selection.scopes();
        let node = source.has_node_object.then(|| Scope::node(&source.node));
        let selecting = Selecting::new(source.selection.clone());
        Self {
            store: Store::new(&scopes, source.in_maps),
            saver: Saver::new(&source.state, source.selection.clone(), source.snapshot.clone()),
            node: scopes.len(),
            watches: scopes.into_iter().chain(node).map(WatchStatus::new).collect(),
            source,
            restores: Restores::default(),
            apiserver_slices: Vec::new(),
            is_reported: false,
            vouched: None,
            cluster: None,
            leaving: None,
            selecting,
        }
    }

    fn watcher(&self, number: usize, messages: mpsc::Sender<Message>) -> Watcher {
        let (apiservers, timeouts) = (self.source.apiservers.clone(), self.source.timeouts.clone());
        let WatchStatus { scope, list_again, .. } = &self.watches[number];
        let shared = (Arc::clone(list_again), self.restores.clone());
        let decoder = Decoder::new(scope.kind).with_forward(&self.source.forward);
        Watcher::new((number, Query::of(scope), decoder), apiservers, messages, shared, timeouts)
    }

    fn watch_node(&self) -> NodeWatch {
        let (messages_in, messages) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        if self.source.has_node_object {
            task.spawn(self.watcher(self.node, messages_in).run());
        }
        NodeWatch { messages, _task: task }
    }

    /// Sends that nothing about the node is to be expected from Kubernetes, if it has no Node object for this host.
    async fn replace_node_object(&self) -> Result<(), OwnerIsGone> {
        match self.source.has_node_object {
            true => Ok(()),
            false => self.send(vec![Change::NodeObject(Some(NodeObject::default()))]).await,
        }
    }

    /// If the owner task uses another name for this node now, forgets the previous Node and watches the one of that
    /// name.
    async fn follow_name(&mut self, watch: &mut NodeWatch) -> Result<(), OwnerIsGone> {
        let name = Arc::clone(&self.source.followed.borrow().node);
        // Without a name, the owner task has not yet processed the facts about the node.
        if name.is_empty() || *name == *self.source.node {
            return Ok(());
        }
        if !self.source.has_node_object {
            self.source.node = name.to_string();
            self.saver.mark_outdated();
            return Ok(());
        }
        info!(
            message_id = %messages::NODE_NAMED,
            "this node is now named {name} (before: {}): the Node {name} is watched", self.source.node
        );
        self.source.node = name.to_string();
        self.store.forget_node();
        if let Some(unread) = &mut self.saver.unread {
            *unread = self.source.state.begin(&name);
        }
        self.watches[self.node] = WatchStatus::new(Scope::node(&name));
        self.leaving = None;
        self.is_reported = false;
        *watch = self.watch_node();
        self.saver.mark_outdated();
        self.send(vec![Change::NodeObjectUnknown]).await
    }

    /// Recalls the file if it can be read within the time limit.
    async fn recall_in_time(&mut self) -> Result<(), OwnerIsGone> {
        let mut reading = self.source.state.begin(&self.source.node);
        match reading.within(self.source.state.timeout).await {
            Some(loaded) => self.recall(loaded).await?,
            None => self.saver.unread = Some(reading),
        }
        self.replace_node_object().await
    }

    /// Sends what the previous run has stored. What a list or a watch has delivered since the start is newer.
    async fn recall(&mut self, loaded: Loaded) -> Result<(), OwnerIsGone> {
        let is_whole = self.source.state.is_whole(&loaded) && self.store.may_be_recalled();
        let Loaded { mut changes, unreadable, selection } = loaded;
        self.store.recall(&mut changes, self.source.has_node_object.then_some(&*self.source.node));
        self.source.state.log(changes.len(), unreadable);
        self.log_node(&changes);
        self.selecting.recall(selection, &mut self.store, &mut self.saver);
        if is_whole {
            changes.push(Change::Recalled(Source::Kubernetes));
            self.saver.is_recall_sent = true;
        }
        self.store.settle(&mut changes);
        self.note_selection();
        self.is_reported = false;
        let mut changes = changes.into_iter();
        loop {
            let batch: Vec<Change> = changes.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.send(batch).await?;
        }
    }

    /// Lets another selection take effect.
    async fn accept(&mut self, accept: Accept) -> Result<(), OwnerIsGone> {
        let mut changes = Vec::new();
        let (reply, ended) = self.selecting.accept(accept, &mut self.store, &mut changes);
        self.note_selection();
        self.report();
        if !changes.is_empty() {
            self.send(changes).await?;
        }
        // Fails only if the client has gone.
        _ = reply.send(ended);
        Ok(())
    }

    fn note_selection(&mut self) {
        self.is_reported &= !self.selecting.note(&self.store, &mut self.saver);
    }

    async fn receive(&mut self, mut messages: mpsc::Receiver<Message>, mut node: NodeWatch) {
        let mut tick = ticking(REPORT_EVERY);
        let mut followed = self.source.followed.clone();
        followed.mark_changed();
        loop {
            let received = tokio::select! {
                Some(message) = messages.recv() => self.process(message).await,
                Some(message) = node.messages.recv() => self.process(message).await,
                loaded = Reading::late(&mut self.saver.unread) => {
                    self.saver.mark_outdated();
                    self.recall(loaded).await
                }
                Some(accept) = self.source.accepts.recv() => self.accept(accept).await,
                Ok(()) = followed.changed() => {
                    self.report_endpoints().await;
                    self.follow_name(&mut node).await
                }
                _ = tick.tick() => {
                    self.tick();
                    Ok(())
                }
            };
            if received.is_err() {
                return;
            }
        }
    }

    async fn process(&mut self, message: Message) -> Result<(), OwnerIsGone> {
        match message {
            Message::Events(number, events) => self.apply(number, events).await,
            Message::State(number, state) => {
                let mut changes = Vec::new();
                if matches!(state, State::Failing(LinkError::Forbidden(_))) {
                    self.store.deny(number, &mut changes);
                    self.note_selection();
                }
                self.set_state(number, state);
                if changes.is_empty() { Ok(()) } else { self.send(changes).await }
            }
        }
    }

    /// Applies events to the store, and sends the resulting changes.
    async fn apply(&mut self, number: usize, events: Vec<ListWatchEvent>) -> Result<(), OwnerIsGone> {
        let (mut changes, mut cluster) = (Vec::new(), None);
        for mut event in events {
            if number == self.node && is_of_another_node(&event, &self.source.node) {
                continue;
            }
            if let ListWatchEvent::Upsert(object) = &mut event {
                cluster = object.cluster.take().or(cluster);
            }
            match self.store.apply(number, event, &mut changes) {
                Verdict::Fine => {}
                Verdict::ListAgain { missing, known } => self.list_again(number..=number, missing, known),
                Verdict::ListAllAgain { missing, known } => {
                    let kind = self.watches[number].scope.kind;
                    let first = self.watches.iter().position(|watch| watch.scope.kind == kind);
                    self.list_again(first.unwrap_or(number)..=self.node, missing, known);
                }
            }
        }
        self.watches[number].record_events(self.source.clock.now());
        self.log_node(&changes);
        self.note_selection();
        self.is_reported = false;
        if !changes.is_empty() {
            self.vouch();
            self.saver.mark_outdated();
            self.send(changes).await?;
        }
        if let Some(uid) = cluster {
            self.identify(uid).await;
        }
        Ok(())
    }

    /// Asks the watchers with these numbers that list the same kind as the first one to list it again.
    fn list_again(&self, numbers: RangeInclusive<usize>, missing: usize, known: usize) {
        let first = &self.watches[*numbers.start()].scope;
        if first.kind != Kind::Node {
            warn!(
                message_id = %messages::MASS_REMOVAL_SUSPECTED,
                "the list of {first} lacks {missing} of {known} known objects or service ports; nodelb removes nothing until a second list confirms it"
            );
        }
        let chosen = numbers.filter_map(|number| self.watches.get(number)).filter(|it| it.scope.kind == first.kind);
        chosen.for_each(|watch| watch.list_again.notify_one());
    }

    /// Logs that the node is about to be removed, or that it stays after all.
    fn log_node(&mut self, changes: &[Change]) {
        let latest = changes.iter().rev().find_map(|change| match change {
            Change::NodeObject(Some(object)) => Some(object.leaving.clone()),
            Change::NodeObject(None) => Some(Some(NO_NODE.into())),
            _ => None,
        });
        let Some(leaving) = latest.filter(|leaving| *leaving != self.leaving) else { return };
        let node = &self.source.node;
        match &leaving {
            Some(why) => warn!(
                message_id = %messages::NODE_BEING_REMOVED,
                "Node {node}: {why}; /healthz makes load balancers avoid this node, and services keep working"
            ),
            None => info!(
                message_id = %messages::NODE_NOT_REMOVED,
                "Node {node} is no longer about to be removed; /healthz makes load balancers use this node again"
            ),
        }
        self.leaving = leaving;
    }

    async fn send(&self, changes: Vec<Change>) -> Result<(), OwnerIsGone> {
        self.source.changes.send(changes).await.map_err(|_closed| OwnerIsGone)
    }

    /// Sends the endpoints of `default/kubernetes` to the supervisor, if the owner task has published new ones.
    async fn report_endpoints(&mut self) {
        let slices = self.source.followed.borrow().apiserver_slices.clone();
        if slices != self.apiserver_slices {
            let endpoints = slices.iter().flat_map(|slice| ready_endpoints(slice)).collect();
            self.apiserver_slices = slices;
            // Fails only if the supervisor has ended; then the daemon ends, too.
            _ = self.source.apiservers.reports.send(Report::Endpoints(endpoints)).await;
        }
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
            let login = session.link.login();
            if self.vouched.as_ref().is_none_or(|vouched| !Arc::ptr_eq(vouched, &login)) {
                self.saver.set_authorities(&login.authority.names());
                self.vouched = Some(login);
            }
        }
    }

    fn set_state(&mut self, number: usize, state: State) {
        let is_watching = state == State::Watching;
        if self.watches[number].set_state(state) {
            self.is_reported = false;
            if is_watching {
                // A client that has seen readiness must not read here that the source still waits for an apiserver.
                self.report();
            }
        }
    }

    /// The periodic work. Never waits.
    fn tick(&mut self) {
        self.vouch();
        let is_connected = self.source.apiservers.session.borrow().is_some();
        self.watches.iter_mut().for_each(|status| status.log_failures(is_connected));
        self.saver.set_connected(is_connected);
        self.saver.save_if_outdated();
        self.report();
    }

    fn report(&mut self) {
        if self.is_reported {
            return;
        }
        self.is_reported = true;
        let row = |(number, status): (usize, &WatchStatus)| {
            status.row(&self.store.tally(number), self.store.was_listed(number))
        };
        let mut rows: Vec<SourceReport> = self.watches.iter().enumerate().map(row).collect();
        // The first scope is of Services.
        if let (Some(problem), Some(row)) = (self.selecting.problem(), rows.first_mut()) {
            row.state = row.state.max(SourceState::LastGood);
            row.problems.push(problem);
        }
        self.source.reports.send_if_modified(|reports| {
            let is_new = **reports != rows;
            if is_new {
                *reports = Arc::new(rows);
            }
            is_new
        });
    }
}

/// Whether the event is about another Node than the requested one.
fn is_of_another_node(event: &ListWatchEvent, node: &str) -> bool {
    let key = match event {
        ListWatchEvent::Upsert(object) | ListWatchEvent::Delete(object) => Some(&object.key),
        ListWatchEvent::Skipped { key, .. } => key.as_ref(),
        ListWatchEvent::ListStart { .. } | ListWatchEvent::ListDone(_) | ListWatchEvent::Bookmark(_) => None,
    };
    key.is_some_and(|key| &*key.name != node)
}

/// The TCP addresses of the ready endpoints in a slice.
fn ready_endpoints(slice: &Slice) -> impl Iterator<Item = SocketAddr> {
    let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let backends = ports.flat_map(|port| &port.backends).filter(|backend| backend.state == BackendState::Active);
    backends.map(|backend| SocketAddr::new(backend.addr.ip(), backend.port))
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;

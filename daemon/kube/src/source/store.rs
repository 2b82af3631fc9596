//! The identities of all known Kubernetes objects, and the consequences of new events about them. Pure: events of the
//! watchers go in, changes for the owner task come out. The objects themselves are stored in the table.
//!
//! - An object that exists is passed on immediately.
//! - An object that a list lacks is removed when no list of its namespace is in progress, and never before Services and
//!   EndpointSlices of its namespace have been listed once. If nodelb reads all namespaces, they count as one.
//! - A list that lacks most of the known objects, even if these are few, must be confirmed by a second one.
//! - A remembered object that the configuration does not select any more is removed when everything has been listed. If
//!   another selection leaves out most of the remembered services, they stay until the operator accepts it.
//! - A namespace that nodelb may not read keeps its objects, and the others do not wait for it.
//! - An object with a new UID replaces the previous one; late events about the previous one are ignored.
//! - A deleted Node is missing immediately. A Node that a list lacks is missing when a second list lacks it as well,
//!   because load balancers avoid a node without a Node.

mod collection;
pub(super) mod reselected;

use std::collections::BTreeSet;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::model::service::{ServiceName, Source};

use self::collection::{Collection, is_mass, removal, unselected};
pub use self::collection::{Tally, Verdict};
use self::reselected::Reselected;
use crate::api::decode::{Key, Kind, ListWatchEvent};
use crate::api::scope::Scope;

/// The store of all watched scopes. Their numbers are those of the watchers.
#[derive(Debug)]
pub struct Store {
    /// The scopes of Services and EndpointSlices.
    served: Vec<Watched>,
    nodes: Collection,
    absence: Absence,
    /// The remembered objects that belong to no scope.
    unselected: BTreeSet<(Kind, Key)>,
    /// What another selection than that of the remembered objects leaves out, until that is decided.
    reselected: Option<Reselected>,
    /// What leaves out objects that were remembered.
    why_unselected: Option<Arc<str>>,
    /// What the maps have, until the first lists of each kind.
    in_maps: InMaps,
    /// The `incomplete` field of the latest [`Change::Synced`].
    synced: Option<Option<Arc<str>>>,
    /// The latest [`Change::Unread`].
    unread: BTreeSet<Arc<str>>,
}

/// Why an object is not selected, if an earlier version has stored it, without its selection.
const UNSELECTED: &str = "not selected by kubernetes.namespaces or kubernetes.services";

/// The number of service ports of Kubernetes in the maps at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMaps {
    pub ports: usize,
    pub with_backends: usize,
}

#[derive(Debug)]
struct Watched {
    scope: Scope,
    objects: Collection,
    /// Whether nodelb may not read the scope, and has not read it since its start.
    is_denied: bool,
}

/// Whether this node's Node is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Absence {
    /// The Node exists, or its state is unknown.
    #[default]
    No,
    /// One list lacked the Node.
    Doubted,
    /// The Node is missing, and the owner task knows it.
    Reported,
}

impl Store {
    /// An empty store of these scopes, and of a Node as the one after them.
    pub fn new(scopes: &[Scope], in_maps: InMaps) -> Self {
        let watched =
            |scope: &Scope| Watched { scope: scope.clone(), objects: Collection::new(scope.kind), is_denied: false };
        Self {
            served: scopes.iter().map(watched).collect(),
            nodes: Collection::new(Kind::Node),
            absence: Absence::default(),
            unselected: BTreeSet::new(),
            reselected: None,
            why_unselected: None,
            in_maps,
            synced: None,
            unread: BTreeSet::new(),
        }
    }

    /// Adds the objects in the state file, and leaves out those about which something newer is known. `node` is the name of
    /// this node, if it has a Node.
    pub fn recall(&mut self, changes: &mut Vec<Change>, node: Option<&str>) {
        changes.retain(|change| match (change, node) {
            (Change::UpsertService(it), _) => self.remember(Kind::Service, &it.name, &it.name),
            (Change::UpsertSlice(it), _) => self.remember(Kind::EndpointSlice, &it.name, &it.service),
            (Change::NodeObject(_), None) => false,
            (Change::NodeObject(Some(_)), Some(node)) => self.remember_node(node),
            (Change::NodeObject(None), Some(_)) => !self.nodes.was_listed && !self.nodes.has_any(),
            _ => true,
        });
    }

    /// Adds an object from the state file, in an unknown version, that is this service or belongs to it, unless something
    /// newer is known. Returns whether it is added.
    pub(super) fn remember(&mut self, kind: Kind, key: &Key, service: &ServiceName) -> bool {
        if self.knows(kind, key) {
            return false;
        }
        let is_in = |watched: &&mut Watched| watched.scope.kind == kind && watched.scope.covers(service);
        match self.served.iter_mut().find(is_in) {
            Some(watched) => watched.objects.remember(key.clone()),
            None => self.unselected.insert((kind, key.clone())),
        }
    }

    fn knows(&self, kind: Kind, key: &Key) -> bool {
        self.served.iter().any(|watched| watched.scope.kind == kind && watched.objects.knows(key))
    }

    /// Whether the state file has everything, with what is known: no list has begun, so that a service that the file lacks
    /// does not wait for its slices, or all are complete.
    pub fn may_be_recalled(&self) -> bool {
        self.synced.is_some() || !self.served.iter().any(|watched| watched.objects.has_begun())
    }

    /// The number of remembered objects that the configuration does not select, until they are removed.
    pub fn unselected(&self) -> usize {
        self.unselected.len()
    }

    /// Records that the remembered objects, all of which are known now, were those of another selection, and the keys that
    /// differ.
    pub fn reselect(&mut self, keys: &str) {
        let known = self.services().map(|watched| watched.objects.tally().served).sum::<usize>();
        self.reselected = Some(Reselected::new(keys, known + self.unselected_services()));
    }

    /// Whether another selection has not been decided about.
    pub fn is_reselected(&self) -> bool {
        self.reselected.is_some()
    }

    /// Why the services stay that another selection leaves out, if they do.
    pub fn held(&self) -> Option<&Arc<str>> {
        self.reselected.as_ref()?.held()
    }

    /// Lets the selection take effect. Returns the problem that this ends, if there was one.
    pub fn accept(&mut self, changes: &mut Vec<Change>) -> Option<Arc<str>> {
        let held = self.held().cloned()?;
        self.reselected.as_mut()?.accept();
        self.settle(changes);
        Some(held)
    }

    fn services(&self) -> impl Iterator<Item = &Watched> {
        self.served.iter().filter(|watched| watched.scope.kind == Kind::Service)
    }

    fn unselected_services(&self) -> usize {
        self.unselected.iter().filter(|(kind, _)| *kind == Kind::Service).count()
    }

    /// Adds the Node of this name from the state file, unless something newer is known. Returns whether it is added.
    fn remember_node(&mut self, name: &str) -> bool {
        self.nodes.remember(Key::new("default", name))
    }

    /// Processes an event of the watcher with this number, and appends the resulting changes to `changes`.
    pub fn apply(&mut self, number: usize, event: ListWatchEvent, changes: &mut Vec<Change>) -> Verdict {
        let may_remove = self.may_remove(number);
        let is_node = number >= self.served.len();
        if is_node && matches!(event, ListWatchEvent::Upsert(_)) {
            self.absence = Absence::No;
        }
        let objects = self.objects_mut(number);
        match event {
            ListWatchEvent::ListStart { is_rewound } => objects.begin_list(is_rewound),
            ListWatchEvent::Upsert(object) => objects.upsert(*object, changes),
            ListWatchEvent::Delete(object) => objects.delete(&object, may_remove, changes),
            ListWatchEvent::Skipped { key, reason } => objects.skip(key, reason),
            ListWatchEvent::Bookmark(_) => {}
            ListWatchEvent::ListDone(_) => {
                let verdict = objects.end_list();
                if is_node {
                    return self.settle_node(changes);
                }
                let verdict = self.doubt_first_lists(self.served[number].scope.kind).unwrap_or(verdict);
                self.settle(changes);
                return verdict;
            }
        }
        Verdict::Fine
    }

    /// Records that nodelb may not read the scope with this number. If it is a part of the cluster, the others do not wait
    /// for it any more.
    pub fn deny(&mut self, number: usize, changes: &mut Vec<Change>) {
        let is_new =
            |watched: &&mut Watched| watched.scope.is_narrow() && !watched.objects.was_listed && !watched.is_denied;
        if let Some(watched) = self.served.get_mut(number).filter(is_new) {
            watched.is_denied = true;
            self.settle(changes);
        }
    }

    /// Compares the first lists of a kind with the maps, when all are complete.
    fn doubt_first_lists(&mut self, kind: Kind) -> Option<Verdict> {
        let mut all: Vec<_> = self.served.iter_mut().filter(|it| it.scope.kind == kind).collect();
        let ports: usize = all.iter().map(|watched| watched.objects.ports).sum::<Option<usize>>()?;
        let known = std::mem::take(match kind {
            Kind::EndpointSlice => &mut self.in_maps.with_backends,
            Kind::Service | Kind::Node => &mut self.in_maps.ports,
        });
        let missing = known.saturating_sub(ports);
        if !is_mass(missing, known) {
            return None;
        }
        all.iter_mut().for_each(|watched| watched.objects.was_listed = false);
        Some(Verdict::ListAllAgain { missing, known })
    }

    /// Reports that the Node is missing if two consecutive lists lack it.
    fn settle_node(&mut self, changes: &mut Vec<Change>) -> Verdict {
        let is_there = self.nodes.has_any();
        self.absence = match self.absence {
            _ if is_there => Absence::No,
            Absence::No => {
                self.absence = Absence::Doubted;
                return Verdict::ListAgain { missing: 1, known: 1 };
            }
            Absence::Doubted => {
                self.nodes.clear();
                changes.push(Change::NodeObject(None));
                Absence::Reported
            }
            Absence::Reported => Absence::Reported,
        };
        Verdict::Fine
    }

    /// Forgets the Node, because this node now has another name.
    pub fn forget_node(&mut self) {
        self.nodes = Collection::new(Kind::Node);
        self.absence = Absence::default();
    }

    pub fn was_listed(&self, number: usize) -> bool {
        self.objects(number).was_listed
    }

    pub fn tally(&self, number: usize) -> Tally {
        self.objects(number).tally()
    }

    fn objects(&self, number: usize) -> &Collection {
        self.served.get(number).map_or(&self.nodes, |watched| &watched.objects)
    }

    fn objects_mut(&mut self, number: usize) -> &mut Collection {
        self.served.get_mut(number).map_or(&mut self.nodes, |watched| &mut watched.objects)
    }

    /// The scopes of the same namespace as this one; none for the Node.
    fn of_namespace(&self, number: usize) -> impl Iterator<Item = &Watched> {
        let namespace = self.served.get(number).map(|watched| &watched.scope.namespace);
        self.served.iter().filter(move |watched| Some(&watched.scope.namespace) == namespace)
    }

    /// Whether a deletion in this scope may take effect: Services and EndpointSlices of its namespace have been listed. No
    /// backend depends on the Node, therefore its deletion waits for nothing.
    fn may_remove(&self, number: usize) -> bool {
        self.of_namespace(number).all(|watched| watched.objects.was_listed)
    }

    /// Removes the missing objects of each namespace of which all is listed and no list is in progress. Sends
    /// [`Change::Synced`] if that is so for all of them, except for those that nodelb may not read.
    pub fn settle(&mut self, changes: &mut Vec<Change>) {
        if self.reselected.is_none() {
            for number in 0..self.served.len() {
                if self.of_namespace(number).all(|watched| watched.objects.is_settled()) {
                    self.objects_mut(number).remove_missing(changes);
                }
            }
        }
        let is_denied = |watched: &Watched| watched.is_denied && !watched.objects.was_listed;
        let is_read = |watched: &Watched| watched.objects.is_settled() || is_denied(watched);
        let is_listed = |watched: &Watched| watched.scope.kind == Kind::Service && watched.objects.was_listed;
        if !self.served.iter().all(is_read) || !self.served.iter().any(is_listed) {
            return;
        }
        let held = self.decide_selection(changes);
        let skipped: usize = self.served.iter().filter_map(|watched| watched.objects.incomplete).sum();
        let denied: Vec<&Scope> = self.served.iter().filter(|it| is_denied(it)).map(|watched| &watched.scope).collect();
        let unread: BTreeSet<Arc<str>> = denied.iter().filter_map(|scope| scope.namespace.clone()).collect();
        // Whatever has no name may be of any namespace.
        let unread = if skipped == 0 { unread } else { BTreeSet::new() };
        let skipped = (skipped > 0).then(|| format!("{skipped} objects without a name that could be decoded"));
        let names: Vec<String> = denied.iter().map(ToString::to_string).collect();
        let denied = (!names.is_empty()).then(|| format!("{} may not be read", names.join(", ")));
        if denied.is_none() && held.is_none() {
            self.remove_unselected(changes);
        }
        let parts: Vec<String> = skipped.into_iter().chain(denied).chain(held).collect();
        let incomplete: Option<Arc<str>> = (!parts.is_empty()).then(|| parts.join("; ").into());
        if self.synced.as_ref() != Some(&incomplete) {
            if self.unread != unread {
                self.unread.clone_from(&unread);
                changes.push(Change::Unread(unread));
            }
            self.synced = Some(incomplete.clone());
            changes.push(Change::Synced { source: Source::Kubernetes, incomplete });
        }
    }

    /// Decides, when everything is listed, whether another selection takes effect. Returns why not.
    fn decide_selection(&mut self, changes: &mut Vec<Change>) -> Option<String> {
        self.reselected.as_ref()?;
        let left_out =
            self.unselected_services() + self.services().map(|watched| watched.objects.missing_count()).sum::<usize>();
        let reselected = self.reselected.as_mut()?;
        if reselected.decide(left_out) {
            let why = reselected.why();
            self.why_unselected = Some(Arc::clone(&why));
            self.reselected = None;
            for watched in &mut self.served {
                watched.objects.unselect_missing(&why, changes);
            }
            return None;
        }
        reselected.held().map(ToString::to_string)
    }

    /// Removes the remembered objects that the configuration does not select any more. An EndpointSlice may belong to
    /// another service since.
    fn remove_unselected(&mut self, changes: &mut Vec<Change>) {
        let unselected_before = std::mem::take(&mut self.unselected);
        let gone = unselected_before.into_iter().filter(|(kind, key)| !self.knows(*kind, key));
        let why = self.why_unselected.clone().unwrap_or_else(|| UNSELECTED.into());
        changes.extend(gone.map(|(kind, key)| unselected(removal(kind, &key), &why)));
    }
}

#[cfg(test)]
#[path = "tests/store.rs"]
mod tests;

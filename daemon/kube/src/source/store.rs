//! The identities of all known Kubernetes objects, and the consequences of new events about them. Pure: events of the
//! watchers go in, changes for the owner task come out. The objects themselves are stored in the table.
//!
//! - An object that exists is passed on immediately.
//! - An object that a list lacks is removed when no list is in progress, and never before Services and EndpointSlices
//!   have been listed once.
//! - A list that lacks most of the known objects must be confirmed by a second one.
//! - An object with a new UID replaces the previous one; late events about the previous one are ignored.
//! - A deleted Node is missing immediately. A Node that a list lacks is missing when a second list lacks it as well,
//!   because load balancers avoid a node without a Node.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::model::service::{ServiceName, ServicePort, SliceName, Source};

use crate::api::decode::{Key, Kind, ListWatchEvent, Object, Uid, Version};

/// Fewer missing objects than this never need a second list.
const MASS: usize = 10;

const MAX_TOMBSTONES: usize = 10_000;

/// The maximum number of objects with problems or notices that are reported individually.
const MAX_REPORTED: usize = 100;

type Map<K, V> = HashMap<K, V, RandomState>;

/// The action that the watcher must take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Fine,
    /// List this kind again, because the list lacked too many of the known objects.
    ListAgain {
        /// The number of objects that the list lacked.
        missing: usize,
        /// The number of known objects.
        known: usize,
    },
}

/// The store of all watched kinds.
#[derive(Debug)]
pub struct Store {
    services: Collection,
    slices: Collection,
    nodes: Collection,
    absence: Absence,
    /// The `incomplete` field of the latest [`Change::Synced`].
    synced: Option<Option<Arc<str>>>,
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

/// The numbers and problems of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of served objects.
    pub served: usize,
    /// The number of ignored objects; kube-proxy ignores the same ones.
    pub left_out: usize,
    /// The number of invalid objects and events since the start.
    pub skipped: u64,
    /// The current problems with the object names; at most a hundred objects.
    pub problems: Vec<String>,
    /// The ignored parts of served objects; at most a hundred objects.
    pub notices: Vec<String>,
}

/// The objects of one kind.
#[derive(Debug, Default)]
struct Collection {
    known: Map<Key, StoredObject>,
    served: usize,
    tombstones: Map<Key, Version>,
    listing: Option<Listing>,
    was_listed: bool,
    /// The keys of deleted objects that must not be removed yet.
    missing: HashSet<Key, RandomState>,
    /// The keys that the previous list lacked, if it must be confirmed.
    doubted: Option<HashSet<Key, RandomState>>,
    /// The number of its service ports in the maps, until the first list.
    expected: usize,
    incomplete: Option<usize>,
    skipped: u64,
    problems: BTreeMap<Key, String>,
    nameless: Option<String>,
    notices: BTreeMap<Key, Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
struct StoredObject {
    uid: Uid,
    version: Version,
    is_served: bool,
}

#[derive(Debug, Default)]
struct Listing {
    seen: HashSet<Key, RandomState>,
    /// The number of service ports that the listed services have. As in the maps, each port counts once per family.
    ports: usize,
    nameless: usize,
}

impl Listing {
    fn see(&mut self, key: &Key, change: Option<&Change>) {
        if self.seen.insert(key.clone()) {
            self.ports += change.map_or(0, service_ports);
        }
    }
}

impl Store {
    /// An empty store. `expected` is the number of service ports of Kubernetes in the maps.
    pub fn new(expected: usize) -> Self {
        Self {
            services: Collection { expected, ..Collection::default() },
            slices: Collection::default(),
            nodes: Collection::default(),
            absence: Absence::default(),
            synced: None,
        }
    }

    /// Adds an object from the state file, in an unknown version.
    pub fn remember(&mut self, kind: Kind, key: Key) {
        let collection = self.collection_mut(kind);
        let known = StoredObject { uid: Uid::default(), version: Version::default(), is_served: true };
        if collection.known.insert(key, known).is_none() {
            collection.served += 1;
        }
    }

    /// Processes an event of a watcher and appends the resulting changes to `changes`.
    pub fn apply(&mut self, kind: Kind, event: ListWatchEvent, changes: &mut Vec<Change>) -> Verdict {
        // No backend depends on the Node, therefore its deletion does not wait for the first lists.
        let is_synced = self.synced.is_some() || kind == Kind::Node;
        if kind == Kind::Node && matches!(event, ListWatchEvent::Upsert(_)) {
            self.absence = Absence::No;
        }
        let collection = self.collection_mut(kind);
        match event {
            ListWatchEvent::ListStart { is_rewound } => collection.begin_list(is_rewound),
            ListWatchEvent::Upsert(object) => collection.upsert(kind, *object, changes),
            ListWatchEvent::Delete(object) => collection.delete(kind, &object, is_synced, changes),
            ListWatchEvent::Skipped { key, reason } => collection.skip(key, reason),
            ListWatchEvent::Bookmark(_) => {}
            ListWatchEvent::ListDone(_) => {
                let verdict = collection.end_list();
                if kind == Kind::Node {
                    return self.settle_node(changes);
                }
                self.settle(changes);
                return verdict;
            }
        }
        Verdict::Fine
    }

    /// Reports that the Node is missing if two consecutive lists lack it.
    fn settle_node(&mut self, changes: &mut Vec<Change>) -> Verdict {
        let nodes = &mut self.nodes;
        let is_odd = !nodes.problems.is_empty() || nodes.incomplete.is_some();
        let is_there = is_odd || nodes.known.keys().any(|key| !nodes.missing.contains(key));
        self.absence = match self.absence {
            _ if is_there => Absence::No,
            Absence::No => {
                self.absence = Absence::Doubted;
                return Verdict::ListAgain { missing: 1, known: 1 };
            }
            Absence::Doubted => {
                nodes.missing.clear();
                nodes.known.clear();
                nodes.served = 0;
                changes.push(Change::NodeObject(None));
                Absence::Reported
            }
            Absence::Reported => Absence::Reported,
        };
        Verdict::Fine
    }

    /// Forgets the Node, because this node now has another name.
    pub fn forget_node(&mut self) {
        self.nodes = Collection::default();
        self.absence = Absence::default();
    }

    /// Whether Services and EndpointSlices have been listed.
    pub fn is_synced(&self) -> bool {
        self.synced.is_some()
    }

    pub fn was_listed(&self, kind: Kind) -> bool {
        match kind {
            Kind::Service => self.services.was_listed,
            Kind::EndpointSlice => self.slices.was_listed,
            Kind::Node => self.nodes.was_listed,
        }
    }

    pub fn tally(&self, kind: Kind) -> Tally {
        match kind {
            Kind::Service => self.services.tally(),
            Kind::EndpointSlice => self.slices.tally(),
            Kind::Node => self.nodes.tally(),
        }
    }

    fn collection_mut(&mut self, kind: Kind) -> &mut Collection {
        match kind {
            Kind::Service => &mut self.services,
            Kind::EndpointSlice => &mut self.slices,
            Kind::Node => &mut self.nodes,
        }
    }

    /// Removes the missing objects and sends [`Change::Synced`], if both kinds are listed and no list is in progress.
    fn settle(&mut self, changes: &mut Vec<Change>) {
        let is_settled = |collection: &Collection| collection.was_listed && collection.listing.is_none();
        if !is_settled(&self.services) || !is_settled(&self.slices) {
            return;
        }
        for kind in Kind::SERVED {
            let collection = self.collection_mut(kind);
            let mut missing: Vec<Key> = collection.missing.drain().collect();
            missing.sort();
            missing.iter().for_each(|key| collection.remove(kind, key, changes));
        }
        let skipped = self.services.incomplete.unwrap_or(0) + self.slices.incomplete.unwrap_or(0);
        let incomplete: Option<Arc<str>> =
            (skipped > 0).then(|| format!("{skipped} objects without a name that could be decoded").into());
        if self.synced.as_ref() != Some(&incomplete) {
            self.synced = Some(incomplete.clone());
            changes.push(Change::Synced { source: Source::Kubernetes, incomplete });
        }
    }
}

impl Collection {
    fn begin_list(&mut self, is_rewound: bool) {
        self.listing = Some(Listing::default());
        self.tombstones.clear();
        if is_rewound {
            self.known.values_mut().for_each(|known| known.version = Version::default());
        }
    }

    fn upsert(&mut self, kind: Kind, object: Object, changes: &mut Vec<Change>) {
        let Object { key, uid, version, change, notices, .. } = object;
        let is_late = self.is_late(&key, version);
        match &mut self.listing {
            Some(listing) => listing.see(&key, change.as_ref()),
            None if is_late => return,
            None => {}
        }
        self.missing.remove(&key);
        self.problems.remove(&key);
        self.note(&key, notices, change.is_some());
        let now = StoredObject { uid, version, is_served: change.is_some() };
        let before = self.known.insert(key.clone(), now);
        self.served += usize::from(now.is_served);
        let is_same = |before: &StoredObject| {
            before.version == version && version != Version::default() && !before.uid.is_other(uid)
        };
        if let Some(before) = before {
            self.served -= usize::from(before.is_served);
            if is_same(&before) {
                return;
            }
            if before.is_served && (change.is_none() || before.uid.is_other(uid)) {
                changes.push(removal(kind, &key));
            }
        }
        changes.extend(change);
    }

    /// Whether a newer version of this object is known.
    fn is_late(&self, key: &Key, version: Version) -> bool {
        let known = self.known.get(key).map(|known| known.version);
        let tombstone = self.tombstones.get(key).copied();
        version != Version::default()
            && (known.is_some_and(|known| known > version) || tombstone.is_some_and(|deleted| deleted >= version))
    }

    fn note(&mut self, key: &Key, notices: Vec<String>, is_served: bool) {
        if notices.is_empty() || !is_served {
            self.notices.remove(key);
        } else if self.notices.len() < MAX_REPORTED || self.notices.contains_key(key) {
            self.notices.insert(key.clone(), notices);
        }
    }

    fn delete(&mut self, kind: Kind, object: &Object, is_synced: bool, changes: &mut Vec<Change>) {
        let Object { key, uid, version, .. } = object;
        let known = self.known.get(key);
        // A deletion applies to the known object even if it belongs to a later object of the same name that could never
        // be decoded.
        let is_late = known.is_some_and(|known| match version.cmp(&known.version) {
            Ordering::Greater => false,
            Ordering::Less => *version != Version::default() || known.uid.is_other(*uid),
            Ordering::Equal => known.uid.is_other(*uid),
        });
        if is_late {
            return;
        }
        self.add_tombstone(key, *version);
        self.problems.remove(key);
        if let Some(listing) = &mut self.listing {
            listing.seen.remove(key);
        }
        if is_synced {
            self.remove(kind, key, changes);
        } else if self.known.contains_key(key) {
            self.missing.insert(key.clone());
        }
    }

    /// Adds a tombstone, also for an unknown object: the event of its creation may arrive later.
    fn add_tombstone(&mut self, key: &Key, version: Version) {
        if self.tombstones.len() >= MAX_TOMBSTONES {
            self.tombstones.clear();
        }
        if version != Version::default() {
            self.tombstones.insert(key.clone(), version);
        }
    }

    fn remove(&mut self, kind: Kind, key: &Key, changes: &mut Vec<Change>) {
        self.problems.remove(key);
        self.notices.remove(key);
        self.missing.remove(key);
        if self.known.remove(key).is_some_and(|known| known.is_served) {
            self.served -= 1;
            changes.push(removal(kind, key));
        }
    }

    fn skip(&mut self, key: Option<Key>, reason: String) {
        self.skipped += 1;
        match (key, &mut self.listing) {
            (Some(key), listing) => {
                if let Some(listing) = listing {
                    listing.seen.insert(key.clone());
                }
                self.missing.remove(&key);
                if self.problems.len() < MAX_REPORTED || self.problems.contains_key(&key) {
                    self.problems.insert(key, reason);
                }
            }
            (None, listing) => {
                if let Some(listing) = listing {
                    listing.nameless += 1;
                }
                self.nameless = Some(reason);
            }
        }
    }

    fn end_list(&mut self) -> Verdict {
        let Some(Listing { seen, ports, nameless }) = self.listing.take() else { return Verdict::Fine };
        self.problems.retain(|key, _| seen.contains(key));
        if nameless > 0 {
            // Each object that the list lacks may be one of those without a name.
            self.incomplete = Some(nameless);
            self.was_listed = true;
            return Verdict::Fine;
        }
        self.incomplete = None;
        self.nameless = None;
        let expected = std::mem::take(&mut self.expected);
        let lacking = expected.saturating_sub(ports);
        if !self.was_listed && is_mass(lacking, expected) {
            return Verdict::ListAgain { missing: lacking, known: expected };
        }
        let lacking = |key: &&Key| !seen.contains(*key);
        let missing: HashSet<Key, RandomState> = self.known.keys().filter(lacking).cloned().collect();
        let doubted = self.doubted.take();
        let (count, known) = (missing.len(), self.known.len());
        match doubted {
            None if is_mass(count, known) => {
                self.doubted = Some(missing);
                Verdict::ListAgain { missing: count, known }
            }
            Some(doubted) if is_mass(count, known) => {
                let (agreed, new): (HashSet<_, _>, HashSet<_, _>) =
                    missing.into_iter().partition(|key| doubted.contains(key));
                self.missing.extend(agreed);
                self.was_listed = true;
                if new.is_empty() {
                    return Verdict::Fine;
                }
                let missing = new.len();
                self.doubted = Some(new);
                Verdict::ListAgain { missing, known }
            }
            _ => {
                self.missing.extend(missing);
                self.was_listed = true;
                Verdict::Fine
            }
        }
    }

    fn tally(&self) -> Tally {
        let named =
            self.problems.iter().map(|(Key { namespace, name }, reason)| format!("{namespace}/{name}: {reason}"));
        let nameless = self.nameless.iter().map(|reason| format!("an object without a usable name: {reason}"));
        let notice = |(Key { namespace, name }, notices): (&Key, &Vec<String>)| {
            format!("{namespace}/{name}: {}", notices.join("; "))
        };
        Tally {
            served: self.served,
            left_out: self.known.len() - self.served,
            skipped: self.skipped,
            problems: named.chain(nameless).collect(),
            notices: self.notices.iter().map(notice).collect(),
        }
    }
}

/// The number of service ports of an object: each port counts once per family of its addresses.
fn service_ports(change: &Change) -> usize {
    let Change::UpsertService(service) = change else { return 0 };
    let families = |port: &ServicePort| port.frontends.iter().map(|at| at.addr.family()).collect::<BTreeSet<_>>().len();
    service.ports.iter().map(families).sum()
}

fn is_mass(missing: usize, known: usize) -> bool {
    missing >= MASS && missing * 2 > known
}

fn removal(kind: Kind, key: &Key) -> Change {
    let (namespace, name) = (Arc::clone(&key.namespace), Arc::clone(&key.name));
    match kind {
        Kind::Service => Change::RemoveService(ServiceName::of(namespace, name), Source::Kubernetes),
        Kind::EndpointSlice => Change::RemoveSlice(SliceName { namespace, name }, Source::Kubernetes),
        Kind::Node => Change::NodeObject(None),
    }
}

#[cfg(test)]
#[path = "tests/store.rs"]
mod tests;

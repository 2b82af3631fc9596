//! The objects of one scope: their identities, what the current list lacks, and the problems of single objects. Which
//! removals may take place, and when, is up to the store.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::model::service::{ServiceName, ServicePort, Source};

use crate::api::decode::{Key, Kind, Object, Uid, Version};

const MAX_TOMBSTONES: usize = 10_000;

/// The maximum number of objects with problems or notices that are reported individually.
const MAX_REPORTED: usize = 100;

type Map<K, V> = HashMap<K, V, RandomState>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Fine,
    /// List the objects of this scope again, because the list lacked too many of the known objects.
    ListAgain {
        missing: usize,
        known: usize,
    },
    /// List all objects of this kind again, because the lists together lacked too many service ports of the maps.
    ListAllAgain {
        missing: usize,
        known: usize,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
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

#[derive(Debug)]
pub(super) struct Collection {
    kind: Kind,
    known: Map<Key, StoredObject>,
    served: usize,
    tombstones: Map<Key, Version>,
    listing: Option<Listing>,
    pub(super) was_listed: bool,
    /// The number of service ports in the latest list; of EndpointSlices, those with backends.
    pub(super) ports: Option<usize>,
    /// The keys of deleted objects that must not be removed yet.
    missing: HashSet<Key, RandomState>,
    /// The keys that the previous list lacked, if it must be confirmed.
    doubted: Option<HashSet<Key, RandomState>>,
    /// The number of objects without a name in the latest list.
    pub(super) incomplete: Option<usize>,
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
    /// The number of service ports that the listed objects have. As in the maps, each port counts once per family.
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

impl Collection {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            known: Map::default(),
            served: 0,
            tombstones: Map::default(),
            listing: None,
            was_listed: false,
            ports: None,
            missing: HashSet::default(),
            doubted: None,
            incomplete: None,
            skipped: 0,
            problems: BTreeMap::new(),
            nameless: None,
            notices: BTreeMap::new(),
        }
    }

    /// Adds an object from the state file, in an unknown version, unless something newer is known. Returns whether it is
    /// added.
    pub(super) fn remember(&mut self, key: Key) -> bool {
        // An object that is listed and cannot be decoded stays as it was.
        let is_gone = self.was_listed && self.incomplete.is_none() && !self.problems.contains_key(&key);
        if is_gone || self.known.contains_key(&key) || self.tombstones.contains_key(&key) {
            return false;
        }
        self.known.insert(key, StoredObject { uid: Uid::default(), version: Version::default(), is_served: true });
        self.served += 1;
        true
    }

    /// Whether a list has begun since the start.
    pub(super) fn has_begun(&self) -> bool {
        self.was_listed || self.listing.is_some()
    }

    /// Whether the objects have been listed, and no list is in progress.
    pub(super) fn is_settled(&self) -> bool {
        self.was_listed && self.listing.is_none()
    }

    pub(super) fn knows(&self, key: &Key) -> bool {
        self.known.contains_key(key)
    }

    /// Whether a known object exists, and so does one that cannot be decoded.
    pub(super) fn has_any(&self) -> bool {
        let is_odd = !self.problems.is_empty() || self.incomplete.is_some();
        is_odd || self.known.keys().any(|key| !self.missing.contains(key))
    }

    pub(super) fn clear(&mut self) {
        self.missing.clear();
        self.known.clear();
        self.served = 0;
    }

    pub(super) fn remove_missing(&mut self, changes: &mut Vec<Change>) {
        let mut missing: Vec<Key> = self.missing.drain().collect();
        missing.sort();
        missing.iter().for_each(|key| self.remove(key, changes));
    }

    /// The number of known objects that the lists lack, and that stay for now.
    pub(super) fn missing_count(&self) -> usize {
        self.missing.iter().filter(|key| self.known.get(*key).is_some_and(|known| known.is_served)).count()
    }

    /// Removes the missing objects because of another selection.
    pub(super) fn unselect_missing(&mut self, why: &Arc<str>, changes: &mut Vec<Change>) {
        let mut removed = Vec::new();
        self.remove_missing(&mut removed);
        changes.extend(removed.into_iter().map(|change| unselected(change, why)));
    }

    pub(super) fn begin_list(&mut self, is_rewound: bool) {
        self.listing = Some(Listing::default());
        self.tombstones.clear();
        if is_rewound {
            self.known.values_mut().for_each(|known| known.version = Version::default());
        }
    }

    pub(super) fn upsert(&mut self, object: Object, changes: &mut Vec<Change>) {
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
                changes.push(removal(self.kind, &key));
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

    pub(super) fn delete(&mut self, object: &Object, may_remove: bool, changes: &mut Vec<Change>) {
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
        if may_remove {
            self.remove(key, changes);
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

    fn remove(&mut self, key: &Key, changes: &mut Vec<Change>) {
        self.problems.remove(key);
        self.notices.remove(key);
        self.missing.remove(key);
        if self.known.remove(key).is_some_and(|known| known.is_served) {
            self.served -= 1;
            changes.push(removal(self.kind, key));
        }
    }

    pub(super) fn skip(&mut self, key: Option<Key>, reason: String) {
        self.skipped += 1;
        let Some(key) = key else {
            self.listing.iter_mut().for_each(|listing| listing.nameless += 1);
            self.nameless = Some(reason);
            return;
        };
        if let Some(listing) = &mut self.listing {
            listing.seen.insert(key.clone());
        }
        self.missing.remove(&key);
        if self.problems.len() < MAX_REPORTED || self.problems.contains_key(&key) {
            self.problems.insert(key, reason);
        }
    }

    pub(super) fn end_list(&mut self) -> Verdict {
        let Some(Listing { seen, ports, nameless }) = self.listing.take() else { return Verdict::Fine };
        self.problems.retain(|key, _| seen.contains(key));
        self.ports = Some(ports);
        if nameless > 0 {
            // Each object that the list lacks may be one of those without a name.
            self.incomplete = Some(nameless);
            self.was_listed = true;
            return Verdict::Fine;
        }
        let lacking = |key: &&Key| !seen.contains(*key);
        let missing = self.known.keys().filter(lacking).cloned().collect();
        let verdict = self.compare(missing);
        if verdict == Verdict::Fine {
            (self.incomplete, self.nameless) = (None, None);
        }
        verdict
    }

    /// Decides about the known objects that a list lacks.
    fn compare(&mut self, missing: HashSet<Key, RandomState>) -> Verdict {
        let doubted = self.doubted.take();
        let (count, known) = (missing.len(), self.known.len());
        // The store doubts the absence of the Node, known or not.
        let is_mass = self.kind != Kind::Node && is_mass(count, known);
        match doubted {
            None if is_mass => {
                self.doubted = Some(missing);
                Verdict::ListAgain { missing: count, known }
            }
            Some(doubted) if is_mass => {
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

    pub(super) fn tally(&self) -> Tally {
        let named = self.problems.iter().map(|(key, reason)| format!("{key}: {reason}"));
        let nameless = self.nameless.iter().map(|reason| format!("an object without a usable name: {reason}"));
        let notice = |(key, notices): (&Key, &Vec<String>)| format!("{key}: {}", notices.join("; "));
        Tally {
            served: self.served,
            left_out: self.known.len() - self.served,
            skipped: self.skipped,
            problems: named.chain(nameless).collect(),
            notices: self.notices.iter().map(notice).collect(),
        }
    }
}

/// The number of service ports of an object: each port counts once per family of its addresses. An EndpointSlice, which has
/// one family, has those that it has backends of.
fn service_ports(change: &Change) -> usize {
    let families = |port: &ServicePort| port.frontends.iter().map(|at| at.addr.family()).collect::<BTreeSet<_>>().len();
    match change {
        Change::UpsertService(service) => service.ports.iter().map(families).sum(),
        Change::UpsertSlice(slice) => slice.ports.iter().filter(|port| !port.backends.is_empty()).count(),
        _ => 0,
    }
}

/// Whether a list lacks so many known objects that a second list must confirm it. A deletion while a watch works needs no
/// list.
pub(super) fn is_mass(missing: usize, known: usize) -> bool {
    missing * 2 > known
}

pub(super) fn removal(kind: Kind, key: &Key) -> Change {
    let key = key.clone();
    match kind {
        Kind::Service => Change::RemoveService(ServiceName::of(key.namespace, key.name), Source::Kubernetes),
        Kind::EndpointSlice => Change::RemoveSlice(key, Source::Kubernetes),
        Kind::Node => Change::NodeObject(None),
    }
}

/// The removal, with the operator's selection as the reason.
pub(super) fn unselected(removal: Change, why: &Arc<str>) -> Change {
    match removal {
        Change::RemoveService(name, source) => Change::Unselect(name, source, Arc::clone(why)),
        other => other,
    }
}

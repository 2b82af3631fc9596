//! What an etcd is to an apiserver: objects, one revision counter, and the log of what changed. Knows nothing of what
//! objects mean; `write` decides what is stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hyper::body::Bytes;
use imbl::OrdMap;
use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// Namespace (empty for what lives in none) and name, in the order of lists.
pub(crate) type Key = (String, String);

/// The objects of one resource; a copy is cheap and does not change.
pub(crate) type Objects = OrdMap<Key, Arc<Object>>;

/// How many events are kept, whoever may still want them.
const LOG: usize = 100_000;

/// One version of one object.
#[derive(Debug)]
pub(crate) struct Object {
    /// As it is now.
    pub(crate) value: Value,
    /// The same as JSON, made once.
    pub(crate) bytes: Bytes,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One entry of the log.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) resource: &'static Resource,
    pub(crate) kind: EventKind,
    /// As it is now; for a deletion as it was, with the revision of the deletion.
    pub(crate) object: Arc<Object>,
    /// As it was before.
    pub(crate) previous: Option<Arc<Object>>,
}

/// Everything that is stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    tables: BTreeMap<&'static str, Objects>,
    log: VecDeque<Event>,
    revision: u64,
    /// Lists and watches from before this revision are refused.
    compacted: u64,
    /// The revision of the last event that the log has lost.
    forgotten: u64,
    /// What is added to the revision wherever clients see it, by resource: such a resource has an etcd of its own.
    offsets: BTreeMap<&'static str, u64>,
    /// What continue tokens refer to.
    snapshots: BTreeMap<(u64, &'static str), Objects>,
    /// While set, watchers are not told of changes.
    pub(crate) quiet: bool,
}

impl Store {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// What is added to revisions of this resource where clients see them.
    pub(crate) fn offset(&self, resource: &Resource) -> u64 {
        self.offsets.get(resource.plural).copied().unwrap_or(0)
    }

    /// From now on the resource has resourceVersions of its own.
    pub(crate) fn set_offset(&mut self, resource: &'static Resource, offset: u64) {
        self.offsets.insert(resource.plural, offset);
    }

    pub(crate) fn objects(&self, resource: &Resource) -> Objects {
        self.tables.get(resource.plural).cloned().unwrap_or_default()
    }

    pub(crate) fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<Object>> {
        self.tables.get(resource.plural)?.get(key)
    }

    /// Stores an object under the next revision.
    pub(crate) fn put(&mut self, resource: &'static Resource, key: &Key, value: Value) -> Arc<Object> {
        let object = self.version(resource, value);
        let previous = self.tables.entry(resource.plural).or_default().insert(key.clone(), object.clone());
        let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
        self.record(Event { revision: self.revision, resource, kind, object: object.clone(), previous });
        object
    }

    /// Removes an object, which takes a revision too.
    pub(crate) fn remove(&mut self, resource: &'static Resource, key: &Key) -> Option<Arc<Object>> {
        let previous = self.tables.get_mut(resource.plural)?.remove(key)?;
        let object = self.version(resource, previous.value.clone());
        let previous = Some(previous);
        let kind = EventKind::Deleted;
        self.record(Event { revision: self.revision, resource, kind, object: object.clone(), previous });
        Some(object)
    }

    fn version(&mut self, resource: &Resource, mut value: Value) -> Arc<Object> {
        self.revision += 1;
        value["metadata"]["resourceVersion"] = (self.revision + self.offset(resource)).to_string().into();
        let bytes = Bytes::from(value.to_string());
        Arc::new(Object { value, bytes })
    }

    fn record(&mut self, event: Event) {
        if self.quiet {
            return;
        }
        self.log.push_back(event);
        if self.log.len() > LOG
            && let Some(event) = self.log.pop_front()
        {
            self.forgotten = event.revision;
            self.compacted = self.compacted.max(event.revision);
        }
    }

    /// What happened to a resource after a revision, for a watch that already runs.
    ///
    /// # Errors
    /// 410: it has read too slowly.
    pub(crate) fn since(&self, resource: &Resource, revision: u64) -> Result<Vec<Event>, Status> {
        if revision < self.forgotten {
            return Err(Status::expired(revision, self.forgotten));
        }
        let from = self.log.partition_point(|event| event.revision <= revision);
        Ok(self.log.range(from..).filter(|event| event.resource == resource).cloned().collect())
    }

    /// Forgets history: continue tokens and watches from before now are refused; those that run go on.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.snapshots.clear();
    }

    /// Remembers what a list looked like, for its next pages.
    pub(crate) fn pin(&mut self, resource: &'static Resource, revision: u64, objects: Objects) {
        self.snapshots.insert((revision, resource.plural), objects);
    }

    /// What a list looked like at a revision whose first page was served.
    pub(crate) fn pinned(&self, resource: &'static Resource, revision: u64) -> Option<Objects> {
        self.snapshots.get(&(revision, resource.plural)).cloned()
    }

    /// Goes back to an earlier state, revision included, as after an etcd restore.
    pub(crate) fn restore(&mut self, backup: &Self) {
        let revision = backup.revision;
        self.tables = backup.tables.clone();
        self.revision = revision;
        self.compacted = revision;
        self.forgotten = 0;
        self.log.clear();
        self.snapshots.clear();
    }

    /// Takes a revision for nothing, as a write to a resource that nobody here reads.
    pub(crate) fn tick(&mut self) {
        self.revision += 1;
    }
}

#[cfg(test)]
mod tests;

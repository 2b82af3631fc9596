//! The role of etcd: objects, one revision counter, and a log of changes. Does not interpret
//! objects; `write` decides what is stored.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hyper::body::Bytes;
use imbl::OrdMap;
use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// Namespace (empty for cluster-scoped objects) and name, in list order.
pub(crate) type Key = (String, String);

/// The objects of one resource; immutable and cheap to clone.
pub(crate) type Objects = OrdMap<Key, Arc<Object>>;

/// Maximum number of logged events.
const LOG: usize = 100_000;

/// One version of one object.
#[derive(Debug)]
pub(crate) struct Object {
    /// The current content.
    pub(crate) value: Value,
    /// The content encoded as JSON.
    pub(crate) bytes: Bytes,
}

/// The type of a change.
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
    /// The new object; for a deletion the old one, with the revision of the deletion.
    pub(crate) object: Arc<Object>,
    /// The previous object.
    pub(crate) previous: Option<Arc<Object>>,
}

/// The stored objects of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    tables: BTreeMap<&'static str, Objects>,
    log: VecDeque<Event>,
    revision: u64,
    /// Lists and watches from earlier revisions are refused.
    compacted: u64,
    /// The revision of the last event that the log has dropped.
    forgotten: u64,
    /// Offsets of the revisions that clients see, by resource: such a resource has its own etcd.
    offsets: BTreeMap<&'static str, u64>,
    /// The lists that continue tokens refer to.
    snapshots: BTreeMap<(u64, &'static str), Objects>,
    /// Whether watches are not notified of changes.
    pub(crate) quiet: bool,
}

impl Store {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// The offset of the revisions of this resource that clients see.
    pub(crate) fn offset(&self, resource: &Resource) -> u64 {
        self.offsets.get(resource.plural).copied().unwrap_or(0)
    }

    /// Gives the resource its own sequence of resourceVersions.
    pub(crate) fn set_offset(&mut self, resource: &'static Resource, offset: u64) {
        self.offsets.insert(resource.plural, offset);
    }

    pub(crate) fn objects(&self, resource: &Resource) -> Objects {
        self.tables.get(resource.plural).cloned().unwrap_or_default()
    }

    pub(crate) fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<Object>> {
        self.tables.get(resource.plural)?.get(key)
    }

    /// Stores an object with the next revision.
    pub(crate) fn put(&mut self, resource: &'static Resource, key: &Key, value: Value) -> Arc<Object> {
        let object = self.version(resource, value);
        let previous = self.tables.entry(resource.plural).or_default().insert(key.clone(), object.clone());
        let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
        self.record(Event { revision: self.revision, resource, kind, object: object.clone(), previous });
        object
    }

    /// Removes an object, which also takes a revision.
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

    /// The events of a resource after a revision, for a running watch.
    ///
    /// # Errors
    /// 410: the watch is too far behind.
    pub(crate) fn since(&self, resource: &Resource, revision: u64) -> Result<Vec<Event>, Status> {
        if revision < self.forgotten {
            return Err(Status::expired(revision, self.forgotten));
        }
        let from = self.log.partition_point(|event| event.revision <= revision);
        Ok(self.log.range(from..).filter(|event| event.resource == resource).cloned().collect())
    }

    /// Compacts the history: earlier continue tokens and watches are refused from now on; running
    /// watches continue.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.snapshots.clear();
    }

    /// Keeps the content of a list for its next pages.
    pub(crate) fn pin(&mut self, resource: &'static Resource, revision: u64, objects: Objects) {
        self.snapshots.insert((revision, resource.plural), objects);
    }

    /// The content of a list at a revision whose first page was served.
    pub(crate) fn pinned(&self, resource: &'static Resource, revision: u64) -> Option<Objects> {
        self.snapshots.get(&(revision, resource.plural)).cloned()
    }

    /// Restores an earlier state with its revision, as after an etcd restore.
    pub(crate) fn restore(&mut self, backup: &Self) {
        let revision = backup.revision;
        self.tables = backup.tables.clone();
        self.revision = revision;
        self.compacted = revision;
        self.forgotten = 0;
        self.log.clear();
        self.snapshots.clear();
    }

    /// Takes a revision, as a write to an unsupported resource would.
    pub(crate) fn tick(&mut self) {
        self.revision += 1;
    }
}

#[cfg(test)]
#[path = "tests/store.rs"]
mod tests;

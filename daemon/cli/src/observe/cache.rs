//! The last known objects of one kind, to find the differences in their next version. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_kube::api::decode::ListWatchEvent;
use serde_json::Value;

use super::line::Event;

/// Maximum number of objects that are kept. Every version of an object beyond that looks like the first.
pub(super) const MAX_OBJECTS: usize = 50_000;

type Key = (String, String);

#[derive(Debug)]
pub(super) struct Cache {
    kind: &'static str,
    objects: BTreeMap<Key, Value>,
    /// The objects that the current list has shown so far.
    listed: Option<BTreeSet<Key>>,
    pub(super) was_listed: bool,
}

impl Cache {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, objects: BTreeMap::new(), listed: None, was_listed: false }
    }

    /// Applies an event, and returns the changes that it shows. At the end of a list, these are the deletions of the
    /// objects that the list did not show.
    pub(super) fn apply(&mut self, event: ListWatchEvent<Value>) -> Vec<Event> {
        match event {
            ListWatchEvent::ListStart { .. } => self.listed = Some(BTreeSet::new()),
            ListWatchEvent::Upsert(object) => return self.upsert(object).into_iter().collect(),
            ListWatchEvent::Delete(object) => {
                self.objects.remove(&key_of(&object));
                return vec![Event::deleted(self.kind, &object)];
            }
            ListWatchEvent::ListDone(_) => {
                self.was_listed = true;
                let listed = self.listed.take().unwrap_or_default();
                let all = std::mem::take(&mut self.objects);
                let (kept, gone): (BTreeMap<_, _>, _) = all.into_iter().partition(|(key, _)| listed.contains(key));
                self.objects = kept;
                let deleted = |object: &Value| Event::between(self.kind, Some(object), None, true);
                return gone.values().map(deleted).collect();
            }
            ListWatchEvent::Skipped { .. } | ListWatchEvent::Bookmark(_) => {}
        }
        Vec::new()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Stores a version of an object. Returns no event if a list shows a known version.
    fn upsert(&mut self, mut object: Value) -> Option<Event> {
        let key = key_of(&object);
        let before = self.objects.get(&key);
        let is_same = |before: &Value| before["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"];
        let is_listed = self.listed.is_some();
        let event = (!is_listed || !before.is_some_and(is_same))
            .then(|| Event::between(self.kind, before, Some(&object), is_listed));
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        // The longest part of an object, and not part of the comparison.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        if self.objects.len() < MAX_OBJECTS || self.objects.contains_key(&key) {
            self.objects.insert(key, object);
        }
        event
    }
}

fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[cfg(test)]
#[path = "tests/cache.rs"]
mod tests;

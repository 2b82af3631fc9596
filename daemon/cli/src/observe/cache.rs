//! The last known objects of one kind, to find the differences in their next version. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::line::Event;

/// Maximum number of objects that are kept. Every version of an object beyond that looks like the first.
pub(super) const MOST: usize = 50_000;

/// Namespace and name.
type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct Cache {
    objects: BTreeMap<Key, Value>,
    /// The objects that the current list has shown so far.
    listed: Option<BTreeSet<Key>>,
    /// Whether a list was read before.
    is_informed: bool,
}

impl Cache {
    /// Begins a list. Objects that the list does not show are gone.
    pub(super) fn begin_list(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// Takes an object of the list. Returns no event if it has not changed.
    pub(super) fn listed(&mut self, kind: &'static str, object: Value) -> Option<Event> {
        let key = key_of(&object);
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        let before = self.objects.get(&key);
        let is_same =
            before.is_some_and(|before| before["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"]);
        let event = (!is_same).then(|| Event::between(kind, before, Some(&object), true));
        self.keep(key, object);
        event
    }

    /// Ends the list, and returns a deletion for each object that the list did not show.
    pub(super) fn end_list(&mut self, kind: &'static str) -> Vec<Event> {
        let Some(listed) = self.listed.take() else { return Vec::new() };
        let gone: Vec<Key> = self.objects.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        self.is_informed = true;
        gone.into_iter()
            .filter_map(|key| Some(Event::between(kind, Some(&self.objects.remove(&key)?), None, true)))
            .collect()
    }

    /// Whether a list was read before.
    pub(super) fn is_informed(&self) -> bool {
        self.is_informed
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Takes a new version of an object.
    pub(super) fn changed(&mut self, kind: &'static str, object: Value) -> Event {
        let key = key_of(&object);
        let event = Event::between(kind, self.objects.get(&key), Some(&object), false);
        self.keep(key, object);
        event
    }

    /// Takes the last version of a deleted object.
    pub(super) fn deleted(&mut self, kind: &'static str, object: &Value) -> Event {
        self.objects.remove(&key_of(object));
        Event::deleted(kind, object)
    }

    fn keep(&mut self, key: Key, mut object: Value) {
        // The longest part of an object, and not part of the comparison.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        if self.objects.len() < MOST || self.objects.contains_key(&key) {
            self.objects.insert(key, object);
        }
    }
}

fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[cfg(test)]
#[path = "tests/cache.rs"]
mod tests;

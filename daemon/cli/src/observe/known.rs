//! The objects of one kind as last seen, to say what differs in the next version. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::line::Event;

/// The most objects kept; of those beyond it every version looks like the first.
pub(super) const MOST: usize = 50_000;

/// Namespace and name.
type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct Known {
    objects: BTreeMap<Key, Value>,
    /// What the list that is being read has shown so far.
    listed: Option<BTreeSet<Key>>,
    /// Whether there was a list before.
    is_informed: bool,
}

impl Known {
    /// A list begins: what it does not show is gone.
    pub(super) fn begin_list(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// An object of the list. Nothing is told of one that is as it was.
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

    /// The list is complete; what it did not show.
    pub(super) fn end_list(&mut self, kind: &'static str) -> Vec<Event> {
        let Some(listed) = self.listed.take() else { return Vec::new() };
        let gone: Vec<Key> = self.objects.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        self.is_informed = true;
        gone.into_iter()
            .filter_map(|key| Some(Event::between(kind, Some(&self.objects.remove(&key)?), None, true)))
            .collect()
    }

    /// Whether a list has been read before.
    pub(super) fn is_informed(&self) -> bool {
        self.is_informed
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// A new version.
    pub(super) fn changed(&mut self, kind: &'static str, object: Value) -> Event {
        let key = key_of(&object);
        let event = Event::between(kind, self.objects.get(&key), Some(&object), false);
        self.keep(key, object);
        event
    }

    /// The last version of one that is gone.
    pub(super) fn deleted(&mut self, kind: &'static str, object: &Value) -> Event {
        self.objects.remove(&key_of(object));
        Event::deleted(kind, object)
    }

    fn keep(&mut self, key: Key, mut object: Value) {
        // The longest part of an object, and no part of what is compared.
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
#[path = "tests/known.rs"]
mod tests;

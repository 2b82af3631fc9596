//! All slices, by source and name.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::model::service::{Slice, SliceName, Source};

/// A set of slices, each with the hash of its source and name. When a set of slices alone grows, it computes all hashes
/// again from the names of all slices.
#[derive(Debug, Default)]
pub(super) struct SlicesByName {
    slices: HashTable<(u64, Arc<Slice>)>,
    hasher: RandomState,
}

impl SlicesByName {
    /// Adds the slice; returns the previous one of this name.
    pub(super) fn insert(&mut self, slice: Arc<Slice>) -> Option<Arc<Slice>> {
        let hash = self.hash(slice.source, &slice.name);
        let is_same = |(_, known): &(u64, Arc<Slice>)| is_named(known, slice.source, &slice.name);
        match self.slices.entry(hash, is_same, |(hash, _)| *hash) {
            Entry::Occupied(mut known) => Some(std::mem::replace(&mut known.get_mut().1, slice)),
            Entry::Vacant(new) => {
                new.insert((hash, slice));
                None
            }
        }
    }

    pub(super) fn get(&self, source: Source, name: &SliceName) -> Option<&Arc<Slice>> {
        let found = self.slices.find(self.hash(source, name), |(_, slice)| is_named(slice, source, name));
        found.map(|(_, slice)| slice)
    }

    /// Whether the set has exactly this slice. It then stays where it is in memory.
    pub(super) fn has(&self, slice: &Slice) -> bool {
        let is_same = |(_, known): &(u64, Arc<Slice>)| is_named(known, slice.source, &slice.name);
        self.slices.find(self.hash(slice.source, &slice.name), is_same).is_some_and(|(_, known)| **known == *slice)
    }

    pub(super) fn remove(&mut self, source: Source, name: &SliceName) -> Option<Arc<Slice>> {
        let hash = self.hash(source, name);
        let found = self.slices.find_entry(hash, |(_, slice)| is_named(slice, source, name)).ok()?;
        let ((_, slice), _) = found.remove();
        Some(slice)
    }

    pub(super) fn len(&self) -> usize {
        self.slices.len()
    }

    fn hash(&self, source: Source, name: &SliceName) -> u64 {
        self.hasher.hash_one((source, name))
    }
}

fn is_named(slice: &Slice, source: Source, name: &SliceName) -> bool {
    (slice.source, &slice.name) == (source, name)
}

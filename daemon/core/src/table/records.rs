//! Searches for the records of many services, in a round that compiles most of them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::OrdMap;

use super::facts::Facts;
use super::record::{Owner, Record};
use crate::model::service::ServiceName;

/// From this number of searches, all records are visited first.
const MANY: usize = 1_000;

/// The largest number of records to visit for each search. A search by name takes longer than to visit them, because it
/// compares names that are not in the cache.
const RECORDS_PER_SEARCH: usize = 8;

/// A copy of the records, which shares their memory.
pub(crate) struct Records(pub(super) OrdMap<ServiceName, Arc<Record>>);

/// Finds records by where their names are in memory, which is the same for copies of one name, and by name otherwise.
pub(crate) struct RecordSearch<'a> {
    records: &'a Records,
    by_place: HashMap<usize, &'a Record, RandomState>,
}

impl Facts {
    /// The records, for searches while the engine changes.
    pub(crate) fn records(&self) -> Records {
        Records(self.records.clone())
    }
}

impl Records {
    /// Prepares for this number of searches.
    pub(crate) fn search(&self, count: usize) -> RecordSearch<'_> {
        let is_worthwhile = count >= MANY && self.0.len() / RECORDS_PER_SEARCH <= count;
        let visited = is_worthwhile.then(|| self.0.iter()).into_iter().flatten();
        let by_place = visited.map(|(name, record)| (name.place(), &**record)).collect();
        RecordSearch { records: self, by_place }
    }
}

impl<'a> RecordSearch<'a> {
    /// See [`Facts::owner`].
    pub(crate) fn owner(&self, name: &ServiceName) -> Option<Owner<'a>> {
        match self.by_place.get(&name.place()) {
            Some(record) => record.owner(),
            None => self.records.0.get(name)?.owner(),
        }
    }
}

#[cfg(test)]
#[path = "tests/records.rs"]
mod tests;

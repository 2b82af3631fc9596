//! The flight recorder: the changes of backend lists, with the time, the author, and the time when the maps contained
//! them. It is bounded for each service and in total. A reader's copy costs a few reference counts. The engine decides
//! which changes become an [`Event`] (`engine/event_recorder.rs`); the daemon preserves records over a restart.

use std::collections::VecDeque;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::service::ServiceName;

mod event;

pub use event::{Addresses, Event, Kernel, MAX_SHOWN, Record, What};

/// The maximum number of records of one service.
pub const MAX_OF_SERVICE: usize = 32;

/// The maximum number of records in total.
pub const MAX_RECORDS: usize = 4_096;

/// Records by number. A service with more than [`MAX_OF_SERVICE`] records loses its oldest. With more than [`MAX_RECORDS`],
/// the namespace that has most loses its oldest, so that what happens to its services hides nothing about others.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: OrdMap<u64, Arc<Record>>,
    by_service: OrdMap<ServiceName, Arc<VecDeque<u64>>>,
    /// The records of each namespace; those of no service have one of their own.
    by_namespace: OrdMap<Option<Arc<str>>, OrdSet<u64>>,
    /// The namespaces by their number of records.
    sizes: OrdSet<(usize, Option<Arc<str>>)>,
    last: u64,
}

/// When an event was received, and how long its steps took: see [`Record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub at: u64,
    pub to_kernel: u64,
}

impl History {
    /// Adds an event that has just happened.
    pub fn add(&mut self, event: Event, stamp: Stamp) -> Arc<Record> {
        let to_owner = event.cause.origin.triggered.map(|triggered| stamp.at.saturating_sub(triggered));
        let to_kernel = match event.kernel {
            Kernel::Done if event.what == What::Healed => Some(
                self.tried_at(&event)
                    .map_or(0, |at| stamp.at.saturating_sub(at).saturating_mul(1_000))
                    .saturating_add(stamp.to_kernel),
            ),
            Kernel::Done => Some(stamp.to_kernel),
            Kernel::Untouched | Kernel::Deferred | Kernel::Failed(_) => None,
        };
        let sequence = self.last.saturating_add(1);
        let record = Arc::new(Record { sequence, at: stamp.at, to_owner, to_kernel, is_from_before: false, event });
        self.insert(Arc::clone(&record));
        record
    }

    /// Adds a record of an earlier run, unless it is implausible or out of order.
    pub fn restore(&mut self, mut record: Record) {
        if record.sequence > self.last && record.is_plausible() {
            record.is_from_before = true;
            self.insert(Arc::new(record));
        }
    }

    /// Skips this number of sequence numbers, which earlier runs reported but did not store.
    pub fn skip(&mut self, numbers: u64) {
        self.last = self.last.saturating_add(numbers);
    }

    fn insert(&mut self, record: Arc<Record>) {
        self.last = record.sequence;
        self.count(&record, |records| _ = records.insert(record.sequence));
        if let Some(port) = &record.event.port {
            let sequences = Arc::make_mut(self.by_service.entry(port.service.clone()).or_default());
            sequences.push_back(record.sequence);
            if sequences.len() > MAX_OF_SERVICE
                && let Some(oldest) = sequences.front().copied()
            {
                self.forget(oldest);
            }
        }
        self.records.insert(record.sequence, record);
        if self.records.len() > MAX_RECORDS
            && let Some((_, largest)) = self.sizes.get_max()
            && let Some(oldest) = self.by_namespace.get(largest).and_then(OrdSet::get_min).copied()
        {
            self.forget(oldest);
        }
    }

    /// Drops the oldest record of a service or a namespace, which is the first of its service.
    fn forget(&mut self, sequence: u64) {
        let Some(record) = self.records.remove(&sequence) else { return };
        self.count(&record, |records| _ = records.remove(&sequence));
        let Some(name) = record.event.port.as_ref().map(|port| &port.service) else { return };
        if let Some(sequences) = self.by_service.get_mut(name) {
            let sequences = Arc::make_mut(sequences);
            sequences.retain(|known| *known != sequence);
            if sequences.is_empty() {
                self.by_service.remove(name);
            }
        }
    }

    /// Changes the records of the namespace that the record belongs to.
    fn count(&mut self, record: &Record, change: impl FnOnce(&mut OrdSet<u64>)) {
        let namespace = record.event.port.as_ref().map(|port| Arc::clone(&port.service.namespace));
        let mut records = self.by_namespace.remove(&namespace).unwrap_or_default();
        self.sizes.remove(&(records.len(), namespace.clone()));
        change(&mut records);
        if !records.is_empty() {
            self.sizes.insert((records.len(), namespace.clone()));
            self.by_namespace.insert(namespace, records);
        }
    }

    /// The time of the first attempt to write an entry that the maps accepted only now.
    fn tried_at(&self, event: &Event) -> Option<u64> {
        let earlier = self.of_service(&event.port.as_ref()?.service).rev();
        let of_port = earlier.filter(|record| record.event.port == event.port && !record.is_from_before);
        let waits = |record: &&Arc<Record>| matches!(record.event.kernel, Kernel::Failed(_) | Kernel::Deferred);
        of_port.take_while(waits).last().map(|record| record.at)
    }

    /// Every record after the one with this number, oldest first. A reader that passes the number of the last record it
    /// has read misses nothing except records that have been dropped since.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = &Arc<Record>> {
        self.records.range((std::ops::Bound::Excluded(sequence), std::ops::Bound::Unbounded)).map(|(_, record)| record)
    }

    pub fn latest_first(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.records.iter().rev().map(|(_, record)| record)
    }

    /// The records of the service, oldest first.
    pub fn of_service(&self, name: &ServiceName) -> impl DoubleEndedIterator<Item = &Arc<Record>> {
        let sequences = self.by_service.get(name).map(Arc::as_ref);
        sequences.into_iter().flatten().filter_map(|sequence| self.records.get(sequence))
    }

    /// The highest known record number, including dropped records; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;

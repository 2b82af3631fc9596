//! The flight recorder: the changes of backend lists, with the time, the author, and the time when the maps contained
//! them. It is bounded for each service and in total. A reader's copy costs a few reference counts. The engine decides
//! which changes become an [`Event`] (`engine/event_recorder.rs`); the daemon preserves records over a restart.

use std::collections::VecDeque;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::service::ServiceName;

mod event;
mod recent;

pub use event::{Addresses, Event, Kernel, MAX_SHOWN, Record, What};
use recent::Recent;
pub use recent::{Latencies, SLOW};

/// The maximum number of records of one service.
pub const MAX_OF_SERVICE: usize = 32;

/// The maximum number of records of services.
pub const MAX_RECORDS: usize = 4_096;

/// The maximum number of records of the node of one kind: problems count those of the last half hour.
pub const MAX_OF_KIND: usize = 1_024;

/// Records by number. A service with more than [`MAX_OF_SERVICE`] records loses its oldest. With more than [`MAX_RECORDS`],
/// the namespace that has most loses its oldest, so that what happens to its services hides nothing about others. Records
/// of the node ([`Event::is_of_node`]) have a limit of their own, which nothing that happens to services uses up.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: OrdMap<u64, Arc<Record>>,
    by_service: OrdMap<ServiceName, Arc<VecDeque<u64>>>,
    /// The records of each namespace, except for those of the node.
    by_namespace: OrdMap<Arc<str>, OrdSet<u64>>,
    /// The namespaces by their number of records.
    sizes: OrdSet<(usize, Arc<str>)>,
    /// The records of the node, by their [`kind`].
    by_kind: OrdMap<usize, OrdSet<u64>>,
    recent: Recent,
    last: u64,
}

/// When an event was received, and how long its steps took: see [`Record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub at: u64,
    pub to_kernel: u64,
}

/// The kind of a record of the node. Whether the daemon ended unexpectedly follows from starts and stops together.
fn kind(what: What) -> usize {
    if what == What::Stopped { What::Started as usize } else { what as usize }
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
        self.insert(&record);
        record
    }

    /// Adds a record of an earlier run, unless it is implausible or out of order.
    pub fn restore(&mut self, mut record: Record) {
        if record.sequence > self.last && record.is_plausible() {
            record.is_from_before = true;
            self.insert(&Arc::new(record));
        }
    }

    /// Skips this number of sequence numbers, which earlier runs reported but did not store.
    pub fn skip(&mut self, numbers: u64) {
        self.last = self.last.saturating_add(numbers);
    }

    fn insert(&mut self, record: &Arc<Record>) {
        let sequence = record.sequence;
        self.last = sequence;
        if let Some(latency) = latency(record) {
            self.recent.count(record.at, latency);
        }
        self.records.insert(sequence, Arc::clone(record));
        if let Some(port) = &record.event.port {
            let sequences = Arc::make_mut(self.by_service.entry(port.service.clone()).or_default());
            sequences.push_back(sequence);
            if sequences.len() > MAX_OF_SERVICE
                && let Some(oldest) = sequences.pop_front()
                && self.records.get(&oldest).is_some_and(|oldest| !oldest.event.is_of_node())
            {
                self.forget(oldest);
            }
        }
        let oldest = match &record.event.port {
            Some(port) if !record.event.is_of_node() => {
                self.count(&port.service.namespace, |records| _ = records.insert(sequence));
                self.oldest_of_services()
            }
            _ => {
                let of_kind = self.by_kind.entry(kind(record.event.what)).or_default();
                of_kind.insert(sequence);
                of_kind.get_min().copied().filter(|_| of_kind.len() > MAX_OF_KIND)
            }
        };
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
    }

    /// The record that goes because there are too many of services.
    fn oldest_of_services(&self) -> Option<u64> {
        let of_node: usize = self.by_kind.values().map(OrdSet::len).sum();
        let (_, largest) = self.sizes.get_max().filter(|_| self.records.len() - of_node > MAX_RECORDS)?;
        self.by_namespace.get(largest)?.get_min().copied()
    }

    /// Drops a record.
    fn forget(&mut self, sequence: u64) {
        let Some(record) = self.records.remove(&sequence) else { return };
        if record.event.is_of_node()
            && let Some(of_kind) = self.by_kind.get_mut(&kind(record.event.what))
        {
            of_kind.remove(&sequence);
        }
        let Some(name) = record.event.port.as_ref().map(|port| &port.service) else { return };
        if !record.event.is_of_node() {
            self.count(&name.namespace, |records| _ = records.remove(&sequence));
        }
        if let Some(sequences) = self.by_service.get_mut(name) {
            let sequences = Arc::make_mut(sequences);
            sequences.retain(|known| *known != sequence);
            if sequences.is_empty() {
                self.by_service.remove(name);
            }
        }
    }

    /// Changes the records of the namespace.
    fn count(&mut self, namespace: &Arc<str>, change: impl FnOnce(&mut OrdSet<u64>)) {
        let mut records = self.by_namespace.remove(namespace).unwrap_or_default();
        self.sizes.remove(&(records.len(), Arc::clone(namespace)));
        change(&mut records);
        if !records.is_empty() {
            self.sizes.insert((records.len(), Arc::clone(namespace)));
            self.by_namespace.insert(Arc::clone(namespace), records);
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

    /// The records of the node, the latest first.
    pub fn of_node(&self) -> impl Iterator<Item = &Arc<Record>> {
        let sequences: OrdSet<u64> = self.by_kind.values().flatten().copied().collect();
        sequences.into_iter().rev().filter_map(|sequence| self.records.get(&sequence))
    }

    /// The changes since this time, in milliseconds since 1970, as far as their latency is known.
    pub fn latencies_since(&self, first: u64) -> Latencies {
        self.recent.since(first)
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

/// The time from the change of the object until the maps contained it, in milliseconds.
fn latency(record: &Record) -> Option<u64> {
    Some(record.to_owner?.saturating_add(record.to_kernel? / 1_000))
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;

//! The number of connections of each service, for the metrics: turns the kernel's counts by id into a limited number of
//! series that only grow. Owns the decision which service has its own series; the datapath owns the counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use nodelb_core::datapath::Count;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;

/// The maximum number of service ports with their own series. All others share one.
pub const MAX_SERIES: usize = 1_000;

/// Reads the kernel's count for an id. Makes no system call.
pub type ReadCount = Arc<dyn Fn(ServiceId) -> Count + Send + Sync>;

/// The kernel's counts and the series made from them.
#[derive(Clone)]
pub struct Connections {
    pub read: ReadCount,
    /// The series. Each request for the metrics updates them.
    pub ledger: Arc<Mutex<Ledger>>,
}

/// A service port in all its families.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub service: ServiceName,
    /// Port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl Series {
    fn new(key: &PortKey) -> Self {
        Self { service: key.service.clone(), port: Arc::clone(&key.port), protocol: key.protocol }
    }
}

/// The series so far. A service port keeps its series as long as the port exists, even if others have more connections:
/// a series that came and went would not only grow. When the port is removed, its series ends and its count is dropped.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    own: BTreeMap<Series, Count>,
    other: Count,
    /// The last count of each id with connections, and the port that had the id.
    last: HashMap<ServiceId, (Arc<PortKey>, Count)>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(MAX_SERIES)
    }
}

impl Ledger {
    fn new(limit: usize) -> Self {
        Self { limit, own: BTreeMap::new(), other: Count::default(), last: HashMap::new() }
    }

    /// Adds the connections since the last update.
    pub fn update(&mut self, snapshot: &Snapshot, read: impl Fn(ServiceId) -> Count) {
        // An id rests before another port gets it. Until then it has what the port counted before it was made again.
        for (id, (key, before)) in self.last.iter().filter(|(id, _)| !snapshot.owners.contains_key(*id)) {
            if let Some(known) = self.own.get_mut(&Series::new(key)) {
                known.add(read(*id).since(*before));
            }
        }
        self.end(snapshot.ports().map(|(_, key)| &**key));
        let counted = snapshot.ports().map(|(id, key)| (id, Arc::clone(key), read(id)));
        self.take(counted.filter(|(_, _, count)| *count != Count::default()));
    }

    /// Ends the series of all ports that are not in this list.
    fn end<'a>(&mut self, ports: impl Iterator<Item = &'a PortKey>) {
        let mut gone: BTreeSet<Series> = self.own.keys().cloned().collect();
        for key in ports {
            if gone.is_empty() {
                return;
            }
            gone.remove(&Series::new(key));
        }
        self.own.retain(|series, _| !gone.contains(series));
    }

    fn take(&mut self, counted: impl Iterator<Item = (ServiceId, Arc<PortKey>, Count)>) {
        let mut fresh: BTreeMap<Series, Count> = BTreeMap::new();
        let mut last = HashMap::with_capacity(self.last.len());
        for (id, key, count) in counted {
            let before = self.last.get(&id).filter(|(owner, _)| *owner == key).map(|(_, before)| *before);
            let more = count.since(before.unwrap_or_default());
            if more != Count::default() {
                let series = Series::new(&key);
                match self.own.get_mut(&series) {
                    Some(known) => known.add(more),
                    None => fresh.entry(series).or_default().add(more),
                }
            }
            last.insert(id, (key, count));
        }
        self.last = last;
        let mut fresh: Vec<(Series, Count)> = fresh.into_iter().collect();
        fresh.sort_by_key(|(_, count)| Reverse(count.translated + count.refused));
        for (series, count) in fresh {
            if self.own.len() < self.limit {
                self.own.insert(series, count);
            } else {
                self.other.add(count);
            }
        }
    }

    /// All ports with their own series, in order.
    pub fn own(&self) -> impl Iterator<Item = (&Series, Count)> {
        self.own.iter().map(|(series, count)| (series, *count))
    }

    /// The sum of all other ports; `None` if there are none.
    pub fn other(&self) -> Option<Count> {
        (self.other != Count::default()).then_some(self.other)
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;

//! How many connections each service had, for the metrics: makes series that only grow and are not too many out of what
//! the kernel counts by id. Owns which service has a series of its own; what is counted is the datapath's to say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use nodelb_core::datapath::Count;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;

/// How many service ports have a series of their own. The others share one.
pub const MAX_SERIES: usize = 1_000;

/// Reads what the kernel counts for an id; costs no system call.
pub type ReadCount = Arc<dyn Fn(ServiceId) -> Count + Send + Sync>;

/// What the kernel counts, and what was made of it so far.
#[derive(Clone)]
pub struct Connections {
    /// The kernel's counts.
    pub read: ReadCount,
    /// The series made of them. Whoever asks for the metrics brings it up to date.
    pub ledger: Arc<Mutex<Ledger>>,
}

/// A service port, whatever its families.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Whose.
    pub service: ServiceName,
    /// Port name, empty for an unnamed port.
    pub port: Arc<str>,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl Series {
    fn of(key: &PortKey) -> Self {
        Self { service: key.service.clone(), port: Arc::clone(&key.port), protocol: key.protocol }
    }
}

/// The series so far. A service port keeps its series for as long as it is there, whoever has more connections: a series
/// that came and went would not only grow. The series of a port that is gone ends; what it had goes nowhere.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    own: BTreeMap<Series, Count>,
    other: Count,
    /// What was last read of each id that had counted anything, and whose it was.
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

    /// Takes in what has been counted since the last time.
    pub fn update(&mut self, snapshot: &Snapshot, read: impl Fn(ServiceId) -> Count) {
        self.end(snapshot.ports().map(|(_, key)| &**key));
        let counted = snapshot.ports().map(|(id, key)| (id, Arc::clone(key), read(id)));
        self.take(counted.filter(|(_, _, count)| *count != Count::default()));
    }

    /// Ends every series that none of these ports has.
    fn end<'a>(&mut self, ports: impl Iterator<Item = &'a PortKey>) {
        let mut gone: BTreeSet<Series> = self.own.keys().cloned().collect();
        for key in ports {
            if gone.is_empty() {
                return;
            }
            gone.remove(&Series::of(key));
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
                let series = Series::of(&key);
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

    /// Each service port that has one, in order.
    pub fn own(&self) -> impl Iterator<Item = (&Series, Count)> {
        self.own.iter().map(|(series, count)| (series, *count))
    }

    /// All others together; `None` while there are none.
    pub fn other(&self) -> Option<Count> {
        (self.other != Count::default()).then_some(self.other)
    }
}

#[cfg(test)]
#[path = "tests/connections.rs"]
mod tests;

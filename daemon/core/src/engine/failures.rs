//! Operations that the datapath did not carry out, by the entry they concern, and when they are retried.

use std::collections::BTreeMap;

use imbl::OrdMap;

use crate::datapath::MapError;
use crate::model::addr::{Addr, L4Addr};
use crate::model::moment::Moment;
use crate::model::source_range::SourceRange;
use crate::state::entries::{Desired, MapOp, Realised, ServiceId};
use crate::state::map_ops::Touched;

/// The first and the longest delay before failed operations are retried, in milliseconds.
const RETRY_MILLIS: (u64, u64) = (100, 5_000);

/// The last error of each entry with a failed last operation, and the time of the next attempt.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) services: BTreeMap<ServiceId, MapError>,
    frontends: BTreeMap<L4Addr, MapError>,
    outside: BTreeMap<L4Addr, MapError>,
    source_ranges: BTreeMap<(ServiceId, SourceRange), MapError>,
    pub(super) uplinks: BTreeMap<u32, MapError>,
    /// A persistent map, because readers get copies of it.
    pub(super) node_addrs: OrdMap<Addr, MapError>,
    retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Moment,
    /// The delay before it, in milliseconds.
    wait: u64,
}

impl Failures {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        let packets = self.outside.len() + self.source_ranges.len() + self.uplinks.len();
        self.services.len() + self.frontends.len() + self.node_addrs.len() + packets
    }

    /// The error that delays the frontend at the address, which points at the service.
    pub(super) fn of_frontend(&self, address: L4Addr, service: ServiceId) -> Option<&MapError> {
        self.services.get(&service).or_else(|| self.frontends.get(&address)).or_else(|| self.outside.get(&address))
    }

    /// The error of one of the service's source ranges.
    pub(super) fn of_ranges(&self, service: ServiceId) -> Option<&MapError> {
        let mut ranges = self.source_ranges.range((service, SourceRange::FIRST)..=(service, SourceRange::LAST));
        ranges.next().map(|(_, error)| error)
    }

    /// Records the result of the operation.
    pub(super) fn note(&mut self, op: &MapOp, error: Option<MapError>) {
        match op {
            MapOp::PutService(id, _) | MapOp::DeleteService(id) => note(&mut self.services, *id, error),
            MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                note(&mut self.frontends, *address, error);
            }
            MapOp::PutOutside(address, _) | MapOp::DeleteOutside(address) => note(&mut self.outside, *address, error),
            MapOp::PutSourceRange(id, range) | MapOp::DeleteSourceRange(id, range) => {
                note(&mut self.source_ranges, (*id, *range), error);
            }
            MapOp::PutUplink(index, _) | MapOp::DeleteUplink(index) => note(&mut self.uplinks, *index, error),
            MapOp::PutNodeAddr(addr) | MapOp::DeleteNodeAddr(addr) => match error {
                Some(error) => drop(self.node_addrs.insert(*addr, error)),
                // A removal copies the part that is shared with readers, so it must not be done without need.
                None if self.node_addrs.contains_key(addr) => drop(self.node_addrs.remove(addr)),
                None => {}
            },
        }
    }

    /// The time of the next attempt, if anything failed or waits.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.retry.map(|retry| retry.at)
    }

    pub(super) fn is_retry_due(&self, now: Moment) -> bool {
        self.retry.is_some_and(|retry| retry.at <= now)
    }

    /// Schedules the next attempt after a round. `is_waiting` says whether a service waits for a free id.
    pub(super) fn schedule_retry(&mut self, is_waiting: bool, now: Moment) {
        let is_wanted = is_waiting || !self.is_empty();
        let (first, longest) = RETRY_MILLIS;
        // Resting slots become available within a second, so a growing retry delay would only add to that time.
        let is_resting = self.services.values().any(|error| *error == MapError::Resting);
        self.retry = match self.retry {
            _ if !is_wanted => None,
            Some(retry) if retry.at > now => {
                let latest = if is_resting { now.plus(first) } else { retry.at };
                Some(Retry { at: retry.at.min(latest), ..retry })
            }
            Some(retry) => {
                let wait = if is_resting { first } else { (retry.wait * 2).min(longest) };
                Some(Retry { at: now.plus(wait), wait })
            }
            None => Some(Retry { at: now.plus(first), wait: first }),
        };
    }

    /// The entries to retry while the `node_addrs` map has this number of entries. If the map is as full as before, it
    /// accepts none of the failed node addresses.
    pub(super) fn to_retry(&self, node_addr_count: usize) -> Touched {
        let has_hope = |(_, error): &(&Addr, &MapError)| match error {
            MapError::TooManyNodeAddrs { limit } => node_addr_count < *limit as usize,
            _ => true,
        };
        Touched {
            services: self.services.keys().copied().chain(self.source_ranges.keys().map(|(id, _)| *id)).collect(),
            frontends: self.frontends.keys().chain(self.outside.keys()).copied().collect(),
            node_addrs: self.node_addrs.iter().filter(has_hope).map(|(addr, _)| *addr).collect(),
            uplinks: self.uplinks.keys().copied().collect(),
        }
    }

    /// Forgets the touched entries that are equal in the desired and the realised state.
    pub(super) fn settle(&mut self, touched: &Touched, desired: &Desired, realised: &Realised) {
        for id in touched.services.iter().filter(|id| desired.services.get(*id) == realised.services.get(*id)) {
            self.services.remove(id);
        }
        for address in touched.frontends.iter().filter(|a| desired.frontends.get(*a) == realised.frontends.get(*a)) {
            self.frontends.remove(address);
        }
        let is_right = |addr: &&Addr| desired.node_addrs.contains(*addr) == realised.node_addrs.contains(*addr);
        for addr in touched.node_addrs.iter().filter(is_right) {
            self.node_addrs.remove(addr);
        }
        for address in touched.frontends.iter().filter(|a| desired.outside.get(*a) == realised.outside.get(*a)) {
            self.outside.remove(address);
        }
        let (wanted, actual) = (&desired.source_ranges, &realised.source_ranges);
        self.source_ranges.retain(|range, _| wanted.contains(range) != actual.contains(range));
        self.uplinks.retain(|index, _| desired.uplinks.get(index) != realised.uplinks.get(index));
    }
}

fn note<K: Ord>(failed: &mut BTreeMap<K, MapError>, key: K, error: Option<MapError>) {
    match error {
        Some(error) => {
            failed.insert(key, error);
        }
        None => {
            failed.remove(&key);
        }
    }
}

//! Operations that the datapath did not carry out, by the entry they concern, and when they are retried.

use imbl::OrdMap;

use crate::datapath::MapError;
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::source_range::SourceRange;
use crate::state::entries::{Desired, EntryKey, MapOp, Realised, ServiceId};
use crate::state::map_ops::Touched;

/// The first and the longest delay before failed operations are retried, in milliseconds.
const RETRY_MILLIS: (u64, u64) = (100, 5_000);

/// The last error of each entry with a failed last operation, and the time of the next attempt.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// A persistent map, because readers get copies of it.
    pub(super) by_entry: OrdMap<EntryKey, MapError>,
    retry: Option<Retry>,
    /// Whether the next attempt differs from what has failed in this round.
    is_other_next: bool,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Moment,
    /// The delay before it, in milliseconds.
    wait: u64,
}

impl Failures {
    pub(super) fn is_empty(&self) -> bool {
        self.by_entry.is_empty()
    }

    pub(super) fn get(&self, key: EntryKey) -> Option<&MapError> {
        self.by_entry.get(&key)
    }

    pub(super) fn of_services(&self) -> impl Iterator<Item = &MapError> {
        self.by_entry.iter().take_while(|(key, _)| matches!(key, EntryKey::Service(_))).map(|(_, error)| error)
    }

    /// The error that delays the frontend at the address, which points at the service.
    pub(super) fn of_frontend(&self, address: L4Addr, service: ServiceId) -> Option<&MapError> {
        let keys = [EntryKey::Service(service), EntryKey::Frontend(address), EntryKey::Outside(address)];
        keys.into_iter().find_map(|key| self.get(key))
    }

    pub(super) fn of_ranges(&self, service: ServiceId) -> Option<&MapError> {
        let key = |range| EntryKey::SourceRange(service, range);
        self.by_entry.range(key(SourceRange::FIRST)..=key(SourceRange::LAST)).next().map(|(_, error)| error)
    }

    /// Records the result of the operation. Returns whether the previous one had failed.
    pub(super) fn note(&mut self, op: &MapOp, error: Option<MapError>) -> bool {
        match error {
            Some(error) => self.by_entry.insert(op.key(), error).is_some(),
            None => self.forget(op.key()),
        }
    }

    /// A removal copies the part that is shared with readers, so it is not done without need.
    fn forget(&mut self, key: EntryKey) -> bool {
        self.by_entry.contains_key(&key) && self.by_entry.remove(&key).is_some()
    }

    /// Notes that the next attempt differs from what has failed, so that it need not wait longer and longer.
    pub(super) fn retry_soon(&mut self) {
        self.is_other_next = true;
    }

    /// The time of the next attempt, if anything failed or waits.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.retry.map(|retry| retry.at)
    }

    pub(super) fn is_retry_due(&self, now: Moment) -> bool {
        self.retry.is_some_and(|retry| retry.at <= now)
    }

    /// Schedules the next attempt after a round. `is_waiting` says whether something waits that has no error, such as a
    /// service for a free id.
    pub(super) fn schedule_retry(&mut self, is_waiting: bool, now: Moment) {
        let is_wanted = is_waiting || !self.is_empty();
        let (first, longest) = RETRY_MILLIS;
        // Resting slots become available within a second, so a growing retry delay would only add to that time.
        let is_resting = self.of_services().any(|error| *error == MapError::Resting);
        let is_soon = std::mem::take(&mut self.is_other_next) || is_resting;
        self.retry = match self.retry {
            _ if !is_wanted => None,
            Some(retry) if retry.at > now => {
                let latest = if is_soon { now.plus(first) } else { retry.at };
                Some(Retry { at: retry.at.min(latest), ..retry })
            }
            Some(retry) => {
                let wait = if is_soon { first } else { (retry.wait * 2).min(longest) };
                Some(Retry { at: now.plus(wait), wait })
            }
            None => Some(Retry { at: now.plus(first), wait: first }),
        };
    }

    /// The entries to retry while the `node_addrs` map has this number of entries. If the map is as full as before, it
    /// accepts none of the failed node addresses.
    pub(super) fn to_retry(&self, node_addr_count: usize) -> Touched {
        let has_hope = |error: &MapError| match error {
            MapError::TooManyNodeAddrs { limit } => node_addr_count < *limit as usize,
            _ => true,
        };
        let mut touched = Touched::default();
        self.by_entry.iter().filter(|(_, error)| has_hope(error)).for_each(|(key, _)| touched.add(*key));
        touched
    }

    /// Forgets the touched entries that are equal in the desired and the realised state.
    pub(super) fn settle(&mut self, touched: &Touched, desired: &Desired, realised: &Realised) {
        if self.is_empty() {
            return;
        }
        let failed = touched.keys().filter(|key| self.by_entry.contains_key(key));
        let ranges =
            self.by_entry.range(EntryKey::SourceRange(ServiceId(0), SourceRange::FIRST)..).map(|(key, _)| *key);
        let settled: Vec<EntryKey> = failed.chain(ranges).filter(|key| desired.agrees(realised, *key)).collect();
        settled.into_iter().for_each(|key| _ = self.forget(key));
    }
}

//! Backend lists that arrive in parts. A source that is not synced yet sends the slices of one service one after
//! another. If every longer list were written immediately, each would need its own run of slots while the shorter ones
//! rest: in total many times the space that the service needs. Therefore a list that only grows is written at most
//! every five seconds until its source is synced, which seldom takes longer. Addresses that had no backend before, and
//! backends that must not be used any more, are written immediately.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::model::moment::Moment;
use crate::state::entries::{MapOp, Realised, ServiceEntry, ServiceId, Slot};

/// How long a list waits for the rest of its source, in milliseconds since it was last written.
const GATHER_MILLIS: u64 = 5_000;

/// The lists of sources that are not synced.
#[derive(Debug, Default)]
pub(super) struct Batching {
    /// When each list was last written.
    written: HashMap<ServiceId, Moment, RandomState>,
    /// The lists that have grown since, each with the time when it will be written.
    waiting: BTreeSet<(Moment, ServiceId)>,
}

impl Batching {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first list will be written.
    pub(super) fn due(&self) -> Option<Moment> {
        self.waiting.first().map(|(due, _)| *due)
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Vec<ServiceId> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.waiting.first().filter(|(at, _)| *at <= now) {
            self.waiting.remove(&(at, id));
            due.push(id);
        }
        due
    }

    /// Removes and returns all lists, because a source is synced.
    pub(super) fn take(&mut self) -> Vec<ServiceId> {
        std::mem::take(self).waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes the operations on lists that wait for further slices. The functions say for each service whether its
    /// source is synced (its list then never waits), and whether its last operation failed (it is then retried on a
    /// separate schedule).
    pub(super) fn take_out(
        &mut self,
        ops: &mut Vec<MapOp>,
        realised: &Realised,
        (is_source_synced, has_failed): (impl Fn(ServiceId) -> bool, impl Fn(ServiceId) -> bool),
        now: Moment,
    ) {
        ops.retain(|op| {
            let MapOp::PutService(id, wanted) = op else { return true };
            let grows = || realised.services.get(id).is_some_and(|actual| is_longer(actual, wanted));
            is_source_synced(*id) || !self.puts_off(*id, !has_failed(*id) && grows(), now)
        });
    }

    /// Whether a list that has grown waits. If not, it is written now.
    fn puts_off(&mut self, id: ServiceId, grows: bool, now: Moment) -> bool {
        let due = self.written.get(&id).map(|written| written.plus(GATHER_MILLIS));
        if let Some(due) = due {
            if grows && now < due {
                self.waiting.insert((due, id));
                return true;
            }
            self.waiting.remove(&(due, id));
        }
        self.written.insert(id, now);
        false
    }
}

/// Whether the new entry differs from the old one only by additional backends in lists that had some.
fn is_longer(actual: &ServiceEntry, wanted: &ServiceEntry) -> bool {
    let grows = |actual: &[Slot], wanted: &[Slot]| {
        let mut rest = wanted.iter();
        let is_kept = actual.iter().all(|slot| rest.any(|other| other == slot));
        is_kept && (wanted.is_empty() || !actual.is_empty())
    };
    actual.affinity_seconds == wanted.affinity_seconds
        && actual.has_backends == wanted.has_backends
        && actual.has_rings == wanted.has_rings
        && actual.has_ranges == wanted.has_ranges
        && actual.forward == wanted.forward
        && actual.is_last_resort == wanted.is_last_resort
        && actual.is_local_last_resort == wanted.is_local_last_resort
        && grows(&actual.cluster, &wanted.cluster)
        && grows(&actual.local, &wanted.local)
}

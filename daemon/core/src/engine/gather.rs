//! Lists that arrive in pieces. A source that has not reported all it has sends the slices of one service one after the
//! other. To write each longer list at once would take a run of slots for each of them, while the shorter ones rest: in
//! sum many times the room that the service needs. So a list that only grows is written at most every five seconds until
//! its source has synced, which is seldom longer than that. What a connection could not reach before, and what it must not
//! reach any more, is written at once.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::model::moment::Moment;
use crate::state::entries::{MapOp, Realised, ServiceEntry, ServiceId, Slot};

/// How long a list waits for the rest of its source, in milliseconds from when it was written last.
const GATHER_MILLIS: u64 = 5_000;

/// The lists whose source has not synced.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// When each was written last.
    written: HashMap<ServiceId, Moment, RandomState>,
    /// Those that have grown since, each with the time at which it is written.
    waiting: BTreeSet<(Moment, ServiceId)>,
}

impl Gathering {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first of them is written.
    pub(super) fn due(&self) -> Option<Moment> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Those whose time has come; they wait no longer.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<ServiceId> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.waiting.first().filter(|(at, _)| *at <= now) {
            self.waiting.remove(&(at, id));
            due.push(id);
        }
        due
    }

    /// All of them: a source has synced.
    pub(super) fn take(&mut self) -> Vec<ServiceId> {
        std::mem::take(self).waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes out the lists that wait for more of their kind. Which may is said of each: its source has not synced, and what
    /// failed has a time of its own at which it is tried again.
    pub(super) fn take_out(
        &mut self,
        ops: &mut Vec<MapOp>,
        realised: &Realised,
        (is_told, has_failed): (impl Fn(ServiceId) -> bool, impl Fn(ServiceId) -> bool),
        now: Moment,
    ) {
        ops.retain(|op| {
            let MapOp::PutService(id, wanted) = op else { return true };
            let grows = || realised.services.get(id).is_some_and(|held| is_longer(held, wanted));
            is_told(*id) || !self.puts_off(*id, !has_failed(*id) && grows(), now)
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

/// Whether the entry only has more of what both its lists had.
fn is_longer(held: &ServiceEntry, wanted: &ServiceEntry) -> bool {
    let grows = |held: &[Slot], wanted: &[Slot]| {
        let mut rest = wanted.iter();
        let is_kept = held.iter().all(|slot| rest.any(|other| other == slot));
        is_kept && (wanted.is_empty() || !held.is_empty())
    };
    held.affinity_seconds == wanted.affinity_seconds
        && held.has_backends == wanted.has_backends
        && grows(&held.cluster, &wanted.cluster)
        && grows(&held.local, &wanted.local)
}

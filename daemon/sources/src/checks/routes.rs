//! When a target of each family was last known to have a route from this host. Pure. If one backend has no route, it
//! cannot be used; if no other target of its family has one, the host's network may not be up. In the end that makes no
//! difference: a backend without a route serves no client, and if that is every backend, all are a last resort.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;
use nodelb_core::model::addr::Family;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::moment::Moment;

use super::board::TargetId;
use super::schedule::shortest;

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// For each target that had a route at its last check: its family, and the time.
    seen: HashMap<TargetId, (Family, Moment), RandomState>,
    /// `seen`, sorted by time.
    in_order: BTreeMap<Family, BTreeSet<(Moment, TargetId)>>,
    /// The targets without a route, and since when.
    missing: HashMap<TargetId, Moment, RandomState>,
}

/// How many times as long as other failures need to turn a target, a route has to be missing before that counts without
/// other evidence.
const LASTING_TURNS: u64 = 3;

impl Routes {
    /// Notes that there was a route to the target when it was checked.
    pub(super) fn note(&mut self, target: TargetId, family: Family, asked: Moment) {
        self.leave(target);
        self.seen.insert(target, (family, asked));
        self.in_order.entry(family).or_default().insert((asked, target));
    }

    /// Notes that there was no route to the target when it was checked. Returns whether that has lasted so long that it
    /// counts against the target, whatever the host's network is like.
    pub(super) fn note_missing(&mut self, target: TargetId, check: &HealthCheck, asked: Moment) -> bool {
        self.forget(target);
        let since = *self.missing.entry(target).or_insert(asked);
        let turn = shortest(check.interval).saturating_mul(u64::from(check.fall));
        asked >= since.plus(turn.saturating_mul(LASTING_TURNS))
    }

    /// Removes a target that is no longer checked, or that shows nothing about routes any more.
    pub(super) fn leave(&mut self, target: TargetId) {
        self.forget(target);
        self.missing.remove(&target);
    }

    /// Removes a target that had no route.
    fn forget(&mut self, target: TargetId) {
        if let Some((family, asked)) = self.seen.remove(&target) {
            self.in_order.entry(family).or_default().remove(&(asked, target));
        }
    }

    /// Whether any target of the family that was checked after this moment had a route at its last check.
    pub(super) fn lead_anywhere(&self, family: Family, after: Moment) -> bool {
        self.in_order.get(&family).and_then(BTreeSet::last).is_some_and(|(asked, _)| after < *asked)
    }
}

/// Another target must have had a route after the returned moment for a missing route to count against a target that
/// was checked at `asked`. The window is one answer shorter than the number of answers that turn a target: when the
/// host's network goes down, earlier evidence is too old before a target has failed that often. If one answer is
/// enough, the window is one interval.
pub(super) fn evidence_after(check: &HealthCheck, asked: Moment) -> Moment {
    let answers = u64::from(check.fall.saturating_sub(1).max(1));
    Moment(asked.0.saturating_sub(shortest(check.interval).saturating_mul(answers)))
}

#[cfg(test)]
#[path = "tests/routes.rs"]
mod tests;

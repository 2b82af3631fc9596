//! When a target of each family was last seen to have a route from this host. Pure. One backend without a route is a backend
//! that cannot be used; a family in which no other target has one is a host whose network is not up.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use nodelb_core::model::addr::Family;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::moment::Moment;

use super::board::TargetId;
use super::schedule::shortest;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Of each target that had a route when it was asked last: its family, and when that was.
    seen: HashMap<TargetId, (Family, Moment), RandomState>,
    /// The same in the order of time: IPv4, IPv6.
    in_order: [BTreeSet<(Moment, TargetId)>; 2],
}

impl Routes {
    /// Takes in that there was a route to the target when it was asked.
    pub(super) fn note(&mut self, target: TargetId, family: Family, asked: Moment) {
        self.forget(target);
        self.seen.insert(target, (family, asked));
        self.in_order[index(family)].insert((asked, target));
    }

    /// The target is not asked any more, or there was no route to it.
    pub(super) fn forget(&mut self, target: TargetId) {
        if let Some((family, asked)) = self.seen.remove(&target) {
            self.in_order[index(family)].remove(&(asked, target));
        }
    }

    /// Whether there was a route to any target of the family that was asked after this moment, when it was asked last.
    pub(super) fn lead_anywhere(&self, family: Family, after: Moment) -> bool {
        self.in_order[index(family)].last().is_some_and(|(asked, _)| after < *asked)
    }
}

/// After which moment another target must have been seen to have a route, for a missing one to count against a target that
/// was asked at this moment. A window of one answer fewer than it takes to turn: when the network of the host goes down,
/// what was seen until then is too old before a target has failed that often. Where one answer is enough, the window is one
/// interval.
pub(super) fn evidence_after(check: &HealthCheck, asked: Moment) -> Moment {
    let answers = u64::from(check.fall.saturating_sub(1).max(1));
    Moment(asked.0.saturating_sub(shortest(check.interval).saturating_mul(answers)))
}

fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

#[cfg(test)]
#[path = "tests/routes.rs"]
mod tests;

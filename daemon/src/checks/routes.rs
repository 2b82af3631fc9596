//! Which targets this host has a route to, by family. Pure. One backend without a route is a backend that cannot be used;
//! a family in which no target has one is a host whose network is not up.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use nodelb_core::model::addr::Family;

use super::board::TargetId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Of each target that was asked: its family, and whether there was a route when it was asked last.
    last: HashMap<TargetId, (Family, bool), RandomState>,
    /// How many of them have a route: IPv4, IPv6.
    routed: [usize; 2],
}

impl Routes {
    /// Takes in whether there was a route to the target just now.
    pub(super) fn note(&mut self, target: TargetId, family: Family, has_route: bool) {
        self.forget(target);
        self.last.insert(target, (family, has_route));
        *self.count(family) += usize::from(has_route);
    }

    /// The target is not asked any more.
    pub(super) fn forget(&mut self, target: TargetId) {
        if let Some((family, true)) = self.last.remove(&target) {
            *self.count(family) -= 1;
        }
    }

    /// Whether there was a route to any target of the family when it was asked last.
    pub(super) fn leads_anywhere(&self, family: Family) -> bool {
        self.routed[index(family)] > 0
    }

    fn count(&mut self, family: Family) -> &mut usize {
        &mut self.routed[index(family)]
    }
}

fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

#[cfg(test)]
mod tests;

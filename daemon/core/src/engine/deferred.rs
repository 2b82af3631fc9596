//! Operations that wait until more is known. Owns which entries they are about, each once however often its operation is
//! planned, and when they are planned again: all of them when a source says that it is synced, and those that have to do
//! with a service when something about that service has changed. See [`Engine::is_premature`] for what they wait for.

use std::collections::BTreeSet;

use super::Engine;
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::state::entries::{MapOp, ServiceId};
use crate::state::map_ops::Touched;

/// The entries that differ from what is desired, and that are not to be changed yet.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    services: BTreeSet<ServiceId>,
    /// Each behind the service to which the kernel led from it.
    frontends: BTreeSet<(Option<ServiceId>, L4Addr)>,
    /// Services of which something has changed that an entry may have waited for.
    changed: BTreeSet<ServiceId>,
    /// When the entries that have to do with those are planned again.
    due: Option<Moment>,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty()
    }

    /// When entries are planned again although no change came in.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// What an entry may wait for has changed: who describes the service, what the kernel has of it, or whether it is
    /// wanted.
    pub(super) fn note_change(&mut self, id: ServiceId) {
        if !self.is_empty() {
            self.changed.insert(id);
        }
    }

    /// The round is over: if something waits that may go on now, the next one is due at once.
    pub(super) fn end_round(&mut self, now: Moment) {
        let Self { services, frontends, changed, .. } = self;
        changed.retain(|id| services.contains(id) || frontends.range(led_to(*id)).next().is_some());
        self.due = (!self.changed.is_empty()).then_some(now);
    }

    /// How many entries wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.services.len() + self.frontends.len()
    }
}

/// The frontends that lead to the service.
fn led_to(id: ServiceId) -> std::ops::RangeInclusive<(Option<ServiceId>, L4Addr)> {
    (Some(id), L4Addr::FIRST)..=(Some(id), L4Addr::LAST)
}

impl Engine {
    pub(super) fn look_at_deferred_again(&mut self) {
        let Deferred { services, frontends, .. } = std::mem::take(&mut self.deferred);
        self.touch(Touched {
            services: services.into_iter().collect(),
            frontends: frontends.into_iter().map(|(_, address)| address).collect(),
            node_addrs: Vec::new(),
        });
    }

    /// The same for the entries that have to do with a service of which something has changed.
    pub(super) fn look_at_changed_again(&mut self) {
        self.deferred.due = None;
        for id in std::mem::take(&mut self.deferred.changed) {
            if self.deferred.services.remove(&id) {
                self.touched.services.push(id);
            }
            let frontends: Vec<_> = self.deferred.frontends.range(led_to(id)).copied().collect();
            for frontend in frontends {
                self.deferred.frontends.remove(&frontend);
                self.touched.frontends.push(frontend.1);
            }
        }
    }

    /// The same for an address whose claims have changed.
    pub(super) fn look_at_address_again(&mut self, address: L4Addr) {
        if self.deferred.frontends.remove(&self.led_from(address)) {
            self.touched.frontends.push(address);
        }
    }

    fn led_from(&self, address: L4Addr) -> (Option<ServiceId>, L4Addr) {
        (self.realised.frontends.get(&address).map(|held| held.service), address)
    }

    /// Takes out what must wait until more is known.
    pub(super) fn defer(&mut self, ops: &mut Vec<MapOp>) {
        if self.is_pruned {
            return;
        }
        let (premature, now): (Vec<MapOp>, Vec<MapOp>) = ops.drain(..).partition(|op| self.is_premature(op));
        *ops = now;
        for op in premature {
            match op {
                MapOp::PutService(id, _) | MapOp::DeleteService(id) => {
                    self.deferred.services.insert(id);
                }
                MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                    self.deferred.frontends.insert(self.led_from(address));
                }
                MapOp::PutNodeAddr(_) | MapOp::DeleteNodeAddr(_) => {}
            }
        }
    }
}

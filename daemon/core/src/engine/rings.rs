//! Services without rings: a ring takes many times the slots of its list. If the slots are full, a list without its ring
//! is better than an old list, because without a ring the programs select a backend at random.

use std::sync::Arc;

use imbl::OrdMap;

use super::Engine;
use crate::compile::plan::PortPlan;
use crate::datapath::MapError;
use crate::model::forward::Forward;
use crate::state::entries::{MapOp, ServiceEntry, ServiceId};
use crate::state::ring;

/// The service ports without rings, because the slots are full.
#[derive(Debug, Default)]
pub(super) struct Ringless {
    /// With the number of slots that each would have taken with its rings.
    pub(super) ids: OrdMap<ServiceId, usize>,
    /// By how many slots the lists have shrunk since rings did not fit.
    freed: usize,
}

impl Engine {
    /// Whether the lists of the service are to be followed by rings, with which they take this number of slots. A service
    /// that needs none does not lack them, and one that needs less than what did not fit tries again.
    pub(super) fn has_rings(&mut self, id: ServiceId, plan: &PortPlan, slots: usize) -> bool {
        let is_consistent = self.config.packets.is_consistent || plan.forward != Forward::Translate;
        let needs_rings = is_consistent && plan.has_outside();
        let refused = self.ringless.ids.get(&id).copied();
        let is_ringless = needs_rings && refused.is_some_and(|refused| slots >= refused);
        if refused.is_some() && !is_ringless {
            self.ringless.ids.remove(&id);
        }
        needs_rings && !is_ringless
    }

    /// Gives up the rings of a service that the datapath has refused because they do not fit. The next round writes the
    /// lists alone, until there are free slots again.
    pub(super) fn give_up_rings(&mut self, op: &MapOp, error: &MapError) {
        let (MapOp::PutService(id, refused), MapError::Full { map: "slots", .. }) = (op, error) else { return };
        let Some(desired) = self.desired.services.get_mut(id).filter(|_| refused.has_rings) else { return };
        Arc::make_mut(desired).has_rings = false;
        self.ringless.ids.insert(*id, refused.slot_count());
        self.ringless.freed = 0;
        self.failures.retry_soon();
    }

    /// Notes that the entry replaces another one. Rings are tried again when the lists have shrunk by as many slots as the
    /// smallest ring has. A list that was written without its ring, for lack of room next to the old one, has done so.
    pub(super) fn note_slots(&mut self, id: ServiceId, entry: &ServiceEntry) {
        if self.ringless.ids.is_empty() {
            return;
        }
        let had = self.realised.services.get(&id).map_or(0, |had| had.slot_count());
        self.ringless.freed = (self.ringless.freed + had).saturating_sub(entry.slot_count());
        let smallest_ring = ring::slots_with_ring(2) - 2;
        if self.ringless.freed >= smallest_ring {
            self.retry_rings();
        }
    }

    /// Compiles the services without rings again soon, because slots are free now. If rings do not fit then either, they
    /// are given up again.
    pub(super) fn retry_rings(&mut self) {
        for (id, _) in std::mem::take(&mut self.ringless).ids {
            if let Some(owner) = self.owners.get(&id) {
                self.dirty.wait_for_room(owner.key.service.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/rings.rs"]
mod tests;

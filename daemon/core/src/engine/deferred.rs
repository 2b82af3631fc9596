//! Operations that must wait for further reports. This module keeps the entries that they concern, each once however
//! often its operation is planned, and decides when they are planned again: all of them when a source reports that it
//! is synced, and those related to a service when something about that service has changed. [`super::Engine::is_premature`]
//! defines what they wait for.

use std::collections::BTreeSet;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::state::entries::{EntryKey, MapOp, Realised, ServiceId};
use crate::state::map_ops::Touched;

/// The entries that differ from the desired state and must not be changed yet.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    services: BTreeSet<ServiceId>,
    /// The frontends, each after the service that it pointed at in the maps.
    frontends: BTreeSet<(Option<ServiceId>, L4Addr)>,
    /// Services with a change that a deferred entry may have waited for.
    changed: BTreeSet<ServiceId>,
    /// When the entries related to these services are planned again.
    due: Option<Moment>,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty()
    }

    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Records a change that an entry may wait for: the source of the service, its entry in the maps, or whether it is
    /// desired.
    pub(super) fn note_change(&mut self, id: ServiceId) {
        if !self.is_empty() {
            self.changed.insert(id);
        }
    }

    /// Ends the round. If an entry waits that may be written now, the next round is due immediately.
    pub(super) fn end_round(&mut self, now: Moment) {
        let Self { services, frontends, changed, .. } = self;
        changed.retain(|id| services.contains(id) || frontends.range(led_to(*id)).next().is_some());
        self.due = (!self.changed.is_empty()).then_some(now);
    }

    /// Adds the entry that the operation concerns.
    pub(super) fn insert(&mut self, op: &MapOp, realised: &Realised) {
        match op.key() {
            EntryKey::Service(id) | EntryKey::SourceRange(id, _) => _ = self.services.insert(id),
            EntryKey::Frontend(address) | EntryKey::Outside(address) => {
                self.frontends.insert(led_from(address, realised));
            }
            EntryKey::NodeAddress(_) | EntryKey::Uplink(_) => {}
        }
    }

    pub(super) fn take_all(&mut self) -> Touched {
        let Self { services, frontends, .. } = std::mem::take(self);
        Touched {
            services: services.into_iter().collect(),
            frontends: frontends.into_iter().map(|(_, address)| address).collect(),
            ..Touched::default()
        }
    }

    /// Removes and returns the entries that are related to a changed service, to be planned again.
    pub(super) fn take_changed(&mut self) -> Touched {
        self.due = None;
        let mut touched = Touched::default();
        for id in std::mem::take(&mut self.changed) {
            if self.services.remove(&id) {
                touched.services.push(id);
            }
            let frontends: Vec<_> = self.frontends.range(led_to(id)).copied().collect();
            for frontend in frontends {
                self.frontends.remove(&frontend);
                touched.frontends.push(frontend.1);
            }
        }
        touched
    }

    /// Removes an address after its claims have changed. Returns whether it must be planned again.
    pub(super) fn remove_address(&mut self, address: L4Addr, realised: &Realised) -> bool {
        self.frontends.remove(&led_from(address, realised))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.services.len() + self.frontends.len()
    }
}

/// The range of the frontends that point at the service.
fn led_to(id: ServiceId) -> std::ops::RangeInclusive<(Option<ServiceId>, L4Addr)> {
    (Some(id), L4Addr::FIRST)..=(Some(id), L4Addr::LAST)
}

fn led_from(address: L4Addr, realised: &Realised) -> (Option<ServiceId>, L4Addr) {
    (realised.frontends.get(&address).map(|actual| actual.service), address)
}

//! How many addresses in the maps point at each list, so that none is deleted while connections can reach it.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::Engine;
use crate::model::addr::L4Addr;
use crate::state::entries::{MapOp, Realised, ServiceId};

/// The number of realised frontends and entries of `outside` that point at each service entry.
#[derive(Debug, Default)]
pub(super) struct References(HashMap<ServiceId, u32, RandomState>);

impl References {
    pub(super) fn new(realised: &Realised) -> Self {
        let mut references = Self::default();
        realised.frontends.values().for_each(|entry| references.add(entry.service));
        realised.outside.values().for_each(|entry| references.add(entry.service));
        references
    }

    pub(super) fn contains(&self, id: ServiceId) -> bool {
        self.0.get(&id).is_some_and(|count| *count > 0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().filter(|count| **count > 0).count()
    }

    /// Removes the count of an entry that nothing points at.
    pub(super) fn forget(&mut self, id: ServiceId) {
        self.0.remove(&id);
    }

    fn add(&mut self, id: ServiceId) {
        *self.0.entry(id).or_insert(0) += 1;
    }

    fn remove(&mut self, id: ServiceId) {
        if let Some(count) = self.0.get_mut(&id) {
            *count -= 1;
        }
    }
}

impl Engine {
    /// Updates the reference count. An entry that is not desired may be deleted once no frontend points at it.
    pub(super) fn count_references(&mut self, op: &MapOp) {
        let frontend = |address: &L4Addr| self.realised.frontends.get(address).map(|entry| entry.service);
        let outside = |address: &L4Addr| self.realised.outside.get(address).map(|entry| entry.service);
        let (before, now_at) = match op {
            MapOp::PutFrontend(address, entry) => (frontend(address), Some(entry.service)),
            MapOp::DeleteFrontend(address) => (frontend(address), None),
            MapOp::PutOutside(address, entry) => (outside(address), Some(entry.service)),
            MapOp::DeleteOutside(address) => (outside(address), None),
            _ => return,
        };
        if before == now_at {
            return;
        }
        if let MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) = op {
            self.at_start.note_lead(*address, before, now_at);
            self.removed.extend(now_at.is_none().then_some(*address));
            match before {
                Some(_) => self.moved.push(*address),
                None => self.event_recorder.note_gained(*address),
            }
        }
        if let Some(id) = before {
            self.deferred.note_change(id);
            self.references.remove(id);
        }
        if let Some(id) = before.filter(|id| !self.references.contains(*id) && !self.desired.services.contains_key(id))
        {
            self.touched.services.push(id);
        }
        if let Some(id) = now_at {
            self.references.add(id);
        }
    }
}

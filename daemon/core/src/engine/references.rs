//! How many addresses in the maps point at each list, so that none is deleted while connections can reach it; and what the
//! namespaces hold of the maps.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::Engine;
use super::shares::Bound;
use crate::compile::guard::Refusal;
use crate::datapath::Limits;
use crate::model::addr::L4Addr;
use crate::model::service::ServiceName;
use crate::state::entries::{MapOp, Realised, ServiceId};
use crate::state::owner::hash_of;

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
    /// Updates the reference count and the shares. An entry that is not desired may be deleted once no frontend points at it.
    pub(super) fn count_references(&mut self, op: &MapOp) {
        let frontend = |address: &L4Addr| self.realised.frontends.get(address).map(|entry| entry.service);
        let outside = |address: &L4Addr| self.realised.outside.get(address).map(|entry| entry.service);
        let (before, now_at) = match op {
            MapOp::PutFrontend(address, entry) => (frontend(address), Some(entry.service)),
            MapOp::DeleteFrontend(address) => (frontend(address), None),
            MapOp::PutOutside(address, entry) => (outside(address), Some(entry.service)),
            MapOp::DeleteOutside(address) => (outside(address), None),
            MapOp::PutService(id, entry) => return self.shares.note_lists(*id, entry),
            MapOp::DeleteService(id) => return self.shares.forget_lists(*id),
            MapOp::PutSourceRange(id, range) | MapOp::DeleteSourceRange(id, range) => {
                let is_added = matches!(op, MapOp::PutSourceRange(..));
                if self.realised.source_ranges.contains(&(*id, *range)) != is_added {
                    self.shares.note(*id, Bound::SourceRanges, is_added);
                }
                return;
            }
            _ => return,
        };
        if before == now_at {
            return;
        }
        let is_outside = matches!(op, MapOp::PutOutside(..) | MapOp::DeleteOutside(_));
        self.shares.note_lead(if is_outside { Bound::Outside } else { Bound::Frontends }, before, now_at);
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

    /// Takes out what the shares of the namespaces do not allow, as if the maps had no room for it.
    pub(super) fn refuse_beyond_shares(&mut self, ops: &mut Vec<MapOp>, limits: Limits) {
        // Who was served before a reboot comes before the shares.
        let was_served = |id| {
            let owner = || self.owners.get(&id).map(|owner| hash_of(&owner.key.service));
            self.ids.expects_any() && owner().is_some_and(|service| self.ids.is_expected(service))
        };
        let is_exempt = |id, bound, more| was_served(id) || self.replaces(id, bound, more);
        let refused = self.shares.take_out(ops, (&self.realised, limits), is_exempt);
        if !refused.is_empty() {
            let results = refused.iter().map(|(_, bound)| Err(bound.error(limits))).collect();
            self.commit(refused.into_iter().map(|(op, _)| op).collect(), results);
        }
    }

    /// Whether the new entries take the place of others, which are removed after them.
    fn replaces(&self, id: ServiceId, bound: Bound, more: u32) -> bool {
        let frontends = || self.desired_frontends_of(id).unwrap_or_default();
        if bound == Bound::Slots {
            let is_left = |id: &ServiceId| !self.desired.services.contains_key(id);
            let leads_to = |address| self.realised.frontends.get(address).map(|entry| entry.service);
            return frontends()
                .iter()
                .filter_map(leads_to)
                .filter(is_left)
                .any(|id| self.shares.count(id, bound) >= more);
        }
        let (had, wanted) = match bound {
            Bound::SourceRanges => (self.shares.count(id, bound), self.desired.ranges_of(id).count()),
            _ => (self.shares.most(id, bound), frontends().len()),
        };
        let had = had as usize;
        had > 0 && wanted <= had
    }

    /// Why a port of the service has no id.
    pub(super) fn why_no_id(&self, service: &ServiceName) -> Refusal {
        let held = self.shares.held(&service.namespace, Bound::Services);
        let limit = self.ids.limit();
        if self.ids.has_share(held) { Refusal::NoServiceId(limit) } else { Refusal::NoShareOfIds(limit) }
    }
}

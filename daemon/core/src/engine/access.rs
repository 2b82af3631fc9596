//! What changes for clients at addresses that a port keeps: who may connect, and which backends they get.

use std::sync::Arc;

use super::Engine;
use super::event_recorder::Draft;
use crate::model::addr::L4Addr;
use crate::model::cause::{DirtyReason, Trigger};
use crate::state::entries::{Desired, FrontendEntry, MapOp, OutsideEntry, Realised, ServiceId};
use crate::text::listed;

/// The maximum number of source ranges in one sentence.
const SHOWN: usize = 4;

/// What the maps should contain for an address.
pub(super) type Entries = (Option<FrontendEntry>, Option<OutsideEntry>);

/// A change for clients of a port. The order is that of the sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AccessChange {
    /// Whether clients outside the node may connect.
    Outside(bool),
    /// Whether clients outside the node get the local view.
    OutsideLocal(bool),
    /// The same for clients on the node.
    InsideLocal(bool),
    /// Which clients outside the node may connect to load balancer addresses.
    SourceRanges,
}

impl AccessChange {
    fn sentence(self, id: ServiceId, desired: &Desired) -> String {
        let entry = desired.services.get(&id);
        match self {
            Self::Outside(true) => "clients outside the node may connect".into(),
            Self::Outside(false) => "clients outside the node may no longer connect".into(),
            Self::OutsideLocal(true) if entry.is_some_and(|entry| entry.local.is_empty()) => {
                "clients outside the node get only backends on this node, and none is usable".into()
            }
            Self::OutsideLocal(true) => "clients outside the node get only backends on this node".into(),
            Self::OutsideLocal(false) => "clients outside the node get the backends on all nodes".into(),
            Self::InsideLocal(true) => "clients on this node get only the backends there".into(),
            Self::InsideLocal(false) => "clients on this node get the backends on all nodes".into(),
            Self::SourceRanges if !entry.is_some_and(|entry| entry.has_ranges) => {
                "all clients may connect to load balancer addresses".into()
            }
            Self::SourceRanges => match listed(desired.ranges_of(id), SHOWN).as_str() {
                "" => "no client may connect to load balancer addresses".into(),
                ranges => format!("only clients in {ranges} may connect to load balancer addresses"),
            },
        }
    }
}

/// What changes for clients of an address that its port keeps.
fn access_changes(before: Entries, now: Entries) -> impl Iterator<Item = (ServiceId, AccessChange)> {
    let mut changes = [None; 3];
    if let ((Some(had), had_outside), (Some(has), outside)) = (before, now)
        && had.service == has.service
    {
        changes[0] = (had.inside_local != has.inside_local).then_some(AccessChange::InsideLocal(has.inside_local));
        match (had_outside, outside) {
            (Some(before), Some(now)) => {
                changes[1] = (before.local != now.local).then_some(AccessChange::OutsideLocal(now.local));
                changes[2] = (before.has_ranges != now.has_ranges).then_some(AccessChange::SourceRanges);
            }
            (None, None) => {}
            (_, now) => changes[1] = Some(AccessChange::Outside(now.is_some())),
        }
    }
    let id = now.0.map(|has| has.service);
    changes.into_iter().flatten().filter_map(move |change| Some((id?, change)))
}

impl Engine {
    /// Notes what changes for clients of an address that its port keeps.
    pub(super) fn note_access(&mut self, before: Entries, now: Entries) {
        self.round.access.extend(access_changes(before, now));
    }

    /// Notes the same about an address that its port had at the start, for an operation that follows from the first
    /// report of its source.
    pub(super) fn note_access_of_found(&mut self, op: &MapOp) {
        if self.event_recorder.addresses.is_empty() {
            return;
        }
        let entries = |address: &L4Addr| {
            let outside = self.realised.outside.get(address).copied();
            (self.realised.frontends.get(address).copied(), outside)
        };
        let (address, before, now) = match op {
            MapOp::PutFrontend(address, entry) => {
                let (had, outside) = entries(address);
                (address, (had, outside), (Some(*entry), outside))
            }
            MapOp::PutOutside(address, _) | MapOp::DeleteOutside(address) => {
                let (frontend, had) = entries(address);
                let outside = if let MapOp::PutOutside(_, entry) = op { Some(*entry) } else { None };
                (address, (frontend, had), (frontend, outside))
            }
            MapOp::PutSourceRange(id, _) | MapOp::DeleteSourceRange(id, _) => {
                let has_ranges = |state: &Realised| state.services.get(id).is_some_and(|entry| entry.has_ranges);
                if has_ranges(&self.realised) && has_ranges(&self.desired) {
                    self.round.access.insert((*id, AccessChange::SourceRanges));
                }
                return;
            }
            _ => return,
        };
        if !self.event_recorder.addresses.contains_key(address) {
            return;
        }
        // The mode of the packet path is no change to a service.
        let were_on = self.event_recorder.had_packets && self.config.packets.is_on;
        let is_news = |change: &(ServiceId, AccessChange)| were_on || !matches!(change.1, AccessChange::Outside(_));
        self.round.access.extend(access_changes(before, now).filter(is_news));
    }

    /// Records what has changed for clients, with the port's other changes if it has some.
    pub(super) fn record_access(&mut self, reason: &DirtyReason) {
        self.record(Some(reason.trigger_of_access()));
    }

    /// Records what has changed for clients since the previous run.
    pub(super) fn record_access_of_found(&mut self) {
        self.record(None);
    }

    /// Records the changes with this cause, of sources that have reported everything once. Without one, those that this run
    /// has not seen, of the others.
    fn record(&mut self, seen: Option<&Trigger>) {
        let changes: Vec<(ServiceId, AccessChange)> = std::mem::take(&mut self.round.access).into_iter().collect();
        for changes in changes.chunk_by(|a, b| a.0 == b.0) {
            let id = changes[0].0;
            let (Some(owner), Some(entry)) = (self.owners.get(&id), self.desired.services.get(&id)) else { continue };
            if self.event_recorder.is_recorded(owner.source) != seen.is_some() {
                continue;
            }
            let described = || self.table.owner(&owner.key.service);
            let described = || described().map(|(service, _)| Trigger::Service(Arc::clone(service)));
            let Some(trigger) = seen.cloned().or_else(described) else { continue };
            let sentences = changes.iter().map(|(_, change)| change.sentence(id, &self.desired));
            let access: Arc<str> = sentences.collect::<Vec<_>>().join("; ").into();
            let same = (Some(Arc::clone(entry)), Some(Arc::clone(entry)));
            let draft = || Draft::new((id, &owner.key, owner.source), same, trigger);
            self.event_recorder.draft_of(id, draft, |draft| draft.access = Some(access));
        }
    }
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;

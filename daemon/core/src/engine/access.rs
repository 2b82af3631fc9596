//! What changes for clients at addresses that a port keeps: who may connect, and which backends they get.

use std::sync::Arc;

use super::Engine;
use super::event_recorder::Draft;
use crate::model::cause::DirtyReason;
use crate::state::entries::{Desired, FrontendEntry, OutsideEntry, ServiceId};
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
                "" => "no client outside the node may connect to load balancer addresses".into(),
                ranges => {
                    format!("of the clients outside the node, only {ranges} may connect to load balancer addresses")
                }
            },
        }
    }
}

impl Engine {
    /// Notes what changes for clients of an address that its port keeps.
    pub(super) fn note_access(&mut self, before: Entries, now: Entries) {
        let ((Some(had), had_outside), (Some(has), outside)) = (before, now) else { return };
        if had.service != has.service {
            return;
        }
        let mut note = |change| _ = self.round.access.insert((has.service, change));
        if had.inside_local != has.inside_local {
            note(AccessChange::InsideLocal(has.inside_local));
        }
        match (had_outside, outside) {
            (Some(before), Some(now)) => {
                if before.local != now.local {
                    note(AccessChange::OutsideLocal(now.local));
                }
                if before.has_ranges != now.has_ranges {
                    note(AccessChange::SourceRanges);
                }
            }
            (None, None) => {}
            (_, now) => note(AccessChange::Outside(now.is_some())),
        }
    }

    /// Records what has changed for clients, with the port's other changes if it has some.
    pub(super) fn record_access(&mut self, reason: &DirtyReason) {
        let changes: Vec<(ServiceId, AccessChange)> = std::mem::take(&mut self.round.access).into_iter().collect();
        for changes in changes.chunk_by(|a, b| a.0 == b.0) {
            let id = changes[0].0;
            let (Some(owner), Some(entry)) = (self.owners.get(&id), self.desired.services.get(&id)) else { continue };
            if !self.event_recorder.is_recorded(owner.source) {
                continue;
            }
            let sentences = changes.iter().map(|(_, change)| change.sentence(id, &self.desired));
            let access: Arc<str> = sentences.collect::<Vec<_>>().join("; ").into();
            let same = (Some(Arc::clone(entry)), Some(Arc::clone(entry)));
            let draft = || Draft::new((id, &owner.key, owner.source), same, reason.trigger.clone());
            self.event_recorder.draft_of(id, draft, |draft| draft.access = Some(access));
        }
    }
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;

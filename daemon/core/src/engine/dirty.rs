//! The services that must be compiled again in the next round.

use std::collections::BTreeSet;
use std::iter;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::model::cause::{DirtyReason, Trigger};
use crate::model::service::ServiceName;

#[derive(Debug, Default)]
pub(super) struct Dirty {
    /// The services in the order in which they became dirty. At a start this is their order in memory.
    services: IndexMap<ServiceName, DirtyReason, RandomState>,
    /// Services that found no free id, or no slots for rings.
    without_room: BTreeSet<ServiceName>,
}

impl Dirty {
    pub(super) fn mark<I>(&mut self, names: I, trigger: Trigger)
    where
        I: IntoIterator<Item = ServiceName, IntoIter: ExactSizeIterator>,
    {
        let names = names.into_iter();
        let triggers = iter::repeat_n(trigger, names.len());
        for (name, trigger) in names.zip(triggers) {
            match self.services.entry(name) {
                Entry::Occupied(mut known) => known.get_mut().add(trigger),
                Entry::Vacant(new) => {
                    new.insert(DirtyReason::new(trigger));
                }
            }
        }
    }

    /// Records that no source describes the service any more since this change.
    pub(super) fn mark_deleted(&mut self, name: &ServiceName, trigger: Trigger) {
        if let Some(reason) = self.services.get_mut(name) {
            reason.deleted_by = Some(trigger);
        }
    }

    /// Records that no id was free for the service, or that slots for its rings are. [`Self::retry`] marks it dirty again.
    pub(super) fn wait_for_room(&mut self, name: ServiceName) {
        self.without_room.insert(name);
    }

    /// Whether a service waits for a free id, or for rings.
    pub(super) fn is_waiting_for_room(&self) -> bool {
        !self.without_room.is_empty()
    }

    /// Marks the services dirty that wait for a free id, or for rings.
    pub(super) fn retry(&mut self) {
        let waiting = std::mem::take(&mut self.without_room);
        self.mark(waiting, Trigger::Other);
    }

    pub(super) fn take(&mut self) -> IndexMap<ServiceName, DirtyReason, RandomState> {
        std::mem::take(&mut self.services)
    }

    pub(super) fn len(&self) -> usize {
        self.services.len() + self.without_room.len()
    }
}

//! While the drains of the previous run cannot be read: a backend that its source reports at the start, next to others that
//! the maps have, and that the maps do not have, may be one of them. It stays out as if it were drained. What a source adds
//! later was not drained before.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use crate::change::Change;
use crate::model::drain::{Drain, Drained, Drains};
use crate::model::service::{ServiceName, Source};
use crate::state::used::Used;
use crate::table::Owner;

/// The author of such a drain.
const AUTHOR: &str = "nodelb (the stored drains are unread)";

#[derive(Debug, Default)]
pub(super) struct UnreadDrains {
    /// The backends in the maps.
    offered: Used,
    /// The services with backends that stay out.
    presumed: BTreeSet<ServiceName>,
    /// The sources that had reported everything before this round.
    complete: BTreeSet<Source>,
}

impl Engine {
    /// Begins or ends this. At the end, the drains that were read follow.
    pub(super) fn set_drains_unread(&mut self, are_unread: bool) {
        let offered = if are_unread { Used::of(&self.realised, |_| true) } else { Used::default() };
        let known = UnreadDrains { offered, ..UnreadDrains::default() };
        for name in std::mem::replace(&mut self.unread_drains, known).presumed {
            self.change(Change::Drains(name, Drains::new(), None));
        }
    }

    /// Presumes drains of a service that is compiled next.
    pub(super) fn presume_drains(&mut self, name: &ServiceName, (service, slices): Owner<'_>) {
        // Another source may have described the service before.
        let offered = &self.unread_drains.offered;
        let is_known = Source::ALL.into_iter().any(|source| offered.has_service(name, source));
        if !is_known || self.unread_drains.complete.contains(&service.source) {
            return;
        }
        let mut ports: BTreeMap<_, (bool, BTreeSet<Drained>)> = BTreeMap::new();
        for port in slices.iter().flat_map(|slice| &slice.ports) {
            for backend in &port.backends {
                let key = (&*port.name, port.protocol, backend.addr.family());
                let (is_known, others) = ports.entry(key).or_default();
                if offered.has_of_any(name, (backend.addr, backend.port)) {
                    *is_known = true;
                } else {
                    others.insert(Drained { addr: backend.addr, port: Some(backend.port) });
                }
            }
        }
        // A port without an earlier backend has lost them all, and gets the others.
        let presumed = ports.into_values().filter(|(is_known, _)| *is_known).flat_map(|(_, others)| others);
        let drain = Drain { by: AUTHOR.into(), since: 0, until: None };
        let drains: Drains = presumed.map(|backend| (backend, drain.clone())).collect();
        if !drains.is_empty() || self.unread_drains.presumed.contains(name) {
            let change = Change::Drains(name.clone(), drains, None);
            // The service is compiled next, so that the effect needs no other one.
            self.table.apply(change);
            self.at_start.note_kept_out(name, &self.table);
            self.unread_drains.presumed.insert(name.clone());
        }
    }

    pub(super) fn note_complete_sources(&mut self) {
        if !self.unread_drains.offered.is_empty() {
            let complete = Source::ALL.into_iter().filter(|source| self.table.is_synced(*source));
            self.unread_drains.complete = complete.collect();
        }
    }
}

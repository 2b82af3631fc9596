//! The backends that the maps had at the start: the previous daemon served them until a moment ago.

use std::collections::{BTreeMap, BTreeSet};

use super::entries::MapState;
use super::owner::hash_of;
use crate::model::addr::Addr;
use crate::model::service::{ServiceName, Source};

/// The backends in the maps, by service. A service is known by its source and the hash of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used(BTreeMap<(Source, u32), BTreeSet<(Addr, u16)>>);

impl Used {
    /// The backends of the services of these sources.
    pub fn of(maps: &MapState, is_meant: impl Fn(Source) -> bool) -> Self {
        let mut used = Self::default();
        for entry in maps.services.values() {
            let Some(tag) = entry.tag.filter(|tag| is_meant(tag.source)) else { continue };
            let slots = entry.cluster.iter().chain(&*entry.local);
            used.0.entry((tag.source, tag.service)).or_default().extend(slots.map(|it| (it.addr.addr, it.addr.port)));
        }
        used
    }

    pub fn has(&self, name: &ServiceName, source: Source, backend: (Addr, u16)) -> bool {
        !self.0.is_empty() && self.0.get(&(source, hash_of(name))).is_some_and(|used| used.contains(&backend))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn forget(&mut self, name: &ServiceName, source: Source) {
        if !self.0.is_empty() {
            self.0.remove(&(source, hash_of(name)));
        }
    }

    /// Keeps these services, each with its source and the hash of its name.
    pub fn retain(&mut self, is_kept: impl Fn(Source, u32) -> bool) {
        self.0.retain(|(source, name), _| is_kept(*source, *name));
    }

    /// Keeps these backends of the service.
    pub fn retain_backends(&mut self, name: &ServiceName, source: Source, is_kept: impl Fn((Addr, u16)) -> bool) {
        if !self.0.is_empty()
            && let Some(used) = self.0.get_mut(&(source, hash_of(name)))
        {
            used.retain(|backend| is_kept(*backend));
        }
    }
}

//! The backends that the maps had at the start: the previous daemon served them until a moment ago.

use std::collections::{BTreeMap, BTreeSet};

use super::entries::MapState;
use super::owner::{OwnerTag, hash_of};
use crate::model::addr::Addr;
use crate::model::service::{PortKey, ServiceName, Source};

type Backend = (Addr, u16);

/// The backends in the maps, by service port. A port is known by the source and the hashes in its tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used(BTreeMap<OwnerTag, BTreeSet<Backend>>);

impl Used {
    /// The backends of the services of these sources.
    pub fn of(maps: &MapState, is_meant: impl Fn(Source) -> bool) -> Self {
        Self::of_lists(maps, is_meant, true)
    }

    /// The same without those that had failed their health checks.
    pub fn of_passed(maps: &MapState, is_meant: impl Fn(Source) -> bool) -> Self {
        Self::of_lists(maps, is_meant, false)
    }

    fn of_lists(maps: &MapState, is_meant: impl Fn(Source) -> bool, with_failed: bool) -> Self {
        let mut used = Self::default();
        for entry in maps.services.values() {
            let Some(tag) = entry.tag.filter(|tag| is_meant(tag.source)) else { continue };
            let backends = used.0.entry(tag).or_default();
            for is_local in [false, true] {
                if with_failed || !entry.is_view_last_resort(is_local) {
                    backends.extend(entry.view(is_local).iter().map(|slot| (slot.addr.addr, slot.addr.port)));
                }
            }
        }
        used
    }

    /// Whether a port of the service had the backend.
    pub fn has(&self, name: &ServiceName, source: Source, backend: Backend) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let tag = |port| OwnerTag { source, service: hash_of(name), port };
        self.0.range(tag(0)..=tag(u32::MAX)).any(|(_, used)| used.contains(&backend))
    }

    /// The same for a service of any source.
    pub fn has_of_any(&self, name: &ServiceName, backend: Backend) -> bool {
        Source::ALL.into_iter().any(|source| self.has(name, source, backend))
    }

    pub fn has_service(&self, name: &ServiceName, source: Source) -> bool {
        let tag = |port| OwnerTag { source, service: hash_of(name), port };
        !self.0.is_empty() && self.0.range(tag(0)..=tag(u32::MAX)).next().is_some()
    }

    /// The backends of the port, at least one; `None` if the maps had none.
    pub fn of_port(&self, key: &PortKey, source: Source) -> Option<&BTreeSet<Backend>> {
        self.0.get(&OwnerTag::new(key, source)).filter(|used| !used.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn forget(&mut self, name: &ServiceName, source: Source) {
        if !self.0.is_empty() {
            let hash = hash_of(name);
            self.retain(|of, service| (of, service) != (source, hash));
        }
    }

    /// Keeps these services, each with its source and the hash of its name.
    pub fn retain(&mut self, is_kept: impl Fn(Source, u32) -> bool) {
        self.0.retain(|tag, _| is_kept(tag.source, tag.service));
    }

    /// Keeps these backends of the service.
    pub fn retain_backends(&mut self, name: &ServiceName, source: Source, is_kept: impl Fn(Backend) -> bool) {
        if !self.0.is_empty() {
            let tag = |port| OwnerTag { source, service: hash_of(name), port };
            self.0.range_mut(tag(0)..=tag(u32::MAX)).for_each(|(_, used)| used.retain(|backend| is_kept(*backend)));
        }
    }
}

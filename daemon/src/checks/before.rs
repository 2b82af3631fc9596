//! What the previous run left for the services that their sources have not sent yet. It ends for each source at the first
//! report that the source is synced, except for what that source could not read: whatever it sends later is new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::model::addr::Addr;
use nodelb_core::model::health_check::Quarantine;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::owner;

type Backend = (Addr, u16);

/// A service of a source, as the maps name it.
type Tag = (Source, u32);

/// The backends of each service that the maps contain.
pub(super) type Used = BTreeMap<Tag, BTreeSet<Backend>>;

#[derive(Debug, Default)]
pub(super) struct Before {
    /// The backends that were unhealthy when nodelb ended.
    unhealthy: BTreeMap<ServiceName, Quarantine>,
    /// The backends that were in the maps at the start. The previous daemon checked them until a moment ago.
    used: Used,
    /// The sources that have not sent everything yet.
    awaited: BTreeMap<Source, Awaited>,
    /// The namespaces that Kubernetes does not let nodelb read.
    unread: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
enum Awaited {
    Any,
    /// Only services in these namespaces.
    In(BTreeSet<Arc<str>>),
}

/// What is known of the backends of a service from before the start.
#[derive(Clone, Copy, Default)]
pub(super) struct Known<'a> {
    unhealthy: Option<&'a Quarantine>,
    used: Option<&'a BTreeSet<Backend>>,
}

impl Before {
    pub(super) fn new(unhealthy: BTreeMap<ServiceName, Quarantine>, used: Used) -> Self {
        Self { unhealthy, used, ..Self::default() }
    }

    pub(super) fn wait_for(&mut self, source: Source) {
        self.awaited.insert(source, Awaited::Any);
    }

    pub(super) fn set_unread(&mut self, namespaces: &BTreeSet<Arc<str>>) {
        self.unread.clone_from(namespaces);
    }

    /// The source has sent everything that it could read, which includes these services.
    pub(super) fn end(&mut self, source: Source, is_complete: bool, sent: &[&ServiceName]) {
        let awaited = match self.awaited.remove(&source) {
            None => return,
            Some(_) if is_complete => None,
            Some(Awaited::Any) if source == Source::Kubernetes && !self.unread.is_empty() => {
                Some(Awaited::In(self.unread.clone()))
            }
            Some(Awaited::In(before)) => Some(Awaited::In(before.intersection(&self.unread).cloned().collect())),
            Some(Awaited::Any) => Some(Awaited::Any),
        };
        self.awaited.extend(awaited.map(|awaited| (source, awaited)));
        sent.iter().for_each(|name| self.forget(name, source));
        // The entries that are left belong to services or backends that no longer exist.
        let awaited = &self.awaited;
        self.unhealthy.retain(|name, _| awaited.values().any(|awaited| awaited.includes(name)));
        self.used.retain(|(source, _), _| awaited.contains_key(source));
    }

    /// Whatever has this name from now on is new.
    pub(super) fn forget(&mut self, name: &ServiceName, source: Source) {
        self.unhealthy.remove(name);
        self.used.remove(&(source, owner::hash_of(name)));
    }

    pub(super) fn known(&self, name: &ServiceName, source: Source) -> Known<'_> {
        match self.awaited.get(&source) {
            Some(awaited) if awaited.includes(name) => {
                let used = if self.used.is_empty() { None } else { self.used.get(&(source, owner::hash_of(name))) };
                Known { unhealthy: self.unhealthy.get(name), used }
            }
            _ => Known::default(),
        }
    }

    /// The backends that were unhealthy, of services that their source has not sent yet.
    pub(super) fn unhealthy(&self) -> &BTreeMap<ServiceName, Quarantine> {
        &self.unhealthy
    }
}

impl Awaited {
    fn includes(&self, name: &ServiceName) -> bool {
        match self {
            Self::Any => true,
            Self::In(namespaces) => namespaces.contains(&*name.namespace),
        }
    }
}

impl Known<'_> {
    /// The error of the first of the backends that was unhealthy.
    pub(super) fn error(&self, backends: &[Backend]) -> Option<&Arc<str>> {
        self.unhealthy.and_then(|failed| backends.iter().find_map(|backend| failed.get(backend)))
    }

    /// Whether one of the backends received connections when nodelb ended.
    pub(super) fn were_used(&self, backends: &[Backend]) -> bool {
        self.used.is_some_and(|used| backends.iter().any(|backend| used.contains(backend)))
    }
}

pub(super) fn used(maps: &MapState) -> Used {
    let mut used = Used::new();
    for entry in maps.services.values() {
        let Some(tag) = entry.tag else { continue };
        let slots = entry.cluster.iter().chain(&*entry.local);
        used.entry((tag.source, tag.service)).or_default().extend(slots.map(|slot| (slot.addr.addr, slot.addr.port)));
    }
    used
}

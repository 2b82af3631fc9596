//! Stable numbers for services and backends. They survive a restart: the kernel's own content seeds them, so that a
//! client's affinity and a socket's state mean the same before and after.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{BackendId, Realised, ServiceId, Slot};
use crate::state::owner::OwnerTag;

/// How long a released service id rests, in milliseconds from the end of the round that released it, before another
/// service gets it: longer than a program run that may still hold it.
const REST_MILLIS: u64 = 1_000;

/// Gives out indexes of the `services` map.
#[derive(Clone, Debug)]
pub struct ServiceIds {
    limit: u32,
    next: u32,
    in_use: BTreeSet<ServiceId>,
    released: VecDeque<(Moment, ServiceId)>,
    /// How many of the last of them were released in the round that has not ended yet.
    fresh: usize,
    /// Ids the kernel held at start: they come back through `released`, never as new.
    seeded: BTreeSet<ServiceId>,
    /// Those of them that nobody has claimed yet, with the addresses that point at each.
    orphans: BTreeMap<ServiceId, BTreeSet<L4Addr>>,
    /// The same the other way round: how a service finds its id again.
    orphan_of: BTreeMap<L4Addr, ServiceId>,
    /// The owners of those that say so. The others are of an earlier nodelb.
    tags: BTreeMap<ServiceId, OwnerTag>,
}

impl ServiceIds {
    /// For a `services` map of `limit` entries with this content; id 0 is the canary's.
    pub fn new(limit: u32, realised: &Realised) -> Self {
        let mut orphans: BTreeMap<ServiceId, BTreeSet<L4Addr>> =
            realised.services.keys().map(|id| (*id, BTreeSet::new())).collect();
        for (address, entry) in &realised.frontends {
            orphans.entry(entry.service).or_default().insert(*address);
        }
        orphans.remove(&ServiceId::CANARY);
        let orphan_of = orphans.iter().flat_map(|(id, addresses)| addresses.iter().map(|a| (*a, *id))).collect();
        let seeded = orphans.keys().copied().collect();
        let tags = orphans.keys().filter_map(|id| Some((*id, realised.services.get(id)?.tag?))).collect();
        let (in_use, released) = (BTreeSet::new(), VecDeque::new());
        Self { limit, next: 1, in_use, released, fresh: 0, seeded, orphans, orphan_of, tags }
    }

    /// An id for the service port of this tag with these addresses: the one the kernel already has for it, else one never
    /// used, else the one released longest ago. `None` while every id is in use or at rest.
    pub fn allocate(&mut self, tag: OwnerTag, addresses: &[L4Addr], now: Moment) -> Option<ServiceId> {
        let id = self.adopt(tag, addresses).or_else(|| self.never_used()).or_else(|| self.rested(now))?;
        self.in_use.insert(id);
        Some(id)
    }

    /// Only an id at which one of the addresses points. If the id has a tag, it must be this port's. If it has none, no
    /// other address may point at it: that one may be of a service that no source has described yet, and would lead to
    /// this one's backends.
    fn adopt(&mut self, tag: OwnerTag, addresses: &[L4Addr]) -> Option<ServiceId> {
        if self.orphans.is_empty() {
            return None;
        }
        let is_own = |id: &ServiceId| match (self.tags.get(id), self.orphans.get(id)) {
            (_, None) => false,
            (Some(known), Some(_)) => known.is_of_port(tag),
            (None, Some(pointing)) => pointing.iter().all(|address| addresses.contains(address)),
        };
        let id = addresses.iter().filter_map(|address| self.orphan_of.get(address)).copied().find(is_own)?;
        self.orphans.remove(&id);
        Some(id)
    }

    fn never_used(&mut self) -> Option<ServiceId> {
        while self.next < self.limit {
            let id = ServiceId(self.next);
            self.next += 1;
            if !self.seeded.contains(&id) {
                return Some(id);
            }
        }
        None
    }

    fn rested(&mut self, now: Moment) -> Option<ServiceId> {
        let &(released, id) = self.released.front()?;
        if released.plus(REST_MILLIS) > now {
            return None;
        }
        self.released.pop_front();
        Some(id)
    }

    /// Gives the id back, after the kernel's entry and everything that pointed at it is gone. An id that is not in use
    /// stays as it is.
    pub fn release(&mut self, id: ServiceId, now: Moment) {
        if self.in_use.remove(&id) {
            self.released.push_back((now, id));
            self.fresh += 1;
        }
    }

    /// What was released since the last call may have been in use until now: its rest begins.
    pub fn end_round(&mut self, ended: Moment) {
        let first = self.released.len() - self.fresh.min(self.released.len());
        self.released.range_mut(first..).for_each(|(released, _)| *released = ended.max(*released));
        self.fresh = 0;
    }

    /// Whether the kernel held ids at start that nobody has claimed yet.
    pub fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The ids that the kernel held at start and that no service has claimed, each with the source of its owner if the
    /// entry says so.
    pub fn orphans(&self) -> impl Iterator<Item = (ServiceId, Option<Source>)> {
        self.orphans.keys().map(|id| (*id, self.tags.get(id).map(|tag| tag.source)))
    }

    /// The source of the owner of an id that the kernel held at start and that no service has claimed; the inner one is
    /// `None` where the entry does not say so.
    pub fn orphan(&self, id: ServiceId) -> Option<Option<Source>> {
        self.orphans.contains_key(&id).then(|| self.tags.get(&id).map(|tag| tag.source))
    }

    /// The owner of an id that the kernel held at start and that no service has claimed, if the entry says so.
    pub fn orphan_tag(&self, id: ServiceId) -> Option<OwnerTag> {
        self.tags.get(&id).copied().filter(|_| self.orphans.contains_key(&id))
    }

    /// Takes those orphans that are to go: they are in use, by no service, until they are released.
    pub fn take_orphans(&mut self, is_to_go: impl Fn(Option<Source>) -> bool) -> BTreeSet<ServiceId> {
        let gone: BTreeSet<ServiceId> =
            self.orphans().filter(|(_, source)| is_to_go(*source)).map(|(id, _)| id).collect();
        self.orphans.retain(|id, _| !gone.contains(id));
        if self.orphans.is_empty() {
            self.orphan_of.clear();
            self.tags.clear();
        }
        self.in_use.extend(&gone);
        gone
    }

    /// How many ids are in use, the canary's and orphans not counted.
    pub fn used(&self) -> usize {
        self.in_use.len()
    }

    /// How many ids there are, the canary's included.
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

/// Gives every backend address its number, and keeps it for as long as a service has the backend.
#[derive(Clone, Debug, Default)]
pub struct BackendIds {
    by_address: HashMap<L4Addr, (BackendId, u32), RandomState>,
    next: u32,
}

impl BackendIds {
    /// Seeded with the kernel's content.
    pub fn new(realised: &Realised) -> Self {
        let mut ids = Self::default();
        for slot in realised.services.values().flat_map(|entry| entry.cluster.iter().chain(entry.local.iter())) {
            ids.by_address.insert(slot.addr, (slot.backend, 0));
            ids.next = ids.next.max(slot.backend.0);
        }
        ids
    }

    /// The backend's number; counts one more user of it.
    pub fn acquire(&mut self, address: L4Addr) -> BackendId {
        let next = &mut self.next;
        let (id, users) = self.by_address.entry(address).or_insert_with(|| {
            // Wraps after four thousand million new backends; 0 is no backend.
            *next = next.checked_add(1).unwrap_or(1);
            (BackendId(*next), 0)
        });
        *users += 1;
        *id
    }

    /// One user less of each backend in these slots, each address counted once however many slots it has in a row.
    pub fn release(&mut self, slots: &[Slot]) {
        let mut last = None;
        for slot in slots {
            if last.replace(slot.addr) == Some(slot.addr) {
                continue;
            }
            if let Some((_, users)) = self.by_address.get_mut(&slot.addr) {
                *users = users.saturating_sub(1);
                if *users == 0 {
                    self.by_address.remove(&slot.addr);
                }
            }
        }
    }

    /// Forgets the numbers the kernel's content brought along and no service took up.
    pub fn forget_unused(&mut self) {
        self.by_address.retain(|_, (_, users)| *users > 0);
    }

    /// How many backends have a number.
    pub fn used(&self) -> usize {
        self.by_address.len()
    }
}

#[cfg(test)]
mod tests;

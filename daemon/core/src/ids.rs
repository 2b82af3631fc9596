//! Stable numbers for services and backends. They survive a restart: the kernel's own content seeds them, so that a
//! client's affinity and a socket's state mean the same before and after.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::addr::L4Addr;
use crate::datapath::Moment;
use crate::state::{BackendId, Realised, ServiceId, Slot};

/// How long a released service id rests, in milliseconds, before another service gets it: longer than any program run
/// that may still hold it.
const REST_MILLIS: u64 = 1_000;

/// Gives out indexes of the `services` map.
#[derive(Clone, Debug)]
pub struct ServiceIds {
    limit: u32,
    next: u32,
    released: VecDeque<(Moment, ServiceId)>,
    /// Ids the kernel held at start: they come back through `released`, never as new.
    seeded: BTreeSet<ServiceId>,
    /// Those of them that nobody has claimed yet.
    orphans: BTreeSet<ServiceId>,
    /// Which orphan each address pointed at: how a service finds its id again, since the kernel knows no names.
    orphan_of: BTreeMap<L4Addr, ServiceId>,
    used: u32,
}

impl ServiceIds {
    /// For a `services` map of `limit` entries with this content; id 0 is the canary's.
    pub fn new(limit: u32, realised: &Realised) -> Self {
        let not_canary = |id: &ServiceId| *id != ServiceId::CANARY;
        let pointed_at = realised.frontends.values().map(|entry| entry.service);
        let orphans: BTreeSet<ServiceId> =
            realised.services.keys().copied().chain(pointed_at).filter(not_canary).collect();
        let orphan_of = realised
            .frontends
            .iter()
            .map(|(address, entry)| (*address, entry.service))
            .filter(|(_, id)| not_canary(id))
            .collect();
        Self { limit, next: 1, released: VecDeque::new(), seeded: orphans.clone(), orphans, orphan_of, used: 0 }
    }

    /// An id for a service port with these addresses: the one the kernel already has for one of them, else one never
    /// used, else the one released longest ago. `None` while every id is in use or at rest.
    pub fn allocate(&mut self, addresses: impl Iterator<Item = L4Addr>, now: Moment) -> Option<ServiceId> {
        for address in addresses {
            if let Some(id) = self.orphan_of.get(&address).copied()
                && self.orphans.remove(&id)
            {
                self.used += 1;
                return Some(id);
            }
        }
        let id = self.never_used().or_else(|| self.rested(now))?;
        self.used += 1;
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

    /// Gives the id back, after the kernel's entry is gone.
    pub fn release(&mut self, id: ServiceId, now: Moment) {
        self.used -= 1;
        self.released.push_back((now, id));
    }

    /// The ids nobody claimed, which are nobody's from now on. For the prune after every source has synced.
    pub fn take_orphans(&mut self) -> BTreeSet<ServiceId> {
        let orphans = std::mem::take(&mut self.orphans);
        self.orphan_of.clear();
        self.used += u32::try_from(orphans.len()).unwrap_or(u32::MAX);
        orphans
    }

    /// How many ids are in use, the canary's and orphans not counted.
    pub fn used(&self) -> u32 {
        self.used
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

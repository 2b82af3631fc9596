//! Stable numbers for services and backends. They survive a restart because they are initialised from the content of
//! the maps, so that a client's affinity, a connection and a socket's state keep their meaning. Those of deleted services
//! and backends do not get another one soon: a restart continues where the previous run ended.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::iter::Chain;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{BackendId, NextIds, Realised, ServiceId, Slot};
use crate::state::owner::OwnerTag;
use crate::state::share::may_take;

/// The rest of a released service id, in milliseconds from the end of the round that released it until another service
/// may get it. This is longer than a program run that may still use the id.
const REST_MILLIS: u64 = 1_000;

/// Backend ids advance in steps of this size for the next start, so that the maps rarely have to record it.
const BACKEND_STEP: u32 = 1_024;

/// Where the previous run ended, according to the maps.
fn next_ids(realised: &Realised) -> NextIds {
    realised.services.get(&ServiceId::CANARY).map_or_else(NextIds::default, |canary| canary.next_ids)
}

/// Assigns indexes of the `services` map.
#[derive(Clone, Debug)]
pub struct ServiceIds {
    limit: u32,
    /// The ids that this run has not assigned yet, and that are not seeded.
    unused: Chain<Range<u32>, Range<u32>>,
    /// See [`NextIds::service`].
    next: u32,
    in_use: HashSet<ServiceId, RandomState>,
    released: VecDeque<(Moment, ServiceId)>,
    /// The number of the last entries in `released` that the current round has released.
    fresh: usize,
    /// The ids in the maps at the start. They are assigned again only through `released`, never as new ones.
    seeded: BTreeSet<ServiceId>,
    /// The ids among them that no service has claimed yet.
    orphans: BTreeMap<ServiceId, Orphan>,
    /// `orphans` by address, where a service finds its previous id.
    orphan_of: BTreeMap<L4Addr, ServiceId>,
    /// The orphans that no address points at, by service and port of their owners. Such an entry waits for an address
    /// that another service has.
    without_address: BTreeMap<(u32, u32), ServiceId>,
    expected: Expected,
}

/// The services that an earlier run served and that have no ids yet, by the hashes of their names.
#[derive(Clone, Debug, Default)]
struct Expected {
    /// The number of ids that each of them may need.
    ids: BTreeMap<u32, usize>,
    sum: usize,
}

#[derive(Clone, Debug, Default)]
struct Orphan {
    /// The owner; `None` if an earlier nodelb wrote the entry.
    tag: Option<OwnerTag>,
    /// The addresses that point at the id.
    addresses: BTreeSet<L4Addr>,
}

impl ServiceIds {
    /// Creates the ids for a `services` map of `limit` entries with this content. Id 0 is the canary's.
    pub fn new(limit: u32, realised: &Realised) -> Self {
        let mut orphans: BTreeMap<ServiceId, Orphan> = BTreeMap::new();
        for (id, entry) in &realised.services {
            orphans.insert(*id, Orphan { tag: entry.tag, addresses: BTreeSet::new() });
        }
        for (address, entry) in &realised.frontends {
            orphans.entry(entry.service).or_default().addresses.insert(*address);
        }
        orphans.remove(&ServiceId::CANARY);
        let orphan_of = orphans.iter().flat_map(|(id, orphan)| orphan.addresses.iter().map(|a| (*a, *id))).collect();
        let seeded: BTreeSet<ServiceId> = orphans.keys().copied().collect();
        let without_address = orphans.iter().filter(|(_, orphan)| orphan.addresses.is_empty());
        let port = |(id, orphan): (&ServiceId, &Orphan)| orphan.tag.map(|tag| ((tag.service, tag.port), *id));
        let without_address = without_address.filter_map(port).collect();
        let (in_use, released) = (HashSet::default(), VecDeque::new());
        let recorded = Some(next_ids(realised).service).filter(|next| (1..limit).contains(next));
        // Without a record, the next start must at least not give what this run may delete without giving another id.
        let behind = seeded.last().map_or(1, |last| last.0.saturating_add(1));
        let (first, next) = (recorded.unwrap_or(1), recorded.unwrap_or(behind));
        let unused = (first..limit).chain(1..first);
        let expected = Expected::default();
        Self { limit, unused, next, in_use, released, fresh: 0, seeded, orphans, orphan_of, without_address, expected }
    }

    /// Assigns an id to the service port with this tag and these addresses: the id that the maps already have for it,
    /// otherwise an unused one, otherwise the one that was released first. `None` while every id is in use, resting, for a
    /// service that is expected, or for namespaces that hold fewer than the `held` ones of this one.
    pub fn allocate(&mut self, tag: OwnerTag, addresses: &[L4Addr], held: u32, now: Moment) -> Option<ServiceId> {
        let id = self.adopt(tag, addresses).or_else(|| self.assign_to(tag.service, held, now))?;
        self.in_use.insert(id);
        Some(id)
    }

    fn assign_to(&mut self, service: u32, held: u32, now: Moment) -> Option<ServiceId> {
        if !self.is_expected(service) && (self.left() == 0 || !self.has_share(held)) {
            return None;
        }
        let id = self.assign(now)?;
        if let Some(count) = self.expected.ids.get_mut(&service).filter(|count| **count > 0) {
            *count -= 1;
            self.expected.sum -= 1;
        }
        Some(id)
    }

    /// The number of ids that are neither in use nor for a service that is expected.
    fn left(&self) -> u32 {
        let taken = 1 + self.in_use.len() + self.orphans.len() + self.expected.sum;
        self.limit.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }

    /// Whether a namespace that holds this many ids may have another one, if any is left.
    pub fn has_share(&self, held: u32) -> bool {
        let left = self.left();
        left == 0 || may_take(self.limit, left, held, 1)
    }

    /// Keeps ids for these services, which an earlier run served before the maps became empty: by the hash of the name, with
    /// the number of ids that each may need.
    pub fn expect(&mut self, served: BTreeMap<u32, usize>) {
        let sum = served.values().sum();
        self.expected = Expected { ids: served, sum };
    }

    pub fn is_expected(&self, service: u32) -> bool {
        self.expected.ids.contains_key(&service)
    }

    pub fn expects_any(&self) -> bool {
        !self.expected.ids.is_empty()
    }

    /// What was expected and has not come is gone.
    pub fn end_expecting(&mut self) {
        self.expected = Expected::default();
    }

    /// An id that means no service now.
    fn assign(&mut self, now: Moment) -> Option<ServiceId> {
        let unused = self.unused.by_ref().map(ServiceId).find(|id| !self.seeded.contains(id));
        let id = unused.or_else(|| self.rested(now))?;
        // In steps, so that the maps rarely have to record it.
        let step = (self.limit / 1_024).max(1);
        self.next = (id.0 / step + 1) * step;
        Some(id)
    }

    /// See [`NextIds::service`].
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Finds the previous id of the service port. One of the addresses must point at it, or no address at all if the id
    /// has a tag. If it has one, it must be this port's. If it has none, no other address may point at it: that address
    /// may belong to a service that no source has described yet, and would then get this one's backends.
    fn adopt(&mut self, tag: OwnerTag, addresses: &[L4Addr]) -> Option<ServiceId> {
        if self.orphans.is_empty() {
            return None;
        }
        let is_own = |id: &ServiceId| match self.orphans.get(id) {
            None => false,
            Some(Orphan { tag: Some(known), .. }) => known.is_of_port(tag),
            Some(orphan) => orphan.addresses.iter().all(|address| addresses.contains(address)),
        };
        let mut pointed_at = addresses.iter().filter_map(|address| self.orphan_of.get(address)).copied();
        let without_address = || self.without_address.get(&(tag.service, tag.port)).copied().filter(is_own);
        let id = pointed_at.find(is_own).or_else(without_address)?;
        self.orphans.remove(&id);
        Some(id)
    }

    fn rested(&mut self, now: Moment) -> Option<ServiceId> {
        let &(released, id) = self.released.front()?;
        if released.plus(REST_MILLIS) > now {
            return None;
        }
        self.released.pop_front();
        Some(id)
    }

    /// Releases the id after its entry in the maps and everything that pointed at it were deleted. An id that is not in
    /// use does not change.
    pub fn release(&mut self, id: ServiceId, now: Moment) {
        if self.in_use.remove(&id) {
            self.released.push_back((now, id));
            self.fresh += 1;
        }
    }

    /// Whether an id that was released still rests.
    pub fn is_any_resting(&self, now: Moment) -> bool {
        self.released.back().is_some_and(|(released, _)| released.plus(REST_MILLIS) > now)
    }

    /// Starts the rest of the ids that were released since the last call, which may have been in use until now.
    pub fn end_round(&mut self, ended: Moment) {
        let first = self.released.len() - self.fresh.min(self.released.len());
        self.released.range_mut(first..).for_each(|(released, _)| *released = ended.max(*released));
        self.fresh = 0;
    }

    /// Whether the maps had ids at the start that no service has claimed yet.
    pub fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The ids that were in the maps at the start and that no service has claimed, each with the source of its owner if
    /// the entry records it.
    pub fn orphans(&self) -> impl Iterator<Item = (ServiceId, Option<Source>)> {
        self.orphans.iter().map(|(id, orphan)| (*id, orphan.tag.map(|tag| tag.source)))
    }

    /// The owner of such an unclaimed id. The outer `None` means that the id is none of them, the inner one that the entry
    /// does not record its owner.
    pub fn orphan(&self, id: ServiceId) -> Option<Option<OwnerTag>> {
        self.orphans.get(&id).map(|orphan| orphan.tag)
    }

    /// Removes and returns the orphans that are to be deleted. They stay in use, without a service, until they are
    /// released.
    pub fn take_orphans(&mut self, is_to_go: impl Fn(Option<OwnerTag>) -> bool) -> BTreeSet<ServiceId> {
        let goes = |(_, orphan): &(&ServiceId, &Orphan)| is_to_go(orphan.tag);
        let gone: BTreeSet<ServiceId> = self.orphans.iter().filter(goes).map(|(id, _)| *id).collect();
        self.orphans.retain(|id, _| !gone.contains(id));
        if self.orphans.is_empty() {
            self.orphan_of.clear();
            self.without_address.clear();
        }
        self.in_use.extend(&gone);
        gone
    }

    /// The number of ids in use, without the canary's and the orphans.
    pub fn used(&self) -> usize {
        self.in_use.len()
    }

    /// The number of ids, including the canary's.
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

/// Assigns every backend address a number, and keeps it as long as any service has the backend.
#[derive(Clone, Debug, Default)]
pub struct BackendIds {
    by_address: HashMap<L4Addr, (BackendId, u32), RandomState>,
    next: u32,
    /// The numbers that backends had when the last one was given.
    taken: BTreeSet<u32>,
}

impl BackendIds {
    pub fn new(realised: &Realised) -> Self {
        let mut ids = Self { next: next_ids(realised).backend, ..Self::default() };
        for slot in realised.services.values().flat_map(|entry| entry.cluster.iter().chain(entry.local.iter())) {
            ids.by_address.insert(slot.addr, (slot.backend, 0));
            ids.next = ids.next.max(slot.backend.0);
        }
        ids
    }

    /// The number of the backend, with one more user.
    pub fn acquire(&mut self, address: L4Addr) -> BackendId {
        if !self.by_address.contains_key(&address) {
            self.next = self.next_free();
        }
        let (id, users) = self.by_address.entry(address).or_insert((BackendId(self.next), 0));
        *users += 1;
        *id
    }

    /// The number of a new backend; 0 is no backend. After about four billion of them, or if something else has written into
    /// the maps, it begins again with those that no backend has.
    fn next_free(&mut self) -> u32 {
        if self.next == u32::MAX {
            self.next = 0;
            self.taken = self.by_address.values().map(|(id, _)| id.0).collect();
        }
        (self.next + 1..=u32::MAX).find(|number| !self.taken.contains(number)).unwrap_or(u32::MAX)
    }

    /// The slots of a view that replaces the slots `before`, and those of `before` that the caller has to release. A
    /// backend that stays in the list keeps its number without a lookup. Both lists are in address order; in another
    /// order, each backend costs two lookups.
    pub fn replace(&mut self, before: &[Slot], view: &[(L4Addr, u16)]) -> (Arc<[Slot]>, Vec<Slot>) {
        if view.is_empty() {
            // Empty lists share one allocation, because most services have no backend on this node.
            return (Arc::default(), before.to_vec());
        }
        let (mut gone, mut rest, mut view) = (Vec::new(), before, view);
        let mut slots: SmallVec<[Slot; 4]> =
            SmallVec::with_capacity(view.iter().map(|(_, count)| usize::from(*count)).sum());
        loop {
            let (same, others) = rest.split_at(same_backends(rest, view));
            slots.extend_from_slice(same);
            rest = others;
            let [(addr, count), later @ ..] = &view[same.len()..] else { break };
            while let Some(slot) = take_backend(&mut rest, |slot| slot.addr < *addr) {
                gone.push(slot);
            }
            let kept = take_backend(&mut rest, |slot| slot.addr == *addr);
            let backend = kept.map_or_else(|| self.acquire(*addr), |slot| slot.backend);
            (0..*count).for_each(|_| slots.push(Slot { backend, addr: *addr }));
            view = later;
        }
        gone.extend_from_slice(rest);
        (Arc::from(&*slots), gone)
    }

    /// Removes one user of each backend in these slots. An address with several consecutive slots counts once.
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

    /// See [`NextIds::backend`].
    pub fn next(&self) -> u32 {
        self.next.checked_next_multiple_of(BACKEND_STEP).unwrap_or(0)
    }

    /// Forgets the numbers from the maps that no service has used.
    pub fn forget_unused(&mut self) {
        self.by_address.retain(|_, (_, users)| *users > 0);
    }

    pub fn used(&self) -> usize {
        self.by_address.len()
    }
}

/// The number of backends at the beginning of the list that are at the beginning of the view, too, each with one slot.
/// Most changes concern one backend, so that almost the whole list is copied at once.
fn same_backends(slots: &[Slot], view: &[(L4Addr, u16)]) -> usize {
    let pairs = slots.iter().zip(view);
    let same = pairs.take_while(|(slot, (addr, count))| slot.addr == *addr && *count == 1).count();
    // The last one may have had more slots.
    let has_more = same > 0 && slots.get(same).is_some_and(|next| next.addr == slots[same - 1].addr);
    same - usize::from(has_more)
}

/// Takes the first backend with all its slots, if it meets the condition.
fn take_backend(slots: &mut &[Slot], meets: impl Fn(&Slot) -> bool) -> Option<Slot> {
    let first = *slots.first().filter(|slot| meets(slot))?;
    while let [slot, rest @ ..] = *slots
        && slot.addr == first.addr
    {
        *slots = rest;
    }
    Some(first)
}

#[cfg(test)]
#[path = "tests/ids.rs"]
mod tests;

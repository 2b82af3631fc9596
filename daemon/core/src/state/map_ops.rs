//! Computes the operations from the realised to the desired state, in an order without gaps. Lists are written before
//! the frontends that point at them, and frontends are deleted before their lists. After every prefix of the operations
//! (the daemon may crash at any point), a frontend that stays points either at its old list or at its new one. The same
//! is true for clients outside the node, and at no point does an address admit a client that neither state admits.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, EntryKey, FrontendEntry, Lead, MapOp, Realised, ServiceEntry, ServiceId};

/// The entries that may differ between the desired and the realised state. They are collected in any order and may
/// repeat. [`Touched::settle`] sorts and deduplicates them, which every function here requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Entries of `services`, with the source ranges of each.
    pub services: Vec<ServiceId>,
    /// Entries of `frontends`, with those of `outside` under the same address.
    pub frontends: Vec<L4Addr>,
    pub node_addrs: Vec<Addr>,
    pub uplinks: Vec<u32>,
}

impl Touched {
    /// The entries that are realised and not desired.
    pub fn surplus(desired: &Desired, realised: &Realised) -> Self {
        let mut surplus = Self {
            services: realised.services.keys().copied().filter(|id| !desired.services.contains_key(id)).collect(),
            frontends: realised.frontends.keys().copied().filter(|a| !desired.frontends.contains_key(a)).collect(),
            node_addrs: realised.node_addrs.iter().copied().filter(|a| !desired.node_addrs.contains(a)).collect(),
            uplinks: realised.uplinks.keys().copied().filter(|i| !desired.uplinks.contains_key(i)).collect(),
        };
        let ranges = realised.source_ranges.iter().filter(|range| !desired.source_ranges.contains(*range));
        surplus.services.extend(ranges.map(|(id, _)| *id));
        surplus.frontends.extend(realised.outside.keys().copied().filter(|a| !desired.outside.contains_key(a)));
        surplus.settle();
        surplus
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty() && self.node_addrs.is_empty() && self.uplinks.is_empty()
    }

    pub fn add(&mut self, key: EntryKey) {
        match key {
            EntryKey::Service(id) | EntryKey::SourceRange(id, _) => self.services.push(id),
            EntryKey::Frontend(address) | EntryKey::Outside(address) => self.frontends.push(address),
            EntryKey::NodeAddress(addr) => self.node_addrs.push(addr),
            EntryKey::Uplink(index) => self.uplinks.push(index),
        }
    }

    /// The entries except the source ranges.
    pub fn keys(&self) -> impl Iterator<Item = EntryKey> {
        let services = self.services.iter().map(|id| EntryKey::Service(*id));
        let addresses = self.frontends.iter().flat_map(|a| [EntryKey::Frontend(*a), EntryKey::Outside(*a)]);
        let node_addrs = self.node_addrs.iter().map(|addr| EntryKey::NodeAddress(*addr));
        services.chain(addresses).chain(node_addrs).chain(self.uplinks.iter().map(|index| EntryKey::Uplink(*index)))
    }

    pub fn extend(&mut self, more: Self) {
        self.services.extend(more.services);
        self.frontends.extend(more.frontends);
        self.node_addrs.extend(more.node_addrs);
        self.uplinks.extend(more.uplinks);
    }

    /// Sorts the entries and removes duplicates.
    pub fn settle(&mut self) {
        settle(&mut self.services);
        settle(&mut self.frontends);
        settle(&mut self.node_addrs);
        settle(&mut self.uplinks);
    }
}

fn settle<T: Ord>(entries: &mut Vec<T>) {
    entries.sort_unstable();
    entries.dedup();
}

/// The put operations for [settled](Touched::settle) entries, in batches that must be carried out one after another.
///
/// A frontend moves to another service entry only after that entry is correct, and an entry changes only after the
/// frontends that leave it have moved. Services that exchange addresses and change their lists in the same round form a
/// cycle of dependencies; then the lists are written first. An entry of `outside` moves like a frontend, after the one
/// at the same address and after the ranges that it needs.
pub fn puts(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<Vec<MapOp>> {
    let mut services = Services::new(desired, realised, touched);
    let (new, old) = (&desired.frontends, &realised.frontends);
    let mut frontends = Moves::new(touched, new, old, FrontendEntry::lead, &mut services);
    let mut outside = Moves::new(touched, &desired.outside, &realised.outside, |entry| *entry, &mut services);
    let mut batches = vec![put_node_addrs(desired, realised, touched), put_uplinks(desired, realised, touched)];
    let mut ranges = put_ranges(desired, realised, touched);
    while !(services.pending.is_empty()
        && frontends.pending.is_empty()
        && outside.pending.is_empty()
        && ranges.is_empty())
    {
        let mut ready = services.take();
        let (moved, moved_outside) = (frontends.take(&mut services), outside.take(&mut services));
        if ready.is_empty() && moved.is_empty() && moved_outside.is_empty() {
            ready = std::mem::take(&mut services.pending);
        }
        batches.push(ready.into_iter().map(|(id, wanted)| MapOp::PutService(id, wanted)).collect());
        batches.push(std::mem::take(&mut ranges));
        batches.push(moved.into_iter().map(|(address, wanted)| MapOp::PutFrontend(address, wanted)).collect());
        batches.push(moved_outside.into_iter().map(|(address, wanted)| MapOp::PutOutside(address, wanted)).collect());
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// The service entries that [`puts`] has not written yet, in order.
struct Services {
    pending: Vec<(ServiceId, Arc<ServiceEntry>)>,
    /// The number of pending moves that leave each entry.
    leaving: BTreeMap<ServiceId, u32>,
}

impl Services {
    fn new(desired: &Desired, realised: &Realised, touched: &Touched) -> Self {
        let differing = |id: &ServiceId| {
            let wanted = desired.services.get(id)?;
            (realised.services.get(id) != Some(wanted)).then(|| (*id, Arc::clone(wanted)))
        };
        Self { pending: touched.services.iter().filter_map(differing).collect(), leaving: BTreeMap::new() }
    }

    /// Removes and returns the entries that no frontend has yet to leave.
    fn take(&mut self) -> Vec<(ServiceId, Arc<ServiceEntry>)> {
        let services = std::mem::take(&mut self.pending);
        if self.leaving.is_empty() {
            return services;
        }
        let (kept, ready) = services.into_iter().partition(|(id, _)| self.leaving.contains_key(id));
        self.pending = kept;
        ready
    }

    fn can_move(&self, to: ServiceId, left: Option<ServiceId>) -> bool {
        left == Some(to) || self.pending.binary_search_by_key(&to, |(id, _)| *id).is_err()
    }

    fn arrive(&mut self, id: ServiceId) {
        if let Some(count) = self.leaving.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.leaving.remove(&id);
            }
        }
    }
}

/// The entries of `frontends`, or of `outside`, that [`puts`] has not written yet, in order.
struct Moves<'a, E> {
    pending: Vec<(L4Addr, E)>,
    realised: &'a OrdMap<L4Addr, E>,
    lead: fn(&E) -> Lead,
}

impl<'a, E: Copy + PartialEq> Moves<'a, E> {
    fn new(
        touched: &Touched,
        desired: &OrdMap<L4Addr, E>,
        realised: &'a OrdMap<L4Addr, E>,
        lead: fn(&E) -> Lead,
        services: &mut Services,
    ) -> Self {
        let wanted = touched.frontends.iter().filter_map(|address| Some((*address, *desired.get(address)?)));
        let pending = wanted.filter(|(address, wanted)| realised.get(address) != Some(wanted)).collect();
        let moves = Self { pending, realised, lead };
        for id in moves.pending.iter().filter_map(|entry| moves.left(entry)) {
            *services.leaving.entry(id).or_insert(0) += 1;
        }
        moves
    }

    fn left(&self, (address, wanted): &(L4Addr, E)) -> Option<ServiceId> {
        left_by(self.realised.get(address).map(self.lead), (self.lead)(wanted))
    }

    /// Removes and returns the entries that can move: their new service entry is correct, or they only change to
    /// another view of the same one.
    fn take(&mut self, services: &mut Services) -> Vec<(L4Addr, E)> {
        let pending = std::mem::take(&mut self.pending);
        if services.leaving.is_empty() && services.pending.is_empty() {
            return pending;
        }
        let can_move = |entry: &(L4Addr, E)| services.can_move((self.lead)(&entry.1).service, self.left(entry));
        let (ready, kept): (Vec<_>, _) = pending.into_iter().partition(can_move);
        self.pending = kept;
        ready.iter().filter_map(|entry| self.left(entry)).for_each(|id| services.arrive(id));
        ready
    }
}

/// The entry with the old list that an address needs until it has moved. A change from the local view to the cluster
/// view of the same entry counts as leaving it, because the new local list may be empty.
fn left_by(actual: Option<Lead>, wanted: Lead) -> Option<ServiceId> {
    let actual = actual?;
    (actual.service != wanted.service || (actual.local && !wanted.local)).then_some(actual.service)
}

/// The source ranges of these services that are desired and not realised.
pub fn put_ranges(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let all = touched.services.iter().flat_map(|id| desired.ranges_of(*id).map(|range| (*id, range)));
    let missing = all.filter(|range| !realised.source_ranges.contains(range));
    missing.map(|(id, range)| MapOp::PutSourceRange(id, range)).collect()
}

fn put_uplinks(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let wanted = touched.uplinks.iter().filter_map(|index| Some((*index, *desired.uplinks.get(index)?)));
    let differing = wanted.filter(|(index, entry)| realised.uplinks.get(index) != Some(entry));
    differing.map(|(index, entry)| MapOp::PutUplink(index, entry)).collect()
}

fn put_node_addrs(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let is_new = |addr: &&Addr| desired.node_addrs.contains(*addr) && !realised.node_addrs.contains(*addr);
    touched.node_addrs.iter().filter(is_new).map(|addr| MapOp::PutNodeAddr(*addr)).collect()
}

/// The delete operations for frontends, node addresses and uplinks that are not desired. An address is closed to
/// clients outside the node first.
pub fn delete_frontends(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let (old, new) = (realised, desired);
    let outside = surplus(&touched.frontends, |a| old.outside.contains_key(a) && !new.outside.contains_key(a));
    let frontends = surplus(&touched.frontends, |a| old.frontends.contains_key(a) && !new.frontends.contains_key(a));
    let node_addrs = surplus(&touched.node_addrs, |a| old.node_addrs.contains(a) && !new.node_addrs.contains(a));
    let uplinks = surplus(&touched.uplinks, |i| old.uplinks.contains_key(i) && !new.uplinks.contains_key(i));
    let addresses = outside.map(MapOp::DeleteOutside).chain(frontends.map(MapOp::DeleteFrontend));
    addresses.chain(node_addrs.map(MapOp::DeleteNodeAddr)).chain(uplinks.map(MapOp::DeleteUplink)).collect()
}

fn surplus<K: Copy>(touched: &[K], is_surplus: impl Fn(&K) -> bool) -> impl Iterator<Item = K> {
    touched.iter().copied().filter(is_surplus)
}

/// The delete operations for source ranges that are not desired, and for service entries that are not desired and not
/// referenced. `is_referenced` returns whether a realised frontend or entry of `outside` still points at a service
/// entry; until then the ranges of an entry that is not desired stay, too.
pub fn delete_services(
    desired: &Desired,
    realised: &Realised,
    touched: &Touched,
    is_referenced: impl Fn(ServiceId) -> bool,
) -> Vec<MapOp> {
    let is_free = |id: &&ServiceId| desired.services.contains_key(*id) || !is_referenced(**id);
    let with_ranges = if realised.source_ranges.is_empty() { &[][..] } else { &touched.services };
    let ranges = with_ranges.iter().filter(is_free).flat_map(|id| {
        let surplus = realised.ranges_of(*id).filter(|range| !desired.source_ranges.contains(&(*id, *range)));
        surplus.map(|range| MapOp::DeleteSourceRange(*id, range))
    });
    let services = touched
        .services
        .iter()
        .filter(|id| realised.services.contains_key(*id) && !desired.services.contains_key(*id))
        .filter(|id| !is_referenced(**id))
        .map(|id| MapOp::DeleteService(*id));
    ranges.chain(services).collect()
}

#[cfg(test)]
#[path = "tests/map_ops.rs"]
mod tests;

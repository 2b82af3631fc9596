//! Computes the operations from the realised to the desired state, in an order without gaps. Lists are written before
//! the frontends that point at them, and frontends are deleted before their lists. After every prefix of the operations
//! (the daemon may crash at any point), a frontend that stays points either at its old list or at its new one. The same
//! is true for clients outside the node, and at no point does an address admit a client that neither state admits.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, FrontendEntry, Lead, MapOp, OutsideEntry, Realised, ServiceEntry, ServiceId};

/// The entries that may differ between the desired and the realised state. They are collected in any order and may
/// repeat. [`Touched::settle`] sorts and deduplicates them, which every function here requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Entries of `services`, with the source ranges of each.
    pub services: Vec<ServiceId>,
    /// Entries of `frontends`, with those of `outside` under the same address.
    pub frontends: Vec<L4Addr>,
    /// Entries of `node_addrs`.
    pub node_addrs: Vec<Addr>,
    /// Entries of `uplinks`.
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
    let mut pending = Pending::new(desired, realised, touched);
    let mut batches = vec![put_node_addrs(desired, realised, touched), put_uplinks(desired, realised, touched)];
    let mut ranges = put_ranges(desired, realised, touched);
    while !(pending.is_empty() && ranges.is_empty()) {
        let mut services = pending.take_services();
        let frontends = pending.take_frontends();
        let outside = pending.take_outside();
        if services.is_empty() && frontends.is_empty() && outside.is_empty() {
            services = std::mem::take(&mut pending.services);
        }
        batches.push(services.into_iter().map(|(id, wanted)| MapOp::PutService(id, wanted)).collect());
        batches.push(std::mem::take(&mut ranges));
        batches.push(frontends.into_iter().map(|(address, wanted)| MapOp::PutFrontend(address, wanted)).collect());
        batches.push(outside.into_iter().map(|(address, wanted)| MapOp::PutOutside(address, wanted)).collect());
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// The operations that [`puts`] has not ordered yet, each list in order.
struct Pending<'a> {
    services: Vec<(ServiceId, Arc<ServiceEntry>)>,
    frontends: Vec<(L4Addr, FrontendEntry)>,
    outside: Vec<(L4Addr, OutsideEntry)>,
    realised: &'a Realised,
    /// The number of pending frontends and entries of `outside` that leave each entry.
    leaving: BTreeMap<ServiceId, u32>,
}

impl<'a> Pending<'a> {
    fn new(desired: &Desired, realised: &'a Realised, touched: &Touched) -> Self {
        let differing = |id: &ServiceId| {
            let wanted = desired.services.get(id)?;
            (realised.services.get(id) != Some(wanted)).then(|| (*id, Arc::clone(wanted)))
        };
        let mut pending = Self {
            services: touched.services.iter().filter_map(differing).collect(),
            frontends: Vec::new(),
            outside: Vec::new(),
            realised,
            leaving: BTreeMap::new(),
        };
        let frontends = touched.frontends.iter().filter_map(|address| {
            let actual = realised.frontends.get(address);
            let wanted = desired.frontends.get(address).filter(|wanted| actual != Some(*wanted))?;
            pending.leave(left_by(actual.map(FrontendEntry::lead), wanted.lead()));
            Some((*address, *wanted))
        });
        pending.frontends = frontends.collect();
        let outside = touched.frontends.iter().filter_map(|address| {
            let actual = realised.outside.get(address);
            let wanted = desired.outside.get(address).filter(|wanted| actual != Some(*wanted))?;
            pending.leave(left_by(actual.map(OutsideEntry::lead), wanted.lead()));
            Some((*address, *wanted))
        });
        pending.outside = outside.collect();
        pending
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty() && self.outside.is_empty()
    }

    fn leave(&mut self, left: Option<ServiceId>) {
        if let Some(id) = left {
            *self.leaving.entry(id).or_insert(0) += 1;
        }
    }

    /// Removes and returns the entries that no frontend has yet to leave.
    fn take_services(&mut self) -> Vec<(ServiceId, Arc<ServiceEntry>)> {
        let services = std::mem::take(&mut self.services);
        if self.leaving.is_empty() {
            return services;
        }
        let (kept, ready) = services.into_iter().partition(|(id, _)| self.leaving.contains_key(id));
        self.services = kept;
        ready
    }

    /// Removes and returns the frontends that can move: their new entry is correct, or they only change to another view
    /// of the same entry.
    fn take_frontends(&mut self) -> Vec<(L4Addr, FrontendEntry)> {
        let frontends = std::mem::take(&mut self.frontends);
        if self.leaving.is_empty() && self.services.is_empty() {
            return frontends;
        }
        let left = |address: &L4Addr, wanted: &FrontendEntry| {
            left_by(self.realised.frontends.get(address).map(FrontendEntry::lead), wanted.lead())
        };
        let (ready, kept): (Vec<_>, _) =
            frontends.into_iter().partition(|(address, wanted)| self.can_move(wanted.service, left(address, wanted)));
        let left: Vec<_> = ready.iter().filter_map(|(address, wanted)| left(address, wanted)).collect();
        self.frontends = kept;
        left.into_iter().for_each(|id| self.arrive(id));
        ready
    }

    /// [`Self::take_frontends`] for entries of `outside`.
    fn take_outside(&mut self) -> Vec<(L4Addr, OutsideEntry)> {
        let outside = std::mem::take(&mut self.outside);
        if self.leaving.is_empty() && self.services.is_empty() {
            return outside;
        }
        let left = |address: &L4Addr, wanted: &OutsideEntry| {
            left_by(self.realised.outside.get(address).map(OutsideEntry::lead), wanted.lead())
        };
        let (ready, kept): (Vec<_>, _) =
            outside.into_iter().partition(|(address, wanted)| self.can_move(wanted.service, left(address, wanted)));
        let left: Vec<_> = ready.iter().filter_map(|(address, wanted)| left(address, wanted)).collect();
        self.outside = kept;
        left.into_iter().for_each(|id| self.arrive(id));
        ready
    }

    fn can_move(&self, to: ServiceId, left: Option<ServiceId>) -> bool {
        left == Some(to) || self.services.binary_search_by_key(&to, |(id, _)| *id).is_err()
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

/// The entry with the old list that an address needs until it has moved. A change from the local view to the cluster
/// view of the same entry counts as leaving it, because the new local list may be empty.
fn left_by(actual: Option<Lead>, wanted: Lead) -> Option<ServiceId> {
    let actual = actual?;
    (actual.service != wanted.service || (actual.local && !wanted.local)).then_some(actual.service)
}

fn put_ranges(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
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
    let outside = touched
        .frontends
        .iter()
        .filter(|address| realised.outside.contains_key(*address) && !desired.outside.contains_key(*address))
        .map(|address| MapOp::DeleteOutside(*address));
    let frontends = touched
        .frontends
        .iter()
        .filter(|address| realised.frontends.contains_key(*address) && !desired.frontends.contains_key(*address))
        .map(|address| MapOp::DeleteFrontend(*address));
    let node_addrs = touched
        .node_addrs
        .iter()
        .filter(|addr| realised.node_addrs.contains(*addr) && !desired.node_addrs.contains(*addr))
        .map(|addr| MapOp::DeleteNodeAddr(*addr));
    let uplinks = touched
        .uplinks
        .iter()
        .filter(|index| realised.uplinks.contains_key(*index) && !desired.uplinks.contains_key(*index))
        .map(|index| MapOp::DeleteUplink(*index));
    outside.chain(frontends).chain(node_addrs).chain(uplinks).collect()
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

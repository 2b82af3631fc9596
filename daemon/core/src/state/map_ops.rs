//! Computes the operations from the realised to the desired state, in an order without gaps. Lists are written before
//! the frontends that point at them, and frontends are deleted before their lists. After every prefix of the operations
//! (the daemon may crash at any point), a frontend that stays leads either to its old list or to its new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, FrontendEntry, MapOp, Realised, ServiceEntry, ServiceId};

/// The entries that may differ between the desired and the realised state. They are collected in any order and may
/// repeat. [`Touched::settle`] sorts and deduplicates them, which every function here requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Entries of `services`.
    pub services: Vec<ServiceId>,
    /// Entries of `frontends`.
    pub frontends: Vec<L4Addr>,
    /// Entries of `node_addrs`.
    pub node_addrs: Vec<Addr>,
}

impl Touched {
    /// The entries that are realised and not desired.
    pub fn surplus(desired: &Desired, realised: &Realised) -> Self {
        Self {
            services: realised.services.keys().copied().filter(|id| !desired.services.contains_key(id)).collect(),
            frontends: realised.frontends.keys().copied().filter(|a| !desired.frontends.contains_key(a)).collect(),
            node_addrs: realised.node_addrs.iter().copied().filter(|a| !desired.node_addrs.contains(a)).collect(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty() && self.node_addrs.is_empty()
    }

    /// Sorts the entries and removes duplicates.
    pub fn settle(&mut self) {
        settle(&mut self.services);
        settle(&mut self.frontends);
        settle(&mut self.node_addrs);
    }
}

fn settle<T: Ord>(entries: &mut Vec<T>) {
    entries.sort_unstable();
    entries.dedup();
}

/// The put operations, in batches that must be carried out one after another.
///
/// A frontend moves to another service entry only after that entry is correct, and an entry changes only after the
/// frontends that leave it have moved. Services that exchange addresses and change their lists in the same round form a
/// cycle of dependencies; then the lists are written first.
pub fn puts(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<Vec<MapOp>> {
    let mut pending = Pending::new(desired, realised, touched);
    let mut batches = vec![put_node_addrs(desired, realised, touched)];
    while !pending.is_empty() {
        let mut services = pending.take_services();
        let frontends = pending.take_frontends();
        if services.is_empty() && frontends.is_empty() {
            services = std::mem::take(&mut pending.services);
        }
        batches.push(services.into_iter().map(|(id, wanted)| MapOp::PutService(id, wanted)).collect());
        batches.push(frontends.into_iter().map(|(address, wanted)| MapOp::PutFrontend(address, wanted)).collect());
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// The operations that [`puts`] has not ordered yet.
struct Pending<'a> {
    services: BTreeMap<ServiceId, Arc<ServiceEntry>>,
    frontends: BTreeMap<L4Addr, FrontendEntry>,
    realised: &'a Realised,
    /// The number of pending frontends that leave each entry.
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
            frontends: BTreeMap::new(),
            realised,
            leaving: BTreeMap::new(),
        };
        for address in &touched.frontends {
            let Some(wanted) = desired.frontends.get(address) else { continue };
            if realised.frontends.get(address) != Some(wanted) {
                if let Some(id) = pending.left_by(address, wanted) {
                    *pending.leaving.entry(id).or_insert(0) += 1;
                }
                pending.frontends.insert(*address, *wanted);
            }
        }
        pending
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty()
    }

    /// The entry with the old list that the frontend needs until it has moved. A change from the local view to the
    /// cluster view of the same entry counts as leaving it, because the new local list may be empty.
    fn left_by(&self, address: &L4Addr, wanted: &FrontendEntry) -> Option<ServiceId> {
        let actual = self.realised.frontends.get(address)?;
        (actual.service != wanted.service || (actual.inside_local && !wanted.inside_local)).then_some(actual.service)
    }

    /// Removes and returns the entries that no frontend has yet to leave.
    fn take_services(&mut self) -> BTreeMap<ServiceId, Arc<ServiceEntry>> {
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
    fn take_frontends(&mut self) -> BTreeMap<L4Addr, FrontendEntry> {
        let frontends = std::mem::take(&mut self.frontends);
        if self.leaving.is_empty() && self.services.is_empty() {
            return frontends;
        }
        let (ready, kept) = frontends.into_iter().partition(|(address, wanted)| {
            !self.services.contains_key(&wanted.service) || self.left_by(address, wanted) == Some(wanted.service)
        });
        self.frontends = kept;
        for (address, wanted) in &ready {
            self.arrive(address, wanted);
        }
        ready
    }

    fn arrive(&mut self, address: &L4Addr, wanted: &FrontendEntry) {
        let Some(id) = self.left_by(address, wanted) else { return };
        if let Some(count) = self.leaving.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.leaving.remove(&id);
            }
        }
    }
}

fn put_node_addrs(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let is_new = |addr: &&Addr| desired.node_addrs.contains(*addr) && !realised.node_addrs.contains(*addr);
    touched.node_addrs.iter().filter(is_new).map(|addr| MapOp::PutNodeAddr(*addr)).collect()
}

/// The delete operations for frontends and node addresses that are not desired.
pub fn delete_frontends(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let frontends = touched
        .frontends
        .iter()
        .filter(|address| !desired.frontends.contains_key(*address) && realised.frontends.contains_key(*address))
        .map(|address| MapOp::DeleteFrontend(*address));
    let node_addrs = touched
        .node_addrs
        .iter()
        .filter(|addr| !desired.node_addrs.contains(*addr) && realised.node_addrs.contains(*addr))
        .map(|addr| MapOp::DeleteNodeAddr(*addr));
    frontends.chain(node_addrs).collect()
}

/// The delete operations for service entries that are not desired and not referenced. `is_referenced` returns whether a
/// realised frontend still points at a service entry.
pub fn delete_services(
    desired: &Desired,
    realised: &Realised,
    touched: &Touched,
    is_referenced: impl Fn(ServiceId) -> bool,
) -> Vec<MapOp> {
    touched
        .services
        .iter()
        .filter(|id| !desired.services.contains_key(*id) && realised.services.contains_key(*id))
        .filter(|id| !is_referenced(**id))
        .map(|id| MapOp::DeleteService(*id))
        .collect()
}

#[cfg(test)]
#[path = "tests/map_ops.rs"]
mod tests;

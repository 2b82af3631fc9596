//! Maps in memory, for `--datapath=memory` and the scenario tests. They have the same limits and the same placement of
//! backend lists as the kernel's maps. Faults can be injected.

use std::collections::BTreeMap;

use crate::datapath::{Datapath, Limits, MapError};
use crate::model::moment::Moment;
use crate::state::entries::{MAX_UPLINKS, MapOp, MapState, Realised, ServiceEntry, ServiceId, Slot};
use crate::state::runs::{Need, Owned, Run, Runs};

/// Decides before each operation whether it fails. Tests use it to inject faults.
pub type FaultInjector = Box<dyn FnMut(&MapOp) -> bool + Send>;

pub struct MemoryDatapath {
    limits: Limits,
    max_node_addrs: u32,
    /// The content except the backend lists, which are in `slots`.
    state: MapState,
    runs: Runs,
    views: BTreeMap<ServiceId, [Run; 2]>,
    owned: BTreeMap<ServiceId, [Owned; 2]>,
    slots: BTreeMap<u32, Slot>,
    fault: Option<FaultInjector>,
}

impl MemoryDatapath {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            max_node_addrs: u32::MAX,
            state: MapState::default(),
            runs: Runs::new(limits.slots),
            views: BTreeMap::new(),
            owned: BTreeMap::new(),
            slots: BTreeMap::new(),
            fault: None,
        }
    }

    /// Lets `fault` decide which operations fail from now on.
    #[must_use]
    pub fn with_fault(mut self, fault: FaultInjector) -> Self {
        self.fault = Some(fault);
        self
    }

    #[must_use]
    pub fn with_node_addrs(self, max_node_addrs: u32) -> Self {
        Self { max_node_addrs, ..self }
    }

    /// Empties the maps, as a reboot does. The injected faults stay.
    pub fn wipe(&mut self) {
        let max_node_addrs = self.max_node_addrs;
        *self = Self { fault: self.fault.take(), max_node_addrs, ..Self::new(self.limits) };
    }

    /// Does what another process does when it takes over the maps: each list owns what it has, whatever it had.
    pub fn reopen(&mut self) {
        let Ok(content) = self.dump() else { return };
        for (id, owned) in &mut self.owned {
            owned.iter_mut().for_each(|owned| self.runs.disown(owned));
            let entry = content.services.get(id);
            let lists = entry.map(|entry| [entry.cluster.len(), entry.local.len()]).unwrap_or_default();
            owned.iter_mut().zip(lists).for_each(|(owned, len)| self.runs.own(owned, slots(len)));
        }
    }

    /// Removes the injected faults. Operations still fail if a map is full.
    pub fn clear_fault(&mut self) {
        self.fault = None;
    }

    /// The number of slots in use and the number that rest. Once every service is removed, the first is 0 and the
    /// second decreases.
    pub fn slots_used(&self) -> (u32, u32) {
        (self.runs.used(), self.runs.resting())
    }

    /// The runs of each service's two lists, the cluster view first. A program reads them before it reads the slots.
    pub fn views(&self) -> impl Iterator<Item = (ServiceId, [Run; 2])> {
        self.views.iter().map(|(id, runs)| (*id, *runs))
    }

    /// The slots that a program would read at this run, whether or not any view refers to it.
    pub fn slots_at(&self, run: Run) -> Vec<Slot> {
        (run.first..run.first + run.len).filter_map(|index| self.slots.get(&index).copied()).collect()
    }

    fn apply_one(&mut self, op: &MapOp, now: Moment) -> Result<(), MapError> {
        if self.fault.as_mut().is_some_and(|fault| fault(op)) {
            return Err(MapError::Failed { map: "any", reason: "injected fault".into() });
        }
        let (state, limits) = (&self.state, self.limits);
        let full = |map| move |limit| MapError::Full { map, limit };
        match op {
            MapOp::PutService(id, entry) => self.publish(*id, entry, now)?,
            MapOp::DeleteService(id) => {
                self.withdraw(*id, now);
                self.owned.remove(id).iter_mut().flatten().for_each(|owned| self.runs.disown(owned));
            }
            MapOp::PutFrontend(key, _) if !state.frontends.contains_key(key) => {
                check_room(state.frontends.len(), limits.frontends, full("frontends"))?;
            }
            MapOp::PutOutside(address, _) if !state.outside.contains_key(address) => {
                check_room(state.outside.len(), limits.outside, full("outside"))?;
            }
            MapOp::PutSourceRange(id, range) if !state.source_ranges.contains(&(*id, *range)) => {
                check_room(state.source_ranges.len(), limits.source_ranges, full("source_ranges"))?;
            }
            MapOp::PutUplink(index, _) if !state.uplinks.contains_key(index) => {
                let limit = if limits.outside == 0 { 0 } else { MAX_UPLINKS };
                check_room(state.uplinks.len(), limit, |limit| MapError::TooManyUplinks { limit })?;
            }
            MapOp::PutNodeAddr(addr) if !state.node_addrs.contains(addr) => {
                check_room(state.node_addrs.len(), self.max_node_addrs, |limit| MapError::TooManyNodeAddrs { limit })?;
            }
            _ => {}
        }
        self.state.apply(op);
        Ok(())
    }

    fn publish(&mut self, id: ServiceId, entry: &ServiceEntry, now: Moment) -> Result<(), MapError> {
        if id.0 >= self.limits.services {
            return Err(MapError::Full { map: "services", limit: self.limits.services });
        }
        let mut owned = self.owned.get(&id).copied().unwrap_or_default();
        let cluster = self.place(entry, &entry.cluster, owned[0], now)?;
        let local =
            self.place(entry, &entry.local, owned[1], now).inspect_err(|_full| self.runs.free_unpublished(cluster))?;
        self.withdraw(id, now);
        self.views.insert(id, [cluster, local]);
        for (owned, list) in owned.iter_mut().zip([&entry.cluster, &entry.local]) {
            self.runs.own(owned, slots(list.len()));
        }
        self.owned.insert(id, owned);
        Ok(())
    }

    /// Writes the list, and leaves space for its ring, which nothing here reads.
    fn place(&mut self, entry: &ServiceEntry, list: &[Slot], owned: Owned, now: Moment) -> Result<Run, MapError> {
        let need = Need { list: slots(list.len()), run: slots(entry.run_len(list)), owned };
        let Some(run) = self.runs.allocate(need, now) else {
            let is_resting = self.runs.has_room_after_rest(need);
            let full = MapError::Full { map: "slots", limit: self.limits.slots };
            return Err(if is_resting { MapError::Resting } else { full });
        };
        let mut places = run.first..run.first + run.len;
        self.slots.extend(places.by_ref().zip(list.iter().copied()));
        for place in places {
            self.slots.remove(&place);
        }
        Ok(run)
    }

    fn withdraw(&mut self, id: ServiceId, now: Moment) {
        for run in self.views.remove(&id).into_iter().flatten() {
            self.runs.free(run, now);
        }
    }
}

/// More than any map has if the number is too large.
fn slots(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn check_room(used: usize, limit: u32, full: impl Fn(u32) -> MapError) -> Result<(), MapError> {
    if used < limit as usize { Ok(()) } else { Err(full(limit)) }
}

impl Datapath for MemoryDatapath {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        ops.iter().map(|op| self.apply_one(op, now)).collect()
    }

    fn end_round(&mut self, ended: Moment) {
        self.runs.end_round(ended);
    }

    fn dump(&self) -> Result<Realised, MapError> {
        let mut state = self.state.clone();
        for (id, [cluster, local]) in &self.views {
            if let Some(entry) = state.services.get(id).map(|entry| ServiceEntry::clone(entry)) {
                let entry = ServiceEntry {
                    cluster: self.slots_at(*cluster).into(),
                    local: self.slots_at(*local).into(),
                    ..entry
                };
                state.services.insert(*id, entry.into());
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
#[path = "tests/memory.rs"]
mod tests;

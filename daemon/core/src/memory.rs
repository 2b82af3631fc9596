//! Maps held in memory: `--datapath=memory`, and what the scenarios run against. Limited as the kernel is, with the same
//! placement of backend lists; faults are a parameter.

use std::collections::BTreeMap;

use crate::datapath::{Datapath, Limits, MapError, Moment};
use crate::runs::{Run, Runs};
use crate::state::{MapOp, MapState, Realised, ServiceEntry, ServiceId, Slot};

/// Decides before each operation whether it fails: a test's dice.
pub type Fault = Box<dyn FnMut(&MapOp) -> bool + Send>;

/// The in-memory holder of the maps.
pub struct MemoryDatapath {
    limits: Limits,
    /// Everything but the backend lists, which live in `slots`.
    state: MapState,
    runs: Runs,
    views: BTreeMap<ServiceId, [Run; 2]>,
    slots: BTreeMap<u32, Slot>,
    fault: Option<Fault>,
}

impl MemoryDatapath {
    /// Empty maps of these sizes.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: MapState::default(),
            runs: Runs::new(limits.slots),
            views: BTreeMap::new(),
            slots: BTreeMap::new(),
            fault: None,
        }
    }

    /// Lets `fault` decide which operations fail from now on.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Empty again, as after a reboot; what fails stays the same.
    pub fn wipe(&mut self) {
        *self = Self { fault: self.fault.take(), ..Self::new(self.limits) };
    }

    /// No operation fails any more, but for full maps.
    pub fn clear_fault(&mut self) {
        self.fault = None;
    }

    /// How many slots are in use and how many rest: 0 and a falling number once every service is gone.
    pub fn slots_used(&self) -> (u32, u32) {
        (self.runs.used(), self.runs.resting())
    }

    fn apply_one(&mut self, op: &MapOp, now: Moment) -> Result<(), MapError> {
        if self.fault.as_mut().is_some_and(|fault| fault(op)) {
            return Err(MapError::Failed { map: "any", reason: "injected fault".into() });
        }
        match op {
            MapOp::PutService(id, entry) => self.publish(*id, entry, now)?,
            MapOp::DeleteService(id) => self.withdraw(*id, now),
            MapOp::PutFrontend(key, _) if !self.state.frontends.contains_key(key) => {
                let limit = self.limits.frontends;
                if self.state.frontends.len() >= limit as usize {
                    return Err(MapError::Full { map: "frontends", limit });
                }
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
        let full = MapError::Full { map: "slots", limit: self.limits.slots };
        let cluster = self.place(&entry.cluster, now).ok_or_else(|| full.clone())?;
        let Some(local) = self.place(&entry.local, now) else {
            self.runs.free_unpublished(cluster);
            return Err(full);
        };
        self.withdraw(id, now);
        self.views.insert(id, [cluster, local]);
        Ok(())
    }

    fn place(&mut self, list: &[Slot], now: Moment) -> Option<Run> {
        let run = self.runs.allocate(u32::try_from(list.len()).ok()?, now)?;
        self.slots.extend((run.first..).zip(list.iter().copied()));
        Some(run)
    }

    fn withdraw(&mut self, id: ServiceId, now: Moment) {
        for run in self.views.remove(&id).into_iter().flatten() {
            self.runs.free(run, now);
        }
    }

    fn read(&self, run: Run) -> Vec<Slot> {
        (run.first..run.first + run.len).filter_map(|index| self.slots.get(&index).copied()).collect()
    }
}

impl Datapath for MemoryDatapath {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        ops.iter().map(|op| self.apply_one(op, now)).collect()
    }

    fn dump(&self) -> Result<Realised, MapError> {
        let mut state = self.state.clone();
        for (id, [cluster, local]) in &self.views {
            if let Some(entry) = state.services.get(id).map(|entry| ServiceEntry::clone(entry)) {
                let entry =
                    ServiceEntry { cluster: self.read(*cluster).into(), local: self.read(*local).into(), ..entry };
                state.services.insert(*id, entry.into());
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests;

//! Entries of the maps that another program deleted, overwrote or added. This module updates the engine's record of the
//! maps; the next round then repairs the entries as ordinary differences. While the maps keep entries that no source
//! describes, there is no such difference, and the entries are written again as they were.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use super::references::References;
use crate::datapath::Datapath;
use crate::model::moment::Moment;
use crate::model::uplink::UplinkEntry;
use crate::state::entries::{Desired, EntryValue, MapOp, Realised, ServiceId};
use crate::state::kernel_check::{Content, Drift, EntryKey, Fault, UNWANTED_FRONTEND, UNWANTED_OUTSIDE, detect};

/// Changes to the maps by other programs that are not repaired yet.
#[derive(Debug, Default)]
pub(super) struct UnrepairedDrift {
    found: BTreeMap<EntryKey, Drift>,
    /// The entries that are to be written again as they were.
    to_undo: BTreeSet<EntryKey>,
    /// What this round has undone.
    undone: Vec<Drift>,
}

impl UnrepairedDrift {
    /// Whether entries are still to be written again.
    pub(super) fn is_to_undo(&self) -> bool {
        !self.to_undo.is_empty()
    }

    pub(super) fn take_repaired(
        &mut self,
        desired: &Desired,
        realised: &Realised,
        references: &References,
    ) -> Vec<Drift> {
        let is_right = |key: &EntryKey| {
            // An entry that is not desired is not complete while a frontend points at it: see `free_deleted`.
            let is_free = |id| desired.services.contains_key(id) || !references.contains(*id);
            !self.to_undo.contains(key)
                && desired.agrees(realised, *key)
                && !matches!(key, EntryKey::Service(id) if !is_free(id))
        };
        let mut repaired = std::mem::take(&mut self.undone);
        self.found.retain(|key, drift| {
            let is_right = is_right(key);
            if is_right {
                repaired.push(drift.clone());
            }
            !is_right
        });
        repaired
    }
}

impl Engine {
    /// Makes the next round repair what another program has changed under these keys. Where only desired entries are left,
    /// the actual content is accepted as realised, so that it differs from the desired state. The caller must have read the
    /// maps just now, and must be the only writer without any operation in progress. Returns the number of entries that
    /// another program changed.
    pub fn accept_actual(&mut self, content: &Content, keys: &[EntryKey]) -> usize {
        let mut count = 0;
        for &key in keys {
            let Some((kind, fault)) = detect(content, &self.realised, key) else { continue };
            count += 1;
            let owner = match key {
                EntryKey::Service(id) | EntryKey::SourceRange(id, _) => {
                    self.owners.get(&id).map(|owner| owner.key.clone())
                }
                EntryKey::Frontend(_) | EntryKey::NodeAddress(_) | EntryKey::Outside(_) | EntryKey::Uplink(_) => None,
            };
            self.drift.found.entry(key).or_insert(Drift { key, kind, fault, owner });
            self.touched.add(key);
            if !self.sync.is_pruned {
                self.drift.to_undo.insert(key);
                continue;
            }
            let is_broken = content.broken.entries.contains_key(&key);
            let actual_op = self.actual_op(content, key, is_broken);
            self.count_references(&actual_op);
            self.realised.apply(&actual_op);
            if let EntryKey::Service(id) = key {
                self.deferred.note_change(id);
            }
        }
        count
    }

    /// Writes the entries again as they were. What the datapath does not accept is tried again in the next round.
    pub(super) fn undo_drift(&mut self, datapath: &mut impl Datapath, now: Moment) {
        let keys = std::mem::take(&mut self.drift.to_undo);
        if keys.is_empty() {
            return;
        }
        let (puts, deletes): (Vec<EntryKey>, Vec<EntryKey>) =
            keys.into_iter().partition(|key| self.realised.get(*key).is_some());
        // Lists before what leads to them, and the other way round when they go.
        let ops: Vec<MapOp> =
            puts.into_iter().chain(deletes.into_iter().rev()).map(|key| writing(key, self.realised.get(key))).collect();
        let results = datapath.apply(&ops, now);
        for (op, result) in ops.iter().zip(results) {
            match result {
                Ok(()) => self.drift.undone.extend(self.drift.found.remove(&op.key())),
                Err(_) => _ = self.drift.to_undo.insert(op.key()),
            }
        }
    }

    /// The operation that would have written the content of the maps. A broken entry counts as absent if it will be
    /// overwritten, and as present if it must be deleted.
    fn actual_op(&self, content: &Content, key: EntryKey, is_broken: bool) -> MapOp {
        let found = content.state.get(key);
        let is_unwanted = is_broken && found.is_none() && self.desired.get(key).is_none();
        match key {
            EntryKey::Frontend(address) if is_unwanted => MapOp::PutFrontend(address, UNWANTED_FRONTEND),
            EntryKey::Service(id) if is_unwanted => MapOp::PutService(id, Arc::default()),
            EntryKey::Outside(address) if is_unwanted => MapOp::PutOutside(address, UNWANTED_OUTSIDE),
            EntryKey::Uplink(index) if is_unwanted => MapOp::PutUplink(index, UplinkEntry::default()),
            _ => writing(key, found),
        }
    }

    /// Handles service entries that another program deleted and that are not desired any more: the datapath frees what
    /// it keeps for them, such as the slots of their lists, before their ids are assigned to other services.
    pub(super) fn free_deleted(&mut self, datapath: &mut impl Datapath, now: Moment) {
        let is_lost = |id: &ServiceId| {
            let is_anywhere = self.desired.services.contains_key(id) || self.realised.services.contains_key(id);
            !is_anywhere && !self.references.contains(*id)
        };
        let ours = self.drift.found.values().filter(|drift| drift.fault != Fault::Foreign);
        let lost = ours.filter_map(|drift| match drift.key {
            EntryKey::Service(id) if is_lost(&id) => Some(MapOp::DeleteService(id)),
            _ => None,
        });
        let ops: Vec<MapOp> = lost.collect();
        if !ops.is_empty() {
            let results = datapath.apply(&ops, now);
            self.commit(ops, results);
        }
    }
}

/// The operation after which the maps have this value under the key.
fn writing(key: EntryKey, value: Option<EntryValue<'_>>) -> MapOp {
    match (key, value) {
        (EntryKey::Service(id), Some(EntryValue::Service(entry))) => MapOp::PutService(id, Arc::clone(entry)),
        (EntryKey::Service(id), _) => MapOp::DeleteService(id),
        (EntryKey::Frontend(address), Some(EntryValue::Frontend(entry))) => MapOp::PutFrontend(address, entry),
        (EntryKey::Frontend(address), _) => MapOp::DeleteFrontend(address),
        (EntryKey::NodeAddress(addr), Some(_)) => MapOp::PutNodeAddr(addr),
        (EntryKey::NodeAddress(addr), None) => MapOp::DeleteNodeAddr(addr),
        (EntryKey::Outside(address), Some(EntryValue::Outside(entry))) => MapOp::PutOutside(address, entry),
        (EntryKey::Outside(address), _) => MapOp::DeleteOutside(address),
        (EntryKey::SourceRange(id, range), Some(_)) => MapOp::PutSourceRange(id, range),
        (EntryKey::SourceRange(id, range), None) => MapOp::DeleteSourceRange(id, range),
        (EntryKey::Uplink(index), Some(EntryValue::Uplink(entry))) => MapOp::PutUplink(index, entry),
        (EntryKey::Uplink(index), _) => MapOp::DeleteUplink(index),
    }
}

#[cfg(test)]
#[path = "tests/drift.rs"]
mod tests;

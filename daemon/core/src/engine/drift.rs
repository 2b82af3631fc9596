//! Entries of the maps that somebody else deleted, overwrote or added: what the engine then believes the kernel holds.
//! Putting them right is the ordinary business of a round.

use super::Engine;
use crate::datapath::Datapath;
use crate::model::moment::Moment;
use crate::state::entries::{MapOp, ServiceEntry, ServiceId};
use crate::state::kernel_check::{Content, Drift, EntryKey, Fault, NOBODYS, judge};

impl Engine {
    /// Takes over what the maps really hold under these keys; the next round puts right what nobody wants so. Whoever
    /// calls this has read the maps just now, and is the one who writes them: nothing of this may be in flight. How many
    /// entries were not as they were left; 0 before every source has told what it has, when nothing is taken over.
    pub fn found(&mut self, content: &Content, keys: &[EntryKey]) -> usize {
        if !self.is_ready {
            return 0;
        }
        let mut count = 0;
        for &key in keys {
            let Some((kind, fault)) = judge(content, &self.realised, key) else { continue };
            count += 1;
            let owner = match key {
                EntryKey::Service(id) => self.owners.get(&id).map(|owner| owner.key.clone()),
                EntryKey::Frontend(_) | EntryKey::NodeAddress(_) => None,
            };
            self.drift.entry(key).or_insert(Drift { key, kind, fault, owner });
            let is_broken = content.broken.entries.contains_key(&key);
            let truth = self.truth(content, key, is_broken);
            self.count_references(&truth);
            self.realised.apply(&truth);
            match key {
                EntryKey::Service(id) => {
                    self.touched.services.push(id);
                    self.deferred.note_change(id);
                }
                EntryKey::Frontend(address) => self.touched.frontends.push(address),
                EntryKey::NodeAddress(addr) => self.touched.node_addrs.push(addr),
            }
        }
        count
    }

    /// The operation that would have led to what the maps hold. A broken entry counts as absent where it will be written
    /// over, and as present where it must be deleted.
    fn truth(&self, content: &Content, key: EntryKey, is_broken: bool) -> MapOp {
        let held = &content.state;
        match key {
            EntryKey::Frontend(address) => match held.frontends.get(&address) {
                Some(entry) => MapOp::PutFrontend(address, *entry),
                None if is_broken && !self.desired.frontends.contains_key(&address) => {
                    MapOp::PutFrontend(address, NOBODYS)
                }
                None => MapOp::DeleteFrontend(address),
            },
            EntryKey::Service(id) => match held.services.get(&id) {
                Some(entry) => MapOp::PutService(id, entry.clone()),
                None if is_broken && !self.desired.services.contains_key(&id) => {
                    MapOp::PutService(id, ServiceEntry::default().into())
                }
                None => MapOp::DeleteService(id),
            },
            EntryKey::NodeAddress(addr) if held.node_addrs.contains(&addr) => MapOp::PutNodeAddr(addr),
            EntryKey::NodeAddress(addr) => MapOp::DeleteNodeAddr(addr),
        }
    }

    /// Service entries that somebody else deleted and nobody wants any more: the datapath gives up what it keeps about
    /// them, such as the room of their lists, before their ids go to others.
    pub(super) fn give_up_lost(&mut self, datapath: &mut impl Datapath, now: Moment) {
        let is_lost = |id: &ServiceId| {
            let is_anywhere = self.desired.services.contains_key(id) || self.realised.services.contains_key(id);
            !is_anywhere && !self.is_referenced(*id)
        };
        let ours = self.drift.values().filter(|drift| drift.fault != Fault::Foreign);
        let lost = ours.filter_map(|drift| match drift.key {
            EntryKey::Service(id) if is_lost(&id) => Some(MapOp::DeleteService(id)),
            _ => None,
        });
        let ops: Vec<MapOp> = lost.collect();
        if !ops.is_empty() {
            let results = datapath.apply(&ops, now);
            self.commit(&ops, results);
        }
    }

    /// Tells which of them are right again.
    pub(super) fn tell_repaired(&mut self) {
        if self.drift.is_empty() {
            return;
        }
        let (desired, realised, references) = (&self.desired, &self.realised, &self.references);
        let is_left = |id: &ServiceId| references.get(id).is_none_or(|count| *count == 0);
        let is_right = |key: &EntryKey| match key {
            EntryKey::Frontend(address) => desired.frontends.get(address) == realised.frontends.get(address),
            // One that nobody wants is not done with while something points at it: see `give_up_lost`.
            EntryKey::Service(id) => {
                let wanted = desired.services.get(id);
                wanted == realised.services.get(id) && (wanted.is_some() || is_left(id))
            }
            EntryKey::NodeAddress(addr) => desired.node_addrs.contains(addr) == realised.node_addrs.contains(addr),
        };
        let repaired = &mut self.round.repaired;
        self.drift.retain(|key, drift| {
            let is_right = is_right(key);
            if is_right {
                repaired.push(drift.clone());
            }
            !is_right
        });
    }
}

#[cfg(test)]
mod tests;

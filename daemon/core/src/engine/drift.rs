//! Entries of the maps that somebody else deleted, overwrote or added: what the engine then believes the kernel holds.
//! Putting them right is the ordinary business of a round.

use super::Engine;
use crate::compare::{Content, Drift, EntryKey, NOBODYS, judge};
use crate::state::{MapOp, ServiceEntry};

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
                EntryKey::Service(id) => self.touched.services.push(id),
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

    /// Tells which of them are right again.
    pub(super) fn tell_repaired(&mut self) {
        if self.drift.is_empty() {
            return;
        }
        let (desired, realised) = (&self.desired, &self.realised);
        let is_right = |key: &EntryKey| match key {
            EntryKey::Frontend(address) => desired.frontends.get(address) == realised.frontends.get(address),
            EntryKey::Service(id) => desired.services.get(id) == realised.services.get(id),
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

//! What has changed hands while nodelb did not run: the services that had the addresses of the maps at the start, and lost
//! them before their sources had reported everything again. The maps contain hashes of their names; the previous run has
//! stored the names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Engine, Takeover};
use crate::awaited::Awaited;
use crate::history::{Event, What};
use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::service::PortKey;
use crate::state::entries::{MapOp, Realised, ServiceEntry, ServiceId, backends_of};
use crate::state::owner::{OwnerTag, hash_of};

/// The detail of an event about a change that nodelb has not seen.
pub(super) const NOT_SEEN: &str = "while nodelb was not running or not synced";

fn owner_of(former: &Realised, address: &L4Addr) -> Option<(ServiceId, OwnerTag)> {
    let id = former.frontends.get(address)?.service;
    Some((id, former.services.get(&id)?.tag?))
}

impl Engine {
    /// Accepts the names of the service ports of the previous run. The file is not trusted: there are at most as many as
    /// in the maps.
    pub fn recall_ports(&mut self, ports: impl IntoIterator<Item = PortKey>) {
        let tags = self.realised.services.values().filter_map(|entry| entry.tag);
        let known: BTreeSet<(u32, u32)> = tags.map(|tag| (tag.service, tag.port)).collect();
        let named = ports.into_iter().map(|port| (OwnerTag::hashes_of(&port), Arc::new(port)));
        self.before.ports = named.filter(|(hashes, _)| known.contains(hashes)).collect();
    }

    /// Forgets the addresses whose loss by their former service is in an event of this run.
    pub(super) fn settle_former(&mut self) {
        let takeovers =
            self.round.takeovers.iter().filter_map(|it| it.before.as_deref().map(|before| (before, it.address)));
        for (loser, address) in self.event_recorder.withdrawn().chain(takeovers) {
            if owner_of(&self.former, &address).is_some_and(|(_, tag)| tag.service == hash_of(&loser.service)) {
                self.former.frontends.remove(&address);
            }
        }
    }

    /// Reports who has lost and taken over addresses since the start, as far as this is certain, and forgets those that
    /// their owners still have. Returns the addresses whose former service is named.
    pub(super) fn report_former(&mut self) -> BTreeSet<L4Addr> {
        self.settle_former();
        let (mut gone, mut waiting) = (Vec::new(), Realised::default());
        let former = std::mem::take(&mut self.former);
        for (address, actual) in &former.frontends {
            let Some((id, tag)) = owner_of(&former, address) else { continue };
            if self.table.is_synced(tag.source) && self.is_still_owned(address, tag) {
                continue;
            }
            let awaited = self.sources().awaited_by(Some(tag));
            if matches!(awaited, Some(Awaited::Unsynced(_) | Awaited::Other(_))) || self.is_former_doubtful(address) {
                waiting.frontends.insert(*address, *actual);
                waiting.services.extend(former.services.get(&id).map(|entry| (id, Arc::clone(entry))));
            } else {
                gone.push(*address);
            }
        }
        let named = self.report_gone(&former, gone);
        self.former = waiting;
        if self.sync.is_pruned {
            self.before.ports.clear();
        }
        named
    }

    /// Reports at once which addresses this round has led from a service of the start elsewhere.
    pub(super) fn report_moved(&mut self) {
        self.settle_former();
        if self.moved.is_empty() {
            return;
        }
        let (moved, former) = (std::mem::take(&mut self.moved), self.former.clone());
        for address in &moved {
            self.former.frontends.remove(address);
        }
        self.report_gone(&former, moved);
    }

    /// Reports who has taken over the addresses, and who has lost them. Returns those with a named former service.
    fn report_gone(&mut self, former: &Realised, addresses: Vec<L4Addr>) -> BTreeSet<L4Addr> {
        let (mut named, mut lost) = (BTreeSet::new(), BTreeMap::<_, Vec<L4Addr>>::new());
        for address in addresses {
            if let Some(owner) = owner_of(former, &address).filter(|(_, tag)| self.has_changed_hands(address, *tag)) {
                lost.entry(owner).or_default().push(address);
            }
        }
        for ((id, tag), addresses) in lost {
            if let Some(event) = self.event_of_former(tag, former.services.get(&id), &addresses) {
                self.round.former.push(event);
                named.extend(addresses);
            }
        }
        named
    }

    fn is_still_owned(&self, address: &L4Addr, tag: OwnerTag) -> bool {
        let owner = self.rows.get(address).and_then(|row| row.owner());
        owner.is_some_and(|(claim, _)| hash_of(&claim.key.service) == tag.service)
    }

    /// Whether the address may still change hands only because a source has not reported everything.
    fn is_former_doubtful(&self, address: &L4Addr) -> bool {
        if self.sync.is_pruned || self.desired.frontends.get(address) == self.realised.frontends.get(address) {
            return false;
        }
        let op = match self.desired.frontends.get(address) {
            Some(wanted) => MapOp::PutFrontend(*address, *wanted),
            None => MapOp::DeleteFrontend(*address),
        };
        self.is_premature(&op)
    }

    /// Reports a takeover or a refusal of the address. Returns whether its owner at the start no longer claims it.
    fn has_changed_hands(&mut self, address: L4Addr, tag: OwnerTag) -> bool {
        let row = self.rows.get(&address).cloned().unwrap_or_default();
        if self.is_still_owned(&address, tag) {
            return false;
        }
        if let Some(owner) = row.owner().map(|(claim, _)| &claim.key) {
            let before = self.before.ports.get(&(tag.service, tag.port)).cloned();
            self.round.takeovers.push(Takeover { address, owner: Arc::clone(owner), before });
        }
        let own = row.claims().iter().find(|claim| hash_of(&claim.key.service) == tag.service);
        if let Some((claim, refusal)) = own.and_then(|claim| Some((claim, claim.target.as_ref().err()?))) {
            self.event_recorder.note_refusal(address, &claim.key, refusal);
        }
        own.is_none()
    }

    /// The event about a port that has lost addresses; `None` if its name is not known.
    fn event_of_former(&self, tag: OwnerTag, entry: Option<&Arc<ServiceEntry>>, lost: &[L4Addr]) -> Option<Event> {
        let key = self.before.ports.get(&(tag.service, tag.port))?;
        let compiled = self.compiled.get(&key.service);
        let is_described = compiled.is_some_and(|it| it.port(key).is_some());
        let is_removed = !is_described && self.table.is_synced(tag.source);
        let what = if is_removed { What::Removed } else { What::Changed };
        let gone = entry.filter(|_| is_removed).into_iter().flat_map(|entry| backends_of(&entry.cluster));
        Some(Event {
            removed: gone.map(|(backend, _)| backend).collect(),
            withdrawn: lost.iter().copied().collect(),
            detail: Some(NOT_SEEN.into()),
            ..Event::for_port(key, Some(tag.source), what, Cause::default())
        })
    }
}

//! What has changed hands while nodelb did not run: the services that had the addresses of the maps at the start, and lost
//! them before their sources had reported everything again. The maps contain hashes of their names; the previous run has
//! stored the names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::{Engine, Takeover};
use crate::history::{Event, What};
use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::service::PortKey;
use crate::state::entries::{FrontendEntry, MapOp, Realised, ServiceEntry, ServiceId, backends_of};
use crate::state::owner::{OwnerTag, hash_of};

/// The owners of the addresses at the start, as long as it is not known whether they still are.
#[derive(Debug, Default)]
pub(super) struct Former {
    frontends: OrdMap<L4Addr, FrontendEntry>,
    services: OrdMap<ServiceId, Arc<ServiceEntry>>,
}

/// The entry of an owner that has lost addresses, with these.
type Lost = BTreeMap<ServiceId, (OwnerTag, Vec<L4Addr>)>;

impl Former {
    pub(super) fn new(realised: &Realised) -> Self {
        Self { frontends: realised.frontends.clone(), services: realised.services.clone() }
    }
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
        if self.former.frontends.is_empty() {
            return;
        }
        let takeovers =
            self.round.takeovers.iter().filter_map(|it| it.before.as_deref().map(|before| (before, it.address)));
        for (loser, address) in self.event_recorder.withdrawn().chain(takeovers) {
            let entry =
                self.former.frontends.get(&address).and_then(|actual| self.former.services.get(&actual.service));
            if entry.and_then(|entry| entry.tag).is_some_and(|tag| tag.service == hash_of(&loser.service)) {
                self.former.frontends.remove(&address);
            }
        }
    }

    /// Reports who has lost and taken over addresses since the start, when every source has reported what it can; before, and
    /// for addresses whose source is incomplete, only those are forgotten that their owners still have. Returns the
    /// addresses whose former service is named.
    pub(super) fn report_former(&mut self) -> BTreeSet<L4Addr> {
        self.settle_former();
        let (mut named, mut lost, mut waiting) = (BTreeSet::new(), Lost::new(), Former::default());
        let former = std::mem::take(&mut self.former);
        for (address, actual) in former.frontends.iter().filter(|(_, actual)| actual.service != ServiceId::CANARY) {
            let entry = former.services.get(&actual.service);
            let Some(tag) = entry.and_then(|entry| entry.tag) else { continue };
            if self.table.is_synced(tag.source) && self.is_still_owned(address, tag) {
                continue;
            }
            if !self.unsynced().is_empty() || self.is_former_doubtful(address) {
                waiting.frontends.insert(*address, *actual);
                waiting.services.extend(entry.map(|entry| (actual.service, Arc::clone(entry))));
            } else if self.has_changed_hands(*address, tag) {
                lost.entry(actual.service).or_insert_with(|| (tag, Vec::new())).1.push(*address);
            }
        }
        for (id, (tag, addresses)) in lost {
            if let Some(event) = self.event_of_former(tag, former.services.get(&id), &addresses) {
                self.round.former.push(event);
                named.extend(addresses);
            }
        }
        self.former = waiting;
        if self.sync.is_pruned {
            self.before.ports.clear();
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
        let is_described = compiled.is_some_and(|it| it.ports.iter().any(|port| port.key == *key));
        let what = if is_described { What::Changed } else { What::Removed };
        let gone = entry.filter(|_| !is_described).into_iter().flat_map(|entry| backends_of(&entry.cluster));
        Some(Event {
            removed: gone.map(|(backend, _)| backend).collect(),
            withdrawn: lost.iter().copied().collect(),
            detail: Some("while nodelb was not running or not synced".into()),
            ..Event::for_port(key, Some(tag.source), what, Cause::default())
        })
    }
}

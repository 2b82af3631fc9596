//! What a round did, as an operator wants to read it later: events for the flight recorder ([`crate::history`]). Owns what
//! is worth one and what stands in it; when that was, and where it is kept, is the caller's business.
//!
//! While a source tells what it has at the start, its services are one event together. From then on a changed list is
//! noted where it is compiled, for only there is known what it was and who changed it, and compared when the round is
//! over. What stays the same costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use smallvec::SmallVec;

use super::Engine;
use crate::claims::Row;
use crate::compile::guard::Refusal;
use crate::datapath::MapError;
use crate::history::{Addresses, Event, Kernel, What};
use crate::model::addr::L4Addr;
use crate::model::cause::{Cause, Trigger};
use crate::model::service::{PortKey, Service, ServiceName, Source};
use crate::state::entries::{Realised, ServiceEntry, ServiceId};
use crate::state::kernel_check::EntryKey;

pub(super) use draft::Draft;
use events::Events;

mod draft;
mod events;

/// The most events of one round, and the most changed lists it compares; what is beyond them is counted.
const MAX_EVENTS: usize = 512;

/// The most entries that are waited for, to tell when the kernel has them.
const MAX_OWED: usize = 4_096;

/// The most times of slices that one round is told, and the most services that the oldest one waits for.
const MAX_TRIGGERS: usize = 4_096;

/// What the engine keeps in order to tell.
#[derive(Debug, Default)]
pub(super) struct Teller {
    /// The sources that have told everything once: what they say from then on is news.
    recorded: BTreeSet<Source>,
    /// Lists found in the kernel at the start, until every source has told everything.
    found: OrdMap<ServiceId, Arc<ServiceEntry>>,
    drafts: Vec<Draft>,
    refusals: Vec<(L4Addr, Arc<PortKey>, Option<Arc<Refusal>>)>,
    untold: usize,
    /// Entries of which it was told that the kernel does not have them yet.
    owed: BTreeMap<ServiceId, Arc<PortKey>>,
    /// When what a slice told in this round happened, by the slice's service.
    triggers: Vec<(ServiceName, u64)>,
    /// The oldest of them for each service that the kernel does not have as it should be yet.
    waiting: BTreeMap<ServiceName, u64>,
}

impl Teller {
    pub(super) fn new(found: &Realised) -> Self {
        Self { found: found.services.clone(), ..Self::default() }
    }

    pub(super) fn is_recorded(&self, source: Source) -> bool {
        self.recorded.contains(&source)
    }

    /// Notes a list that changes. Most matters who is left with nothing, so there is always room for some of those.
    pub(super) fn note(&mut self, draft: impl FnOnce() -> Draft, empties: bool) {
        let room = if empties { 2 * MAX_EVENTS } else { MAX_EVENTS };
        if self.drafts.len() < room {
            self.drafts.push(draft());
        } else {
            self.untold += 1;
        }
    }

    /// Notes when what the slice tells happened, if that is known.
    pub(super) fn note_trigger(&mut self, trigger: &Trigger) {
        if let Trigger::Slice(slice) = trigger
            && let Some(triggered) = slice.origin.triggered
            && self.is_recorded(slice.source)
            && self.triggers.len() < MAX_TRIGGERS
        {
            self.triggers.push((slice.service.clone(), triggered));
        }
    }

    pub(super) fn clear(&mut self) {
        self.drafts.clear();
        self.refusals.clear();
        self.untold = 0;
    }
}

/// Why the service's claims to an address cannot own it; almost always empty.
pub(super) type Refusals = SmallVec<[(Arc<PortKey>, Arc<Refusal>); 1]>;

/// See [`Refusals`].
pub(super) fn refusals(row: &Row, name: &ServiceName) -> Refusals {
    let own = row.claims().iter().filter(|claim| claim.key.service == *name);
    own.filter_map(|claim| Some((Arc::clone(&claim.key), Arc::clone(claim.target.as_ref().err()?)))).collect()
}

impl Engine {
    /// The kernel's list of the id is about to become this one. Tells of lists found at the start that a source which has
    /// not told everything changes: nobody was there to see when they were.
    pub(super) fn note_inherited(&mut self, id: ServiceId, entry: &Arc<ServiceEntry>) {
        if !self.teller.found.contains_key(&id) || self.teller.drafts.iter().any(|draft| draft.id == id) {
            return;
        }
        let Some(before) = self.realised.services.get(&id).filter(|before| *before != entry) else { return };
        let Some(owner) = self.owners.get(&id) else { return };
        let Some((service, slices)) = self.table.owner(&owner.key.service) else { return };
        let latest = slices.iter().max_by_key(|slice| slice.origin.written);
        let trigger =
            latest.map_or_else(|| Trigger::Service(Arc::clone(service)), |slice| Trigger::Slice(Arc::clone(slice)));
        let draft = Draft {
            id,
            key: Arc::clone(&owner.key),
            source: owner.source,
            before: Some(Arc::clone(before)),
            after: Some(Arc::clone(entry)),
            trigger,
        };
        self.teller.note(|| draft, entry.cluster.is_empty());
    }

    /// Compares what was refused of the service's claims to the address with what is refused now.
    pub(super) fn note_refusals(&mut self, name: &ServiceName, address: L4Addr, before: Refusals) {
        let now = self.rows.get(&address).map(|row| refusals(row, name)).unwrap_or_default();
        let is_recorded = |name: &ServiceName| {
            self.table.owner(name).is_some_and(|(service, _)| self.teller.is_recorded(service.source))
        };
        if now == before || self.teller.refusals.len() >= MAX_EVENTS || !is_recorded(name) {
            return;
        }
        let ended = before.into_iter().filter(|(key, _)| now.iter().all(|(refused, _)| refused != key));
        let ended = ended.map(|(key, _)| (address, key, None));
        self.teller.refusals.extend(ended.chain(now.iter().cloned().map(|(key, why)| (address, key, Some(why)))));
    }

    /// Puts the events of the round together.
    pub(super) fn tell(&mut self) {
        let mut events = Events::default();
        self.tell_lists(&mut events);
        self.tell_holds(&mut events);
        self.tell_claims(&mut events);
        self.tell_kernel(&mut events);
        self.tell_repairs(&mut events);
        self.tell_sources(&mut events);
        let untold = events.untold + self.teller.untold;
        let mut events = events.events;
        if untold > 0 {
            let detail = format!("{untold} more changes in the same moment are not recorded one by one");
            events.push(Event::of_daemon(What::More, detail));
        }
        self.round.events = events;
        self.tell_triggers();
        self.teller.clear();
    }

    fn tell_lists(&mut self, events: &mut Events) {
        let mut drafts = std::mem::take(&mut self.teller.drafts);
        // A stable order: what was emptied comes first, for there may not be room for all.
        drafts.sort_by_key(|draft| draft.what() != What::Emptied);
        for draft in &drafts {
            let kernel = self.kernel_of(draft.id);
            let (id, key) = (draft.id, &draft.key);
            let is_owed = matches!(kernel, Kernel::Failed(_) | Kernel::Deferred);
            let refused = draft.after.as_ref().map(|_| self.refused_backends(key)).unwrap_or_default();
            let is_inherited = !self.teller.is_recorded(draft.source);
            if let Some(event) = events.of(key, || draft.event()) {
                event.kernel = kernel;
                event.refused = refused;
                if is_inherited {
                    event.detail = Some("changed while nodelb was not there, or had not heard all".into());
                }
            }
            if is_owed && self.teller.owed.len() < MAX_OWED {
                self.teller.owed.insert(id, Arc::clone(key));
            } else if !is_owed {
                self.teller.owed.remove(&id);
            }
        }
    }

    fn tell_holds(&self, events: &mut Events) {
        for port in &self.round.held {
            let new = || Event::of_port(&port.key, self.source_of(&port.key), What::Held, port.cause.clone());
            if let Some(event) = events.of(&port.key, new) {
                event.what = What::Held;
                event.cause = port.cause.clone();
                event.held = port.backends.iter().copied().collect();
                event.refused = self.refused_backends(&port.key);
            }
        }
        for release in &self.round.released {
            let key = &release.port.key;
            let new = || Event::of_port(key, self.source_of(key), What::Released, release.cause.clone());
            let Some(event) = events.of(key, new) else { continue };
            if event.what != What::Removed {
                event.what = What::Released;
            }
            let why = if release.is_deleted { "it was held, and is deleted" } else { "it has backends again" };
            event.detail = Some(why.into());
        }
    }

    fn tell_claims(&mut self, events: &mut Events) {
        for (address, key, why) in std::mem::take(&mut self.teller.refusals) {
            let what = if why.is_some() { What::Refused } else { What::Admitted };
            let detail = why.map_or_else(|| format!("{address} is served"), |why| format!("{address}: {why}"));
            events.push(self.about_address(&key, what, address, detail));
        }
        for it in &self.round.outranked {
            events.push(self.about_address(&it.claimant, What::Conflict, it.address, it.text.to_string()));
        }
        for it in &self.round.takeovers {
            let detail = format!("takes over {} from {}", it.address, it.before);
            events.push(self.about_address(&it.owner, What::TakenOver, it.address, detail));
        }
    }

    /// What the kernel would not take, and what it takes at last.
    fn tell_kernel(&mut self, events: &mut Events) {
        for (address, error) in &self.round.errors {
            let Some(key) = self.owner_of(*address) else { continue };
            let new = || Event::of_port(key, self.source_of(key), What::Failed, self.cause_of(key));
            if let Some(event) = events.of(key, new) {
                event.frontends.push(*address);
                event.kernel = Kernel::Failed(Arc::clone(error));
            }
        }
        if self.round.done > 0 {
            let owed = std::mem::take(&mut self.teller.owed);
            let (done, owed): (Vec<_>, Vec<_>) = owed.into_iter().partition(|(id, _)| self.is_realised(*id));
            self.teller.owed.extend(owed);
            for (_, key) in done {
                events.of(&key, || self.healed(&key));
            }
        }
        for address in &self.round.healed {
            let Some(key) = self.owner_of(*address) else { continue };
            if let Some(event) = events.of(key, || self.healed(key)) {
                event.frontends.push(*address);
            }
        }
    }

    /// What somebody else had done to the maps.
    fn tell_repairs(&self, events: &mut Events) {
        for drift in &self.round.repaired {
            let frontend = match drift.key {
                EntryKey::Frontend(address) => Some(address),
                EntryKey::Service(_) | EntryKey::NodeAddress(_) => None,
            };
            let owner = drift.owner.as_ref().or_else(|| self.owner_of(frontend?));
            let event = match owner {
                Some(key) => Event::of_port(key, self.source_of(key), What::Repaired, Cause::default()),
                None => Event::of_daemon(What::Repaired, ""),
            };
            let detail = Some(format!("{drift}: somebody else did that").into());
            events.push(Event { frontends: frontend.into_iter().collect(), kernel: Kernel::Done, detail, ..event });
        }
    }

    fn tell_sources(&mut self, events: &mut Events) {
        for source in self.config.sources.clone() {
            if !self.table.is_synced(source) || self.teller.is_recorded(source) {
                continue;
            }
            self.teller.recorded.insert(source);
            let (services, slices) = (self.table.services_of(source).count(), self.table.slices_of(source).count());
            let incomplete = self.table.incomplete(source).map(|what| format!("; not read: {what}"));
            let detail =
                format!("{services} services and {slices} slices at the start{}", incomplete.unwrap_or_default());
            let kernel = if self.round.failed == 0 { Kernel::Done } else { Kernel::Deferred };
            events.push(Event { source: Some(source), kernel, ..Event::of_daemon(What::Synced, detail) });
        }
        if !self.teller.found.is_empty() && self.unsynced().is_empty() {
            self.teller.found = OrdMap::new();
        }
        if self.round.pruned > 0 {
            let detail = format!("{} frontends that no source asks for any more", self.round.pruned);
            events.push(Event::of_daemon(What::Pruned, detail));
        }
    }

    /// The times of slices whose service the kernel has by now.
    fn tell_triggers(&mut self) {
        let Teller { owed, triggers, waiting, .. } = &mut self.teller;
        if triggers.is_empty() && waiting.is_empty() {
            return;
        }
        let owed: BTreeSet<&ServiceName> = owed.values().map(|key| &key.service).collect();
        let done = &mut self.round.triggers;
        waiting.retain(|name, triggered| {
            let is_owed = owed.contains(name);
            if !is_owed {
                done.push(*triggered);
            }
            is_owed
        });
        for (name, triggered) in triggers.drain(..) {
            if !owed.contains(&name) {
                done.push(triggered);
            } else if let Some(oldest) = waiting.get_mut(&name) {
                *oldest = triggered.min(*oldest);
            } else if waiting.len() < MAX_TRIGGERS {
                waiting.insert(name, triggered);
            }
        }
    }

    /// Whether the kernel has what is wanted of the entry.
    fn kernel_of(&self, id: ServiceId) -> Kernel {
        match self.failed_services.get(&id) {
            Some(MapError::Resting) => Kernel::Deferred,
            Some(error) => Kernel::Failed(error.to_string().into()),
            None if self.is_realised(id) => Kernel::Done,
            None => Kernel::Deferred,
        }
    }

    fn is_realised(&self, id: ServiceId) -> bool {
        self.realised.services.get(&id) == self.desired.services.get(&id)
    }

    /// The backends that the port's slices name and no connection may be sent to.
    fn refused_backends(&self, key: &PortKey) -> Addresses {
        let Some((service, slices)) = self.table.owner(&key.service) else { return Addresses::default() };
        let is_of_port = |name: &str, protocol| *name == *key.port && protocol == key.protocol;
        let ports = slices.iter().flat_map(|slice| &slice.ports).filter(|port| is_of_port(&port.name, port.protocol));
        let backends = ports.flat_map(|port| &port.backends).filter(|backend| backend.addr.family() == key.family);
        let addresses = backends.map(|backend| L4Addr::new(backend.addr, backend.port, key.protocol));
        let admits = |at: &L4Addr| self.config.guard.admits_backend(*at, service.source, self.table.apiservers());
        let refused: BTreeSet<L4Addr> = addresses.filter(|at| at.port > 0 && !admits(at)).collect();
        refused.into_iter().collect()
    }

    fn healed(&self, key: &Arc<PortKey>) -> Event {
        let event = Event::of_port(key, self.source_of(key), What::Healed, self.cause_of(key));
        Event { kernel: Kernel::Done, ..event }
    }

    fn about_address(&self, key: &Arc<PortKey>, what: What, address: L4Addr, detail: String) -> Event {
        let event = Event::of_port(key, self.source_of(key), what, self.cause_of(key));
        Event { frontends: [address].into_iter().collect(), detail: Some(detail.into()), ..event }
    }

    fn owner_of(&self, address: L4Addr) -> Option<&Arc<PortKey>> {
        self.rows.get(&address)?.owner().map(|(claim, _)| &claim.key)
    }

    fn described(&self, key: &PortKey) -> Option<&Arc<Service>> {
        self.table.owner(&key.service).map(|(service, _)| service)
    }

    fn source_of(&self, key: &PortKey) -> Option<Source> {
        self.described(key).map(|service| service.source)
    }

    /// Who says that there is such a service at such addresses.
    fn cause_of(&self, key: &PortKey) -> Cause {
        self.described(key).map(|service| Trigger::Service(Arc::clone(service)).cause()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;

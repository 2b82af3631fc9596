//! The events of a round for the flight recorder ([`crate::history`]), as an operator reads them later. This module
//! decides which changes are worth an event and what it contains. The caller adds the time and stores the event.
//!
//! While a source reports what it has at the start, its services are combined into one event. After that, a changed
//! list is recorded when its service is compiled, because only then the earlier content and the origin of the change
//! are known. The lists are compared at the end of the round. Unchanged services cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use smallvec::SmallVec;

use super::former::NOT_SEEN;
use crate::before::as_before;
use crate::claims::Row;
use crate::compile::guard::Refusal;
use crate::history::{Addresses, Event, Kernel, What};
use crate::holds::ReleaseReason;
use crate::model::addr::L4Addr;
use crate::model::cause::{Cause, Trigger};
use crate::model::drain::DrainCause;
use crate::model::service::{PortKey, ServiceName, Source};
use crate::state::entries::{EntryKey, FrontendEntry, Realised, ServiceEntry, ServiceId, backends_of};
use crate::state::owner::OwnerTag;
use crate::text::counted;

pub(super) use context::Context;
pub(super) use draft::{AddressChange, Draft};
use draft::{Pending, what_of};
use events::{Events, MAX_EVENTS};

mod context;
mod draft;
mod events;

/// The maximum number of entries that are tracked until the maps contain them.
const MAX_PENDING: usize = 4_096;

/// The maximum number of slice times accepted in one round, and of services with a stored oldest time.
const MAX_TRIGGERS: usize = 4_096;

/// The service's claims that can never own the address, with the reasons. Almost always empty.
pub(super) type Refusals = SmallVec<[(Arc<PortKey>, Arc<Refusal>); 1]>;

/// The current [`Refusals`] of the service at this address.
pub(super) fn refusals(row: &Row, name: &ServiceName) -> Refusals {
    let own = row.claims().iter().filter(|claim| claim.key.service == *name);
    own.filter_map(|claim| Some((Arc::clone(&claim.key), Arc::clone(claim.target.as_ref().err()?)))).collect()
}

#[derive(Debug, Default)]
pub(super) struct EventRecorder {
    /// The sources that have reported everything once. Their later reports are news.
    recorded: BTreeSet<Source>,
    /// The lists found in the maps at the start, until their source has replaced them, or has reported everything.
    found: OrdMap<ServiceId, Arc<ServiceEntry>>,
    /// The service ports that the maps had at the start, by the hashes in their tags, until nothing is in doubt.
    known: BTreeSet<(u32, u32)>,
    /// The addresses found in the maps at the start, until nothing is in doubt.
    pub(super) addresses: OrdMap<L4Addr, FrontendEntry>,
    /// Whether the packet path was on then.
    pub(super) had_packets: bool,
    /// The addresses that are in the maps only since this round.
    pub(super) gained: Vec<L4Addr>,
    /// What last changed such a list, if that had to wait.
    pub(super) waiting_causes: BTreeMap<ServiceId, Trigger>,
    /// What left a list without backends, while the maps still have them.
    pub(super) kept_losses: BTreeMap<ServiceId, Cause>,
    drafts: Vec<Draft>,
    refusals: Vec<(L4Addr, Arc<PortKey>, Option<Arc<Refusal>>)>,
    /// Refused claims to addresses that still lead to backends of the service, as before the start.
    without_effect: BTreeSet<(L4Addr, Arc<PortKey>)>,
    omitted: usize,
    drains: Vec<(ServiceName, DrainCause)>,
    /// What observers of the node have reported.
    happened: Vec<Event>,
    /// Entries with an event that reports that the maps do not contain them yet.
    pending: BTreeMap<ServiceId, Pending>,
    /// The times of the changes that slices reported in this round, with the slice's service.
    triggers: Vec<(ServiceName, u64)>,
    /// The oldest such time for each service that is not correct in the maps yet.
    waiting: BTreeMap<ServiceName, u64>,
}

impl EventRecorder {
    pub(super) fn new(found: &Realised) -> Self {
        let tags = found.services.values().filter_map(|entry| entry.tag);
        let known = tags.map(|tag| (tag.service, tag.port)).collect();
        let had_packets = !found.uplinks.is_empty() || !found.outside.is_empty();
        let (found, addresses) = (found.services.clone(), found.frontends.clone());
        Self { found, known, addresses, had_packets, ..Self::default() }
    }

    pub(super) fn is_recorded(&self, source: Source) -> bool {
        self.recorded.contains(&source)
    }

    /// Records a list that changes. Lists that become empty matter most, so some space is reserved for them.
    pub(super) fn note(&mut self, draft: impl FnOnce() -> Draft, empties: bool) {
        let room = if empties { 2 * MAX_EVENTS } else { MAX_EVENTS };
        if self.drafts.len() < room {
            self.drafts.push(draft());
        } else {
            self.omitted += 1;
        }
    }

    /// Records that the maps have the address only since this round. A first start, or one after a reboot, is one event.
    pub(super) fn note_gained(&mut self, address: L4Addr) {
        if !self.known.is_empty() {
            self.gained.push(address);
        }
    }

    /// Adds to the draft about the port, or to this one if there is none.
    pub(super) fn draft_of(&mut self, id: ServiceId, draft: impl FnOnce() -> Draft, add: impl FnOnce(&mut Draft)) {
        match self.drafts.iter_mut().find(|draft| draft.id == id) {
            Some(draft) => add(draft),
            None => self.note(
                || {
                    let mut draft = draft();
                    add(&mut draft);
                    draft
                },
                false,
            ),
        }
    }

    /// Records how the addresses of a port change. Without a draft about the port, makes this one, if there is one.
    pub(super) fn note_addresses(
        &mut self,
        id: ServiceId,
        addresses: Box<AddressChange>,
        draft: Option<impl FnOnce() -> Draft>,
    ) {
        match (self.drafts.iter_mut().find(|draft| draft.id == id), draft) {
            (Some(draft), _) => draft.addresses = Some(addresses),
            (None, Some(draft)) => self.note(|| Draft { addresses: Some(addresses), ..draft() }, false),
            (None, None) => {}
        }
    }

    /// The addresses that the drafts withdraw, with the port that loses them.
    pub(super) fn withdrawn(&self) -> impl Iterator<Item = (&PortKey, L4Addr)> {
        let changes = self.drafts.iter().filter_map(|draft| draft.addresses.as_deref().map(|it| (&*draft.key, it)));
        changes.flat_map(|(key, change)| change.withdrawn.shown.iter().map(move |address| (key, *address)))
    }

    /// Whether the list was found at the start, and no event of this run reports its change.
    pub(super) fn is_news_of_found(&self, id: ServiceId) -> bool {
        let is_recorded = || self.pending.contains_key(&id) || self.drafts.iter().any(|draft| draft.id == id);
        self.found.contains_key(&id) && !is_recorded()
    }

    /// Records that the source of the list has replaced it.
    pub(super) fn forget_found(&mut self, id: ServiceId) {
        self.found.remove(&id);
        self.waiting_causes.remove(&id);
        self.kept_losses.remove(&id);
    }

    /// Records what changed a list before its source has reported everything.
    pub(super) fn note_waiting(&mut self, id: ServiceId, trigger: &Trigger) {
        if self.found.contains_key(&id) {
            self.waiting_causes.insert(id, trigger.clone());
        }
    }

    /// Records the difference between the service's refused claims to the address before and now.
    pub(super) fn note_refusals(&mut self, address: L4Addr, before: Refusals, now: &Refusals) {
        if *now == before || self.refusals.len() >= MAX_EVENTS {
            return;
        }
        let ended = before.into_iter().filter(|(key, _)| now.iter().all(|(refused, _)| refused != key));
        let ended = ended.map(|(key, _)| (address, key, None));
        self.refusals.extend(ended.chain(now.iter().cloned().map(|(key, why)| (address, key, Some(why)))));
    }

    /// Records that the claim to an address from before the start is refused.
    pub(super) fn note_refusal(&mut self, address: L4Addr, key: &Arc<PortKey>, why: &Arc<Refusal>) {
        if self.refusals.len() < MAX_EVENTS {
            self.refusals.push((address, Arc::clone(key), Some(Arc::clone(why))));
        }
    }

    /// Records the time of the change that the slice reports, if it is known.
    pub(super) fn note_trigger(&mut self, trigger: &Trigger) {
        if let Trigger::Slice(slice) = trigger
            && let Some(triggered) = slice.origin.triggered
            && self.is_recorded(slice.source)
            && self.triggers.len() < MAX_TRIGGERS
        {
            self.triggers.push((slice.service.clone(), triggered));
        }
    }

    /// Records that a drain began or ended, also if no list changes.
    pub(super) fn note_drain(&mut self, name: &ServiceName, cause: &DrainCause) {
        if self.drains.len() < MAX_EVENTS {
            self.drains.push((name.clone(), cause.clone()));
        } else {
            self.omitted += 1;
        }
    }

    pub(super) fn note_happened(&mut self, event: &Event) {
        if self.happened.len() < MAX_EVENTS {
            self.happened.push(event.clone());
        } else {
            self.omitted += 1;
        }
    }

    pub(super) fn finish_round(&mut self, context: &Context<'_>) -> Vec<Event> {
        let mut events = Events::default();
        self.add_lists(context, &mut events);
        self.add_gained(context, &mut events);
        self.add_drains(context, &mut events);
        Self::add_holds(context, &mut events);
        self.add_claims(context, &mut events);
        self.add_kernel_results(context, &mut events);
        Self::add_repairs(context, &mut events);
        std::mem::take(&mut self.happened).into_iter().for_each(|event| events.push(event));
        self.add_sources_and_pruned(context, &mut events);
        let omitted = events.omitted + std::mem::take(&mut self.omitted);
        let mut events = events.events;
        if omitted > 0 {
            let detail = format!("{omitted} more changes at the same time are not recorded individually");
            events.push(Event::for_daemon(What::More, detail));
        }
        events
    }

    fn add_lists(&mut self, context: &Context<'_>, events: &mut Events) {
        let mut drafts = std::mem::take(&mut self.drafts);
        // The sort is stable. Emptied ports come first, because not all events may fit.
        drafts.sort_by_key(|draft| draft.what() != What::Emptied);
        for draft in &drafts {
            let kernel = context.kernel_of(draft);
            let (id, key) = (draft.id, &draft.key);
            let is_pending = matches!(kernel, Kernel::Failed(_) | Kernel::Deferred);
            let refused = if draft.may_have_refused { context.refused_backends(key) } else { Addresses::default() };
            let is_inherited =
                !self.is_recorded(draft.source) && matches!(draft.trigger, Trigger::Slice(_) | Trigger::Service(_));
            if let Some(event) = events.entry(key, || draft.event()) {
                event.kernel = kernel;
                event.refused = refused;
                if is_inherited {
                    let detail = event.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
                    event.detail = Some(format!("changed {NOT_SEEN}{detail}").into());
                }
            }
            if is_pending && self.pending.len() < MAX_PENDING {
                let earlier = self.pending.remove(&id);
                self.pending.insert(id, Pending::new(draft, earlier));
            } else if self.pending.get(&id).is_some_and(|pending| context.is_done(id, pending)) {
                self.pending.remove(&id);
            }
        }
    }

    /// Adds events about what is served since a restart, according to the first report of a source.
    fn add_gained(&mut self, context: &Context<'_>, events: &mut Events) {
        for address in std::mem::take(&mut self.gained) {
            let owner = context.rows.get(&address).and_then(|row| row.owner());
            let Some((claim, id)) = owner.filter(|(claim, _)| !self.is_recorded(claim.source)) else { continue };
            let key = &claim.key;
            if context.stood.refused.contains(&address) {
                let detail = format!("{address} is served; the previous run of nodelb refused it");
                let event = context.about_address(key, What::Admitted, address, detail);
                // The cause is not known: it may be the configuration.
                events.push(Event { cause: Cause::default(), ..event });
                continue;
            }
            let is_new = self.known.insert(OwnerTag::hashes_of(key));
            let list = context.realised.services.get(&id).filter(|_| is_new);
            // What its source reports next is a change.
            self.found.extend(list.map(|entry| (id, Arc::clone(entry))));
            let new = || Event {
                added: list.into_iter().flat_map(|entry| backends_of(&entry.cluster)).map(|(at, _)| at).collect(),
                kernel: Kernel::Done,
                detail: Some(NOT_SEEN.into()),
                ..context.about_port(key, if is_new { What::Added } else { What::Changed })
            };
            if let Some(event) = events.entry(key, new) {
                event.about_frontend(address);
            }
        }
    }

    /// Adds events about drains that are not the cause of another event.
    fn add_drains(&mut self, context: &Context<'_>, events: &mut Events) {
        for (name, cause) in std::mem::take(&mut self.drains) {
            let is_about = |event: &Event| {
                event.cause.origin.object == *cause.text() && event.port.as_ref().is_some_and(|key| key.service == name)
            };
            if !events.events.iter().any(is_about) {
                events.push(match context.first_port(&name) {
                    Some(key) => {
                        let of_drain = Trigger::Drain(cause.clone(), Arc::default()).cause();
                        Event::for_port(&key, context.source_of(&key), what_of(&cause), of_drain)
                    }
                    None => Event::for_daemon(what_of(&cause), format!("{name}: {}", cause.text())),
                });
            }
        }
    }

    fn add_holds(context: &Context<'_>, events: &mut Events) {
        for port in context.round.held.iter().filter(|port| !context.stood.held.contains(&port.key)) {
            let new = || Event::for_port(&port.key, context.source_of(&port.key), What::Held, port.cause.clone());
            if let Some(event) = events.entry(&port.key, new) {
                event.what = What::Held;
                event.cause = port.cause.clone();
                event.held = port.backends.iter().copied().collect();
                event.refused = context.refused_backends(&port.key);
            }
        }
        for release in &context.round.released {
            let key = &release.port.key;
            let new = || Event::for_port(key, context.source_of(key), What::Released, release.cause.clone());
            let Some(event) = events.entry(key, new) else { continue };
            let what = event.what;
            event.what = match release.reason {
                ReleaseReason::Deleted if what == What::Removed => what,
                ReleaseReason::Emptied | ReleaseReason::Expired if what == What::Emptied => what,
                _ => What::Released,
            };
            event.detail = Some(match release.reason {
                // The cause is the end of the hold.
                ReleaseReason::Expired => "connections are refused".into(),
                reason => reason.to_string().into(),
            });
        }
    }

    fn add_claims(&mut self, context: &Context<'_>, events: &mut Events) {
        let refused = |address: L4Addr, key: &Arc<PortKey>, why: &Refusal| {
            context.about_address(key, What::Refused, address, format!("{address}: {why}"))
        };
        for (address, key, why) in std::mem::take(&mut self.refusals) {
            let claim = (address, key);
            let had_no_effect = self.without_effect.remove(&claim);
            let (address, key) = &claim;
            match why {
                Some(_) if context.is_served(*address, key) => drop(self.without_effect.insert(claim)),
                Some(why) => events.push(refused(*address, key, &why)),
                None if had_no_effect => {}
                None => {
                    events.push(context.about_address(key, What::Admitted, *address, format!("{address} is served")));
                }
            }
        }
        self.without_effect.retain(|(address, key)| {
            let is_served = context.is_served(*address, key);
            if let Some(why) = context.refusal(*address, key).filter(|_| !is_served) {
                events.push(refused(*address, key, why));
            }
            is_served
        });
        let is_news = |it: &&super::AddressConflict| {
            let stood = &context.stood.conflicts;
            stood.is_empty() || !stood.contains(&(it.address, Arc::clone(&it.claimant)))
        };
        for it in context.round.conflicts.iter().filter(is_news) {
            let is_served = context.is_served(it.address, &it.claimant);
            let text = if is_served { as_before(&it.text) } else { it.text.to_string() };
            events.push(context.about_address(&it.claimant, What::Conflict, it.address, text));
        }
        for it in &context.round.takeovers {
            events.push(context.about_address(&it.owner, What::TakenOver, it.address, it.to_string()));
        }
    }

    /// Adds events about entries that the maps did not accept, and about those that they have accepted since.
    fn add_kernel_results(&mut self, context: &Context<'_>, events: &mut Events) {
        for (address, error) in &context.round.errors {
            let Some(key) = context.owner_of(*address) else { continue };
            if let Some(event) = events.entry(key, || context.about_port(key, What::Failed)) {
                event.about_frontend(*address);
                event.kernel = Kernel::Failed(Arc::clone(error));
            }
        }
        if context.round.done > 0 {
            let pending = std::mem::take(&mut self.pending);
            let (done, pending): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|(id, pending)| context.is_done(*id, pending));
            self.pending.extend(pending);
            for (_, Pending { key, .. }) in done {
                events.entry(&key, || context.healed(&key));
            }
        }
        for address in &context.round.healed {
            let Some(key) = context.owner_of(*address) else { continue };
            if let Some(event) = events.entry(key, || context.healed(key)) {
                event.about_frontend(*address);
            }
        }
    }

    /// Adds events about changes to the maps that another program made.
    fn add_repairs(context: &Context<'_>, events: &mut Events) {
        for drift in &context.round.repaired {
            let frontend = match drift.key {
                EntryKey::Frontend(address) | EntryKey::Outside(address) => Some(address),
                EntryKey::Service(_) | EntryKey::NodeAddress(_) | EntryKey::SourceRange(..) | EntryKey::Uplink(_) => {
                    None
                }
            };
            let owner = drift.owner.as_ref().or_else(|| context.owner_of(frontend?));
            let event = match owner {
                Some(key) => Event::for_port(key, context.source_of(key), What::Repaired, Cause::default()),
                None => Event::for_daemon(What::Repaired, ""),
            };
            let detail = Some(format!("{drift}: changed by another process").into());
            events.push(Event { frontends: frontend.into_iter().collect(), kernel: Kernel::Done, detail, ..event });
        }
    }

    fn add_sources_and_pruned(&mut self, context: &Context<'_>, events: &mut Events) {
        for source in context.config.sources.iter().copied() {
            if !context.table.is_synced(source) || self.is_recorded(source) {
                continue;
            }
            self.recorded.insert(source);
            let mut read = counted(context.table.services_of(source).count(), "service");
            if source == Source::Kubernetes {
                read += &format!(" and {}", counted(context.table.slices_of(source).count(), "slice"));
            }
            let incomplete = context.table.incomplete(source).map(|what| format!("; not read: {what}"));
            let detail = format!("{source}: {read} at the start{}", incomplete.unwrap_or_default());
            let kernel = if context.round.failed == 0 { Kernel::Done } else { Kernel::Deferred };
            events.push(Event { source: Some(source), kernel, ..Event::for_daemon(What::Synced, detail) });
        }
        if context.is_pruned {
            self.addresses.clear();
        }
        if context.is_pruned && !self.found.is_empty() {
            (self.found, self.known) = (OrdMap::new(), BTreeSet::new());
            self.waiting_causes.clear();
        }
        for former in &context.round.former {
            let kernel = if context.round.failed == 0 { Kernel::Done } else { Kernel::Deferred };
            events.push(Event { kernel, ..former.clone() });
        }
        if !context.round.unnamed.is_empty() {
            let frontends = context.round.unnamed.clone();
            let detail = format!("{} that no source describes", counted(frontends.count(), "frontend"));
            events.push(Event { frontends, ..Event::for_daemon(What::Pruned, detail) });
        }
    }

    /// The times of the slice changes that the maps contain now.
    pub(super) fn take_triggers(&mut self) -> Vec<u64> {
        let EventRecorder { pending, triggers, waiting, .. } = self;
        let mut done = Vec::new();
        if triggers.is_empty() && waiting.is_empty() {
            return done;
        }
        let pending: BTreeSet<&ServiceName> = pending.values().map(|pending| &pending.key.service).collect();
        waiting.retain(|name, triggered| {
            let is_pending = pending.contains(name);
            if !is_pending {
                done.push(*triggered);
            }
            is_pending
        });
        for (name, triggered) in triggers.drain(..) {
            if !pending.contains(&name) {
                done.push(triggered);
            } else if let Some(oldest) = waiting.get_mut(&name) {
                *oldest = triggered.min(*oldest);
            } else if waiting.len() < MAX_TRIGGERS {
                waiting.insert(name, triggered);
            }
        }
        done
    }
}

#[cfg(test)]
#[path = "tests/event_recorder.rs"]
mod tests;

//! The rule that a missing report is no evidence of removal. An entry that was in the maps at the start, and that no
//! source has described since, is removed only when its own source has reported everything or the operator has disabled
//! that source. The rule is the same for all sources. This module also provides the report about entries that are kept
//! because of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use crate::before::BEFORE_START;
use crate::config::EngineConfig;
use crate::model::addr::L4Addr;
use crate::model::drain;
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{FrontendEntry, Realised, ServiceEntry, ServiceId, Slot};
use crate::state::owner::{IdOwner, OwnerTag, hash_of};
use crate::state::status::Status;

/// Service ports that were in the maps at the start and are kept although no source describes them now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub source: Source,
    pub ports: usize,
    pub because: KeptBecause,
}

/// Why a missing report of a source does not count as removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptBecause {
    /// The source was used before, and the configuration does not name it.
    NotConfigured,
    /// The source could not read everything. The text names the missing part.
    Incomplete(Arc<str>),
}

/// How far the sources have reported, and what follows for the entries that were in the maps at the start.
#[derive(Debug)]
pub(super) struct SyncState {
    /// Sources that existed before, but are neither configured nor disabled by the operator.
    pub(super) absent: BTreeSet<Source>,
    /// Whether a source has reported that it is synced, or changed that report, since the last prune.
    pub(super) is_prune_due: bool,
    /// Whether every entry was removed that no source describes.
    pub(super) is_pruned: bool,
    /// Whether every source is synced and the first full reconcile after that is complete.
    pub(super) is_ready: bool,
    /// The reason why an address waits for each source. Many addresses share it during a start.
    why_waiting: BTreeMap<Source, Arc<str>>,
}

impl SyncState {
    /// Creates the state for maps with this content. The entries in the maps show which sources were used before.
    pub(super) fn new(config: &EngineConfig, realised: &Realised) -> Self {
        let in_kernel = realised.services.values().filter_map(|entry| Some(entry.tag?.source));
        let before = in_kernel.chain(config.previous_sources.iter().copied());
        let is_absent = |source: &Source| !config.sources.contains(source) && !config.disabled_sources.contains(source);
        let why = |source| format!("it stays as it was {BEFORE_START}: {source} has not reported everything yet");
        Self {
            absent: before.filter(is_absent).collect(),
            is_prune_due: true,
            is_pruned: false,
            is_ready: false,
            why_waiting: Source::ALL.into_iter().map(|source| (source, why(source).into())).collect(),
        }
    }
}

impl Engine {
    /// The sources that have reported everything, as entries record them: an entry of such a source may be removed if
    /// no source describes it. `None` stands for entries without a source and is included only if all sources are.
    pub(super) fn complete_sources(&self) -> BTreeSet<Option<Source>> {
        let mut complete: BTreeSet<Option<Source>> =
            Source::ALL.into_iter().filter(|it| self.is_source_complete(*it)).map(Some).collect();
        if complete.len() == Source::ALL.len() {
            complete.insert(None);
        }
        complete
    }

    fn is_source_complete(&self, source: Source) -> bool {
        if self.config.sources.contains(&source) {
            return self.table.is_synced(source) && self.table.incomplete(source).is_none();
        }
        !self.sync.absent.contains(&source)
    }

    /// Whether the source has reported everything about the service that it described.
    pub(super) fn is_complete_for(&self, owner: &IdOwner) -> bool {
        let is_read = || self.table.is_read(owner.source, &owner.key.service.namespace);
        self.is_source_complete(owner.source) || self.config.sources.contains(&owner.source) && is_read()
    }

    /// Records that the entry now belongs to this source. `was_owned` says whether it belonged to another source
    /// before.
    pub(super) fn note_other_source(&mut self, id: ServiceId, was_owned: bool, source: Source) {
        self.deferred.note_change(id);
        if self.unsynced().is_empty() && self.is_source_complete(source) {
            self.at_start.inherited.remove(&id);
        } else if was_owned && !self.sync.is_pruned {
            self.at_start.inherited.insert(id);
        }
    }

    /// Whether the source that describes the service has reported everything it had at the start, except what it could
    /// not read.
    pub(super) fn is_source_synced(&self, id: ServiceId) -> bool {
        self.owners.get(&id).is_none_or(|owner| self.table.is_synced(owner.source))
    }

    /// The list in the maps as nodelb's own checks and drains change it before its source has reported everything: these are
    /// facts of this run. `None` if they change nothing. A backend that has failed or is drained goes, and one returns that
    /// nothing else keeps out of the latest report. If that leaves none, the report decides, unless it has none either.
    pub(super) fn changed_by_checks(&self, id: ServiceId, wanted: &ServiceEntry) -> Option<Arc<ServiceEntry>> {
        let actual = self.realised.services.get(&id)?;
        let name = &self.owners.get(&id)?.key.service;
        let (quarantine, drains) = (self.table.quarantine(name), self.table.drains(name));
        let is_out = |slot: &Slot| {
            let backend = (slot.addr.addr, slot.addr.port);
            quarantine.is_some_and(|failed| failed.contains_key(&backend))
                || drains.is_some_and(|drains| drain::find(drains, backend).is_some())
        };
        let returns = |slot: &Slot| self.at_start.was_kept_out(name, (slot.addr.addr, slot.addr.port)) && !is_out(slot);
        let merged = |actual: &Arc<[Slot]>, wanted: &Arc<[Slot]>| {
            let is_new = |slot: &&Slot| actual.binary_search_by_key(&slot.addr, |slot| slot.addr).is_err();
            let stay = actual.iter().filter(|slot| !is_out(slot));
            let mut slots: Vec<Slot> =
                stay.chain(wanted.iter().filter(is_new).filter(|slot| returns(slot))).copied().collect();
            slots.sort_by_key(|slot| slot.addr);
            if !slots.is_empty() {
                slots.into()
            } else if actual.is_empty() || wanted.is_empty() {
                Arc::clone(actual)
            } else {
                Arc::clone(wanted)
            }
        };
        let (cluster, local) = (merged(&actual.cluster, &wanted.cluster), merged(&actual.local, &wanted.local));
        let is_changed = cluster != actual.cluster || local != actual.local;
        let has_backends = actual.has_backends || wanted.has_backends;
        // Its rings may not fit next to the list that it replaces.
        let has_rings = wanted.has_rings;
        is_changed
            .then(|| Arc::new(ServiceEntry { cluster, local, has_backends, has_rings, ..ServiceEntry::clone(actual) }))
    }

    /// Whether the list is one of the start that its source has not reported, so that only checks and drains change it.
    pub(super) fn is_unreported(&self, id: ServiceId) -> bool {
        !self.is_source_synced(id) && self.at_start.inherited.contains(&id)
    }

    /// Whether an entry may be removed that was in the maps at the start and has not been desired since all sources are
    /// synced. This requires that its source, or the source that describes its service now, has reported everything.
    pub(super) fn may_go(&self, id: ServiceId) -> bool {
        if !self.unsynced().is_empty() {
            return false;
        }
        match self.ids.orphan(id) {
            Some(tag) => self.complete_sources().contains(&tag.map(|tag| tag.source)),
            None => self.owners.get(&id).is_none_or(|owner| self.is_complete_for(owner)),
        }
    }

    /// Whether the address still points at a service that no source has described since the start, and that may take
    /// precedence over the service that would get the address now.
    pub(super) fn is_reserved(&self, address: &L4Addr, entry: &FrontendEntry) -> bool {
        let Some(actual) = self.realised.frontends.get(address).filter(|actual| actual.service != entry.service) else {
            return false;
        };
        let Some(before) = self.ids.orphan(actual.service).flatten() else { return false };
        let claim = self.rows.get(address).and_then(|row| row.owner()).map(|(claim, _)| claim);
        // A source reports a service with all its ports, so no missing report can describe another port of the service.
        if claim.is_some_and(|claim| before.is_same_service(OwnerTag::new(&claim.key, claim.source))) {
            return false;
        }
        let age = claim.map(|claim| (claim.source, claim.created));
        let is_outranked = before.source == Source::Kubernetes && age == Some((Source::Files, None));
        !is_outranked && !self.complete_sources().contains(&Some(before.source))
    }

    /// Whether an address that reaches a backend must not start to refuse connections yet, because its backends may be
    /// among what has not been reported.
    pub(super) fn is_emptiness_doubtful(&self, address: &L4Addr, service: ServiceId) -> bool {
        let Some(actual) = self.realised.frontends.get(address) else { return false };
        let is_missing =
            |owner: &IdOwner| self.table.incomplete(owner.source).is_some() && !self.is_complete_for(owner);
        let is_incomplete = self.owners.get(&service).is_some_and(is_missing);
        if !self.unsynced().is_empty() {
            return self.at_start.realised.frontends.contains_key(address) || is_incomplete;
        }
        if is_incomplete && self.desired.services.contains_key(&actual.service) {
            // The service that the address points at is still described, and the new owner's backends may be in what
            // its source could not read.
            return true;
        }
        if is_incomplete && self.ids.orphan(actual.service).is_some() {
            return true;
        }
        let is_own = actual.service == service && self.at_start.inherited.contains(&actual.service);
        // An entry of an earlier nodelb, which does not record its source.
        is_own || self.ids.orphan(actual.service) == Some(None) && !self.may_go(actual.service)
    }

    /// A refused address that stayed in the maps until now has been refused for its clients since this round.
    pub(super) fn date_refusals(&mut self, now: Moment) {
        for address in std::mem::take(&mut self.removed) {
            if let Some(row) = self.rows.get_mut(&address).filter(|row| row.owner().is_none()) {
                Arc::make_mut(row).date_refusal(now);
            }
        }
    }

    /// The status of an address that the maps do not contain yet as its owner requests, and why, if this is deliberate.
    pub(super) fn status_of_waiting(&self, address: L4Addr, entry: &FrontendEntry) -> (Status, Option<Arc<str>>) {
        // By the entry of this port, or of another port of the service or of another source.
        let owner = self.owners.get(&entry.service).filter(|_| !self.sync.is_pruned);
        let is_served = owner.is_some_and(|owner| self.realised.serves(address, hash_of(&owner.key.service)));
        match self.why_pending(address, entry) {
            why if is_served => {
                let earlier = || "the earlier backends stay in use until its source has reported everything".into();
                (Status::Kept, Some(why.unwrap_or_else(earlier)))
            }
            why if self.realised.refuses(address) => (Status::NoBackends, why),
            why => (Status::Pending, why),
        }
    }

    /// Why the maps deliberately do not contain yet what the owner of the address requests.
    fn why_pending(&self, address: L4Addr, entry: &FrontendEntry) -> Option<Arc<str>> {
        if self.sync.is_pruned {
            return None;
        }
        if self.is_reserved(&address, entry) {
            let actual = self.realised.frontends.get(&address)?;
            let source = self.ids.orphan(actual.service)??.source;
            let text =
                format!("{address} stays with the service that had it {BEFORE_START}: {}", self.why_kept(source));
            return Some(text.into());
        }
        let source = self.owners.get(&entry.service)?.source;
        if !self.table.is_synced(source) {
            let Realised { frontends, services, .. } = &self.at_start.realised;
            let was_served = frontends.contains_key(&address) || services.contains_key(&entry.service);
            return self.sync.why_waiting.get(&source).filter(|_| was_served).cloned();
        }
        match self.table.incomplete(source) {
            Some(what) => {
                Some(format!("the earlier backends stay in use: {source} cannot be read completely: {what}").into())
            }
            // Another source may describe what is missing.
            None => self.unsynced().first().and_then(|source| self.sync.why_waiting.get(source)).cloned(),
        }
    }

    fn why_kept(&self, source: Source) -> String {
        match (self.sync.absent.contains(&source), self.table.incomplete(source)) {
            (true, _) => format!("{source} described it and is no longer configured"),
            (false, Some(what)) => format!("{source} described it and cannot be read completely: {what}"),
            (false, None) => format!("{source} described it and has not reported everything yet"),
        }
    }

    /// The service ports that are kept although every configured source is synced, by source.
    pub fn kept(&self) -> Vec<Kept> {
        if self.sync.is_pruned || !self.unsynced().is_empty() {
            return Vec::new();
        }
        let is_in_doubt = |source: &Source| !self.is_source_complete(*source);
        let doubted: Vec<Source> = Source::ALL.into_iter().filter(is_in_doubt).collect();
        let mut ports: BTreeMap<Source, usize> = doubted.iter().map(|source| (*source, 0)).collect();
        // An entry without a source is counted with the source that most likely owns it.
        let likeliest = doubted.iter().copied().max_by_key(|source| self.sync.absent.contains(source));
        for source in self.ids.orphans().filter_map(|(_, source)| source.or(likeliest)) {
            *ports.entry(source).or_default() += 1;
        }
        for owner in self.owners.values().filter(|owner| self.sync.absent.contains(&owner.source)) {
            *ports.entry(owner.source).or_default() += 1;
        }
        let kept = |source: Source| {
            let because = match self.table.incomplete(source) {
                _ if self.sync.absent.contains(&source) => KeptBecause::NotConfigured,
                what => KeptBecause::Incomplete(what.cloned().unwrap_or_default()),
            };
            Kept { source, ports: ports.get(&source).copied().unwrap_or(0), because }
        };
        doubted.into_iter().map(kept).collect()
    }
}

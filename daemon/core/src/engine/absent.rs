//! What follows from [`crate::awaited`] for the entries that were in the maps at the start, and the report about those that
//! are kept because of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use crate::awaited::{Awaited, Sources};
use crate::before::BEFORE_START;
use crate::config::EngineConfig;
use crate::model::addr::L4Addr;
use crate::model::drain;
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{FrontendEntry, Realised, ServiceEntry, ServiceId, Slot};
use crate::state::owner::{OwnerTag, hash_of};
use crate::state::status::Status;

/// Service ports that were in the maps at the start and are kept although no source describes them now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub source: Source,
    pub ports: usize,
    pub because: Awaited,
}

/// How far the sources have reported, and what follows for the entries that were in the maps at the start.
#[derive(Debug)]
pub(super) struct SyncState {
    /// See [`Sources::absent`].
    pub(super) absent: BTreeSet<Source>,
    /// Whether a source has reported that it is synced or has recalled what it had stored, or changed that report, since
    /// the last prune.
    pub(super) is_prune_due: bool,
    /// Whether every entry was removed that no source describes.
    pub(super) is_pruned: bool,
    /// Whether it was true once: then nothing in the maps is from before the start.
    pub(super) was_pruned: bool,
    /// Whether every source is synced and the first full reconcile after that is complete.
    pub(super) is_ready: bool,
    /// The service ports that a source has recalled, and the source whose ports the next round adds.
    pub(super) recalled: BTreeSet<ServiceId>,
    pub(super) recall_due: Option<Source>,
    /// The reason why an address waits for each source. Many addresses share it during a start.
    why_waiting: BTreeMap<Source, Arc<str>>,
}

fn as_it_was(awaited: &Awaited) -> String {
    format!("it stays as it was {BEFORE_START}, {awaited}")
}

impl SyncState {
    /// Creates the state for maps with this content. The entries in the maps show which sources were used before.
    pub(super) fn new(config: &EngineConfig, realised: &Realised) -> Self {
        let in_kernel = realised.services.values().filter_map(|entry| Some(entry.tag?.source));
        let before = in_kernel.chain(config.previous_sources.iter().copied());
        let is_absent = |source: &Source| !config.sources.contains(source) && !config.disabled_sources.contains(source);
        let why = |source| as_it_was(&Awaited::Unsynced(source));
        Self {
            absent: before.filter(is_absent).collect(),
            is_prune_due: true,
            is_pruned: false,
            was_pruned: false,
            is_ready: false,
            recalled: BTreeSet::new(),
            recall_due: None,
            why_waiting: Source::ALL.into_iter().map(|source| (source, why(source).into())).collect(),
        }
    }
}

impl Engine {
    pub(super) fn sources(&self) -> Sources<'_> {
        let Self { config, table, owners, realised, .. } = self;
        Sources { config, facts: table, absent: &self.sync.absent, owners, realised }
    }

    /// Whether an entry may be removed that was in the maps at the start and is not desired, and whether it is certain that
    /// it is desired as it is.
    pub(super) fn may_go(&self, id: ServiceId) -> bool {
        self.sources().awaited(id).is_none()
    }

    /// Whether a source describes the entry that has reported what it can, and no source may have it, too.
    pub(super) fn is_confirmed(&self, id: ServiceId) -> bool {
        let is_described = self.owners.contains_key(&id);
        is_described
            && matches!(self.sources().awaited(id), None | Some(Awaited::Incomplete(..) | Awaited::NotConfigured(_)))
    }

    /// Records which service ports a source has recalled.
    pub(super) fn note_recalled(&mut self) {
        if let Some(source) = self.sync.recall_due.take() {
            let recalled = self.owners.iter().filter(|(_, owner)| owner.source == source);
            self.sync.recalled = recalled.map(|(id, _)| *id).collect();
        }
    }

    /// Records that the entry now belongs to this source. `was_owned` says whether it belonged to another source
    /// before.
    pub(super) fn note_other_source(&mut self, id: ServiceId, was_owned: bool, source: Source) {
        self.deferred.note_change(id);
        if self.sources().awaited_from(source, None).is_none() {
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
        !is_outranked && self.sources().missing(before.source, None).is_some()
    }

    /// Whether an address that reaches a backend must not start to refuse connections yet, because its backends may be
    /// among what has not been reported.
    pub(super) fn is_emptiness_doubtful(&self, address: &L4Addr, service: ServiceId) -> bool {
        let Some(actual) = self.realised.frontends.get(address) else { return false };
        let is_unconfirmed = self.at_start.realised.frontends.contains_key(address);
        let is_own = actual.service == service && self.at_start.inherited.contains(&actual.service);
        // An entry of an earlier nodelb does not record its source.
        is_own
            || is_unconfirmed && self.owners.contains_key(&service) && !self.may_go(service)
            || self.ids.orphan(actual.service) == Some(None) && !self.may_go(actual.service)
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
            let awaited = self.sources().awaited(self.realised.frontends.get(&address)?.service)?;
            return Some(format!("{address} stays with the service that had it {BEFORE_START}, {awaited}").into());
        }
        let Realised { frontends, services, .. } = &self.at_start.realised;
        let was_served = || frontends.contains_key(&address) || services.contains_key(&entry.service);
        match self.sources().awaited(entry.service)? {
            Awaited::Unsynced(source) => self.sync.why_waiting.get(&source).filter(|_| was_served()).cloned(),
            awaited => Some(as_it_was(&awaited).into()),
        }
    }

    /// The service ports that are kept although every configured source is synced, by source.
    pub fn kept(&self) -> Vec<Kept> {
        if self.sync.is_pruned || !self.unsynced().is_empty() {
            return Vec::new();
        }
        let missing = |source: Source| Some((source, self.sources().missing(source, None)?));
        let doubted: Vec<(Source, Awaited)> = Source::ALL.into_iter().filter_map(missing).collect();
        let mut ports: BTreeMap<Source, usize> = doubted.iter().map(|(source, _)| (*source, 0)).collect();
        // An entry without a source is counted with the source that most likely owns it.
        let likeliest = ports.keys().copied().max_by_key(|source| self.sync.absent.contains(source));
        for source in self.ids.orphans().filter_map(|(_, source)| source.or(likeliest)) {
            *ports.entry(source).or_default() += 1;
        }
        for owner in self.owners.values().filter(|owner| self.sync.absent.contains(&owner.source)) {
            *ports.entry(owner.source).or_default() += 1;
        }
        let kept = |(source, because)| Kept { source, ports: ports.get(&source).copied().unwrap_or(0), because };
        doubted.into_iter().map(kept).collect()
    }
}

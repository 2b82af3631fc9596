//! Absence is not evidence. What the kernel held at the start and no source has described since goes only when its own
//! source has told everything, or the operator has switched that source off. One rule for all sources; owns it, and what
//! there is to report of what is kept by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use crate::config::EngineConfig;
use crate::model::addr::L4Addr;
use crate::model::service::Source;
use crate::state::entries::{FrontendEntry, Realised, ServiceId};
use crate::state::owner::OwnerTag;

/// Service ports that the kernel held at the start and that are kept, although no source describes them now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The source that described them.
    pub source: Source,
    /// Their number.
    pub ports: usize,
    /// Why they are kept.
    pub because: KeptBecause,
}

/// Why a source's silence says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptBecause {
    /// It was there before, and the configuration does not name it.
    NotConfigured,
    /// It could not read everything; what.
    Incomplete(Arc<str>),
}

/// The sources that were there before, by the kernel's entries or by what else is known, and that are neither configured
/// nor switched off.
pub(super) fn absent(config: &EngineConfig, realised: &Realised) -> BTreeSet<Source> {
    let in_kernel = realised.services.values().filter_map(|entry| Some(entry.tag?.source));
    let before = in_kernel.chain(config.formerly.iter().copied());
    before.filter(|source| !config.sources.contains(source) && !config.switched_off.contains(source)).collect()
}

impl Engine {
    /// The sources, as entries name them, of which nothing is missing: an entry of one of them that no source describes
    /// may go. `None`, an entry that does not say its source, is among them only if all are.
    pub(super) fn told_sources(&self) -> BTreeSet<Option<Source>> {
        let mut told: BTreeSet<Option<Source>> =
            Source::ALL.into_iter().filter(|it| self.has_told_all(*it)).map(Some).collect();
        if told.len() == Source::ALL.len() {
            told.insert(None);
        }
        told
    }

    fn has_told_all(&self, source: Source) -> bool {
        if self.config.sources.contains(&source) {
            return self.table.is_synced(source) && self.table.incomplete(source).is_none();
        }
        !self.absent.contains(&source)
    }

    /// The entry is this source's from now on, and was another source's if `was_owned`.
    pub(super) fn note_other_source(&mut self, id: ServiceId, was_owned: bool, source: Source) {
        self.deferred.note_change(id);
        if self.unsynced().is_empty() && self.has_told_all(source) {
            self.at_start.inherited.remove(&id);
        } else if was_owned && !self.is_pruned {
            self.at_start.inherited.insert(id);
        }
    }

    /// Whether the source that describes the service has told everything it had at the start, but for what it could not
    /// read.
    pub(super) fn is_told(&self, id: ServiceId) -> bool {
        self.owners.get(&id).is_none_or(|owner| self.table.is_synced(owner.source))
    }

    /// Whether an entry that the kernel held at the start, and that has not been wanted since all sources are synced, may
    /// be removed: nothing is missing of its source, or of the one that describes its service now.
    pub(super) fn may_go(&self, id: ServiceId) -> bool {
        if !self.unsynced().is_empty() {
            return false;
        }
        let source = || self.owners.get(&id).map(|owner| Some(owner.source));
        let source = self.ids.orphan(id).or_else(source);
        source.is_none_or(|source| self.told_sources().contains(&source))
    }

    /// Whether the kernel leads from the address to a service that no source has described since the start, and that may
    /// still own it before the one which is to get it now.
    pub(super) fn is_reserved(&self, address: &L4Addr, entry: &FrontendEntry) -> bool {
        let Some(held) = self.realised.frontends.get(address).filter(|held| held.service != entry.service) else {
            return false;
        };
        let Some(source) = self.ids.orphan_tag(held.service).map(|tag| tag.source) else { return false };
        if self.is_earlier_port(address, held) {
            return false;
        }
        let claim = self.rows.get(address).and_then(|row| row.owner()).map(|(claim, _)| (claim.source, claim.created));
        let is_outranked = source == Source::Kubernetes && claim == Some((Source::Files, None));
        !is_outranked && !self.told_sources().contains(&Some(source))
    }

    /// Whether the kernel's entry is a port, which no source describes now, of the service that owns the address now. A
    /// source reports a service with all its ports: nothing that is still missing describes this one.
    fn is_earlier_port(&self, address: &L4Addr, held: &FrontendEntry) -> bool {
        let claim = self.rows.get(address).and_then(|row| row.owner()).map(|(claim, _)| claim);
        let since = claim.map(|claim| OwnerTag::new(&claim.key, claim.source));
        let before = self.ids.orphan_tag(held.service);
        before.zip(since).is_some_and(|(before, since)| before.is_of_service(since))
    }

    /// Whether an address that leads to a backend must not refuse connections yet: what is not known yet may be what it
    /// leads to.
    pub(super) fn is_emptiness_doubtful(&self, address: &L4Addr, entry: &FrontendEntry) -> bool {
        let Some(held) = self.realised.frontends.get(address) else { return false };
        let source = self.owners.get(&entry.service).map(|owner| owner.source);
        let is_incomplete = source.is_some_and(|source| self.table.incomplete(source).is_some());
        if !self.unsynced().is_empty() {
            return self.at_start.realised.frontends.contains_key(address) || is_incomplete;
        }
        if is_incomplete && self.desired.services.contains_key(&held.service) {
            // The service that it leads to is still described, and the new owner's backends may be in what is unread.
            return true;
        }
        if is_incomplete && self.ids.orphan(held.service).is_some() {
            return true;
        }
        let is_own = held.service == entry.service && self.at_start.inherited.contains(&held.service);
        // An entry of an earlier nodelb: nothing says whose it is.
        is_own || self.ids.orphan(held.service) == Some(None) && !self.may_go(held.service)
    }

    /// Why the kernel does not have what the owner of the address asks for, where nodelb waits on purpose.
    pub(super) fn why_pending(&self, address: L4Addr, entry: &FrontendEntry) -> Option<Arc<str>> {
        if self.is_pruned {
            return None;
        }
        if self.is_reserved(&address, entry) {
            let held = self.realised.frontends.get(&address)?;
            let source = self.ids.orphan(held.service)??;
            let text =
                format!("{address} stays with the service that had it before the start: {}", self.why_kept(source));
            return Some(text.into());
        }
        let source = self.owners.get(&entry.service)?.source;
        let what = self.table.incomplete(source)?;
        Some(format!("the backends from before the start stay in use: {source} cannot be read whole: {what}").into())
    }

    fn why_kept(&self, source: Source) -> String {
        match (self.absent.contains(&source), self.table.incomplete(source)) {
            (true, _) => format!("{source} described it and is not configured"),
            (false, Some(what)) => format!("{source} described it and cannot be read whole: {what}"),
            (false, None) => format!("{source} described it and has not told everything yet"),
        }
    }

    /// What is kept although every configured source has synced, by source.
    pub fn kept(&self) -> Vec<Kept> {
        if self.is_pruned || !self.unsynced().is_empty() {
            return Vec::new();
        }
        let is_in_doubt = |source: &Source| !self.has_told_all(*source);
        let doubted: Vec<Source> = Source::ALL.into_iter().filter(is_in_doubt).collect();
        let mut ports: BTreeMap<Source, usize> = doubted.iter().map(|source| (*source, 0)).collect();
        // An entry that does not say its source is counted with what is most likely its own.
        let likeliest = doubted.iter().copied().max_by_key(|source| self.absent.contains(source));
        for source in self.ids.orphans().filter_map(|(_, source)| source.or(likeliest)) {
            *ports.entry(source).or_default() += 1;
        }
        for owner in self.owners.values().filter(|owner| self.absent.contains(&owner.source)) {
            *ports.entry(owner.source).or_default() += 1;
        }
        let kept = |source: Source| {
            let because = match self.table.incomplete(source) {
                _ if self.absent.contains(&source) => KeptBecause::NotConfigured,
                what => KeptBecause::Incomplete(what.cloned().unwrap_or_default()),
            };
            Kept { source, ports: ports.get(&source).copied().unwrap_or(0), because }
        };
        doubted.into_iter().map(kept).collect()
    }
}

//! The rule that a missing report is no evidence of removal. What the maps contain and no source describes goes when the
//! source that it belongs to has reported everything, or is disabled by the operator. Another source counts only while
//! nothing is known of it, because it may then have the address, too. The engine decides by this, and reports show it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;

use crate::config::EngineConfig;
use crate::model::service::{ServiceName, Source};
use crate::state::entries::{Realised, ServiceId};
use crate::state::owner::{IdOwner, OwnerTag};
use crate::table::Facts;

/// What an entry waits for before it may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The configuration does not name its source, which was used before.
    NotConfigured(Source),
    /// Its source has not reported everything.
    Unsynced(Source),
    /// Its source could not read everything. The text names the missing part.
    Incomplete(Source, Arc<str>),
    /// Nothing is known of another source.
    Other(Source),
    /// The entry does not record its source, and not every source has reported everything.
    AnySource,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConfigured(source) => write!(f, "because {source} is no longer configured"),
            Self::Unsynced(source) => write!(f, "until nodelb has read everything from {source}"),
            Self::Incomplete(source, what) => write!(f, "until nodelb has read everything from {source}: {what}"),
            Self::Other(source) => write!(f, "until nodelb has read {source}, which may have the address, too"),
            Self::AnySource => f.write_str("until nodelb has read everything from its source"),
        }
    }
}

/// How far the sources have reported, and what the maps contain of them.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) config: &'a EngineConfig,
    pub(crate) facts: &'a Facts,
    /// Sources that existed before, but are neither configured nor disabled by the operator.
    pub(crate) absent: &'a BTreeSet<Source>,
    pub(crate) owners: &'a OrdMap<ServiceId, IdOwner>,
    pub(crate) realised: &'a Realised,
}

impl Sources<'_> {
    /// What must be reported before it is certain what becomes of the entry, and before it may go.
    pub(crate) fn awaited(self, id: ServiceId) -> Option<Awaited> {
        match self.owners.get(&id) {
            Some(owner) => self.awaited_from(owner.source, Some(&owner.key.service)),
            None => self.awaited_by(self.realised.services.get(&id).and_then(|entry| entry.tag)),
        }
    }

    /// The same of an entry with this tag that no service of this run has. An earlier nodelb has written no tags.
    pub(crate) fn awaited_by(self, tag: Option<OwnerTag>) -> Option<Awaited> {
        let mut all = Source::ALL.into_iter();
        match tag {
            Some(tag) => self.awaited_from(tag.source, None),
            None => all.any(|source| self.missing(source, None).is_some()).then_some(Awaited::AnySource),
        }
    }

    /// The same of the entries of this source, or of the one that describes this service.
    pub(crate) fn awaited_from(self, source: Source, service: Option<&ServiceName>) -> Option<Awaited> {
        self.missing(source, service).or_else(|| self.another_unknown(source).map(Awaited::Other))
    }

    /// What the source has not reported that may be about the service, or about any.
    pub(crate) fn missing(self, source: Source, service: Option<&ServiceName>) -> Option<Awaited> {
        if !self.config.sources.contains(&source) {
            return self.absent.contains(&source).then_some(Awaited::NotConfigured(source));
        }
        if !self.facts.is_synced(source) {
            return Some(Awaited::Unsynced(source));
        }
        let what = self.facts.incomplete(source)?;
        let is_read = service.is_some_and(|service| self.facts.is_read(source, &service.namespace));
        (!is_read).then(|| Awaited::Incomplete(source, Arc::clone(what)))
    }

    /// Another source that has reported nothing, neither now nor from what it has stored.
    fn another_unknown(self, source: Source) -> Option<Source> {
        let is_unknown = |other: &Source| !self.facts.is_synced(*other) && !self.facts.is_recalled(*other);
        self.config.sources.iter().copied().find(|other| *other != source && is_unknown(other))
    }
}

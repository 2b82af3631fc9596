//! Backends that stay in use although their source emptied the service port: what is held and why, and which ports are
//! protected. Where a port is held is decided by the engine (`engine/hold.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::moment::Moment;
use crate::model::service::{PortKey, ServiceName};
use crate::state::entries::{Desired, ServiceId};
use crate::state::owner::IdOwner;
use crate::state::remembered::{Known, MAX_REMEMBERED, Remembered};

/// A service port whose last known backends are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPort {
    /// Which.
    pub key: Arc<PortKey>,
    /// What is held, each backend once, in address order.
    pub backends: Vec<L4Addr>,
    /// What emptied the port.
    pub cause: Cause,
    /// Since when.
    pub since: Moment,
    /// All of it as `/frontends` says it.
    pub text: Arc<str>,
}

impl HeldPort {
    pub(crate) fn new(key: &Arc<PortKey>, known: &Known, cause: Cause, since: Moment) -> Self {
        const SHOWN: usize = 5;
        let backends: Vec<L4Addr> = known.cluster.iter().map(|(addr, _)| *addr).collect();
        let mut list = backends.iter().take(SHOWN).map(L4Addr::to_string).collect::<Vec<_>>().join(", ");
        if backends.len() > SHOWN {
            list.push_str(&format!(" and {} more", backends.len() - SHOWN));
        }
        let stay = if backends.len() == 1 { "stays" } else { "stay" };
        let text = format!("held: {cause} left it without backends; {list} {stay} in use").into();
        Self { key: Arc::clone(key), backends, cause, since, text }
    }
}

/// A hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// What was held.
    pub port: Arc<HeldPort>,
    /// What gave it backends again; nothing in particular if it was deleted.
    pub cause: Cause,
    /// Whether the service or the port was deleted; otherwise it has backends again.
    pub is_deleted: bool,
}

/// A service port that lost its last usable backend and is not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// Which.
    pub key: Arc<PortKey>,
    /// What emptied it.
    pub cause: Cause,
}

/// Ports of protected services. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    /// The ports whose last known backends are held.
    pub(crate) held: OrdMap<ServiceId, Arc<HeldPort>>,
    /// Those of them that the journal has not been told of, for their source has not told everything.
    pub(crate) unannounced: OrdSet<ServiceId>,
    /// Every port of a protected service.
    pub(crate) protected: OrdSet<ServiceId>,
    /// What was known before the start, until a source tells of the port.
    pub(crate) remembered: Arc<BTreeMap<PortKey, Remembered>>,
}

impl Holds {
    /// Takes in what the engine before this one knew. Returns the services it is about.
    pub(crate) fn remember(&mut self, records: Vec<Remembered>) -> BTreeSet<ServiceName> {
        let remembered = Arc::make_mut(&mut self.remembered);
        let mut names = BTreeSet::new();
        for record in records.into_iter().filter(Remembered::is_plausible).take(MAX_REMEMBERED) {
            names.insert(record.port.service.clone());
            remembered.insert(record.port.clone(), record);
        }
        names
    }

    /// See `Snapshot::remembered`.
    pub(crate) fn remembered(&self, owners: &OrdMap<ServiceId, IdOwner>, desired: &Desired) -> Vec<Remembered> {
        let record = |id: &ServiceId| {
            let (owner, entry) = (owners.get(id)?, desired.services.get(id)?);
            let cause = self.held.get(id).map(|port| port.cause.clone());
            entry.has_backends.then(|| Remembered::new(&owner.key, entry, cause))
        };
        let mut records: Vec<Remembered> = self.protected.iter().filter_map(record).collect();
        let known: BTreeSet<&PortKey> = records.iter().map(|record| &record.port).collect();
        let unheard = self.remembered.values().filter(|record| !known.contains(&record.port)).cloned();
        let unheard: Vec<Remembered> = unheard.collect();
        records.extend(unheard);
        records
    }

    /// The hold on the entry, if anybody has been told of it.
    pub(crate) fn announced(&self, id: ServiceId) -> Option<&Arc<HeldPort>> {
        self.held.get(&id).filter(|_| !self.unannounced.contains(&id))
    }

    /// Every hold that anybody has been told of.
    pub(crate) fn all_announced(&self) -> impl Iterator<Item = &Arc<HeldPort>> {
        self.held.keys().filter_map(|id| self.announced(*id))
    }

    /// Whether no port is held or protected and nothing is remembered: the usual state of a port's world at a bulk start.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.protected.is_empty() && self.remembered.is_empty()
    }

    pub(crate) fn forget(&mut self, key: &PortKey) {
        if self.remembered.contains_key(key) {
            Arc::make_mut(&mut self.remembered).remove(key);
        }
    }
}

#[cfg(test)]
mod tests;

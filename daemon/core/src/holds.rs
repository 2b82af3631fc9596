//! Backends that stay in use although their source emptied the service port: what is held and why, and which ports are
//! protected. Where a port is held is decided by the engine (`engine/hold.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::addr::L4Addr;
use crate::model::cause::{Cause, Dirt};
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
    held: OrdMap<ServiceId, Arc<HeldPort>>,
    /// Those of them that the journal has not been told of, for their source has not told everything.
    unannounced: OrdSet<ServiceId>,
    /// Every port of a protected service.
    protected: OrdSet<ServiceId>,
    /// What was known before the start, until a source tells of the port.
    remembered: Arc<BTreeMap<PortKey, Remembered>>,
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

    pub(crate) fn is_held(&self, id: ServiceId) -> bool {
        !self.held.is_empty() && self.held.contains_key(&id)
    }

    pub(crate) fn set_protected(&mut self, id: ServiceId, is_protected: bool) {
        if is_protected {
            self.protected.insert(id);
        } else if self.protected.contains(&id) {
            self.protected.remove(&id);
        }
    }

    /// What was known of the port before the start.
    pub(crate) fn record(&self, key: &PortKey) -> Option<&Remembered> {
        self.remembered.get(key)
    }

    /// What was known before the start of the service's ports.
    pub(crate) fn records_of(&self, service: &ServiceName) -> impl Iterator<Item = &Remembered> {
        self.remembered.values().filter(move |record| record.port.service == *service)
    }

    /// Whether nobody has been told of the hold yet, and it has no cause.
    pub(crate) fn lacks_cause(&self, id: ServiceId) -> bool {
        let is_unknown = self.held.get(&id).is_some_and(|port| port.cause == Cause::default());
        is_unknown && self.unannounced.contains(&id)
    }

    /// The port is held from now on. Returned is what the journal is to be told of at once.
    pub(crate) fn begin(&mut self, id: ServiceId, port: HeldPort) -> Option<Arc<HeldPort>> {
        // Held before the start, and still without a backend. It does not matter whether its source has told everything:
        // this is no news of its.
        let was_held = self.remembered.get(&port.key).is_some_and(|record| record.cause.is_some());
        let port = Arc::new(port);
        self.held.insert(id, Arc::clone(&port));
        if was_held {
            return Some(port);
        }
        self.unannounced.insert(id);
        None
    }

    /// The hold is over, if there is one: the port has backends since this happened, or is gone. Returned is what the
    /// journal is to be told of.
    pub(crate) fn end(&mut self, id: ServiceId, has_backends: Option<&Dirt>) -> Option<Release> {
        if !self.is_held(id) {
            return None;
        }
        let port = self.held.remove(&id)?;
        if self.unannounced.remove(&id).is_some() {
            return None;
        }
        let cause = has_backends.map(|dirt| dirt.trigger_of(&port.key).cause()).unwrap_or_default();
        Some(Release { port, cause, is_deleted: has_backends.is_none() })
    }

    /// Nothing of the port is to be kept: it is gone, or what has its name now is another.
    pub(crate) fn forget_port(&mut self, key: &PortKey, id: Option<ServiceId>) -> Option<Release> {
        self.forget(key);
        let id = id?;
        let release = self.end(id, None);
        self.set_protected(id, false);
        release
    }

    /// Everything has been told: what was remembered of services that do not exist is of no use.
    pub(crate) fn forget_unheard(&mut self, is_known: impl Fn(&ServiceName) -> bool) {
        if !self.remembered.is_empty() {
            Arc::make_mut(&mut self.remembered).retain(|key, _| is_known(&key.service));
        }
    }

    /// The holds whose source has told everything, which the journal is to be told of now. Before that, an empty port may
    /// only not have been told yet.
    pub(crate) fn announce(&mut self, is_told: impl Fn(ServiceId) -> bool, now: Moment) -> Vec<Arc<HeldPort>> {
        let told: Vec<ServiceId> = self.unannounced.iter().copied().filter(|id| is_told(*id)).collect();
        let announce = |id: ServiceId| {
            self.unannounced.remove(&id);
            let port = self.held.get_mut(&id)?;
            Arc::make_mut(port).since = now;
            Some(Arc::clone(port))
        };
        told.into_iter().filter_map(announce).collect()
    }
}

#[cfg(test)]
mod tests;

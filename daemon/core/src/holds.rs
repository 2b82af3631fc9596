//! Backends that stay in use although their source emptied the service port: the held backends with their causes, and
//! the protected ports. The engine decides when a port is held (`engine/hold.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::addr::L4Addr;
use crate::model::cause::{Cause, DirtyReason};
use crate::model::moment::Moment;
use crate::model::service::{PortKey, ServiceName, Slice};
use crate::state::entries::{Desired, ServiceEntry, ServiceId};
use crate::state::owner::IdOwner;
use crate::state::remembered::{MAX_REMEMBERED, Remembered, Views};
use crate::table::apiservers::Apiservers;
use crate::text::listed;

/// What the text of a hold contains if the source emptied the port.
const EMPTIED: &str = "left it without backends";

/// Whether the text of a hold states that the source emptied the port; otherwise the source cannot tell the current
/// backends.
pub fn says_emptied(text: &str) -> bool {
    text.contains(EMPTIED)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPort {
    pub key: Arc<PortKey>,
    /// The held backends that are in use, each once, in address order.
    pub backends: Vec<L4Addr>,
    /// All of them, also those that are drained; empty if slices still contain them.
    pub(crate) known: Views,
    /// The object that emptied the port.
    pub cause: Cause,
    pub since: Moment,
    /// The text about the hold that `/frontends` shows.
    pub text: Arc<str>,
    /// The problem of the source, if it cannot tell the current backends; `None` if it emptied the port.
    pub problem: Option<Arc<str>>,
}

impl HeldPort {
    pub(crate) fn new(key: &Arc<PortKey>, known: Views, cause: Cause, since: Moment) -> Self {
        let (key, text) = (Arc::clone(key), Arc::default());
        let backends: Vec<L4Addr> = known.cluster.iter().map(|(addr, _)| *addr).collect();
        Self { key, known, cause, since, text, problem: None, backends: Vec::new() }.using(backends)
    }

    /// A hold on backends of this slice: its source cannot tell the current ones.
    pub(crate) fn last_known(key: &Arc<PortKey>, backends: Vec<L4Addr>, slice: &Slice, since: Moment) -> Option<Self> {
        let problem = Some(slice.problem.clone()?);
        let cause = Cause { origin: slice.origin.clone(), is_removed: false };
        Some(Self { problem, ..Self::new(key, Views::default(), cause, since) }.using(backends))
    }

    /// The held backends, in use or drained.
    pub fn all(&self) -> impl Iterator<Item = L4Addr> {
        let others = self.known.cluster.iter().map(|(at, _)| *at).filter(|at| !self.backends.contains(at));
        self.backends.iter().copied().chain(others)
    }

    /// The hold, if these are the backends in use.
    pub(crate) fn using(self, backends: Vec<L4Addr>) -> Self {
        let why = match &self.problem {
            Some(problem) => format!("{}: {problem}", self.cause.origin.object),
            None => format!("{} {EMPTIED}", self.cause),
        };
        let text = format!("held: {why}; {}", in_use(&backends)).into();
        Self { backends, text, ..self }
    }
}

/// Formats as `192.0.2.11:8080/TCP stays in use`.
fn in_use(backends: &[L4Addr]) -> String {
    const SHOWN: usize = 5;
    if backends.is_empty() {
        return "every backend is drained".into();
    }
    let stay = if backends.len() == 1 { "stays" } else { "stay" };
    format!("{} {stay} in use", listed(backends, SHOWN))
}

/// A hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub port: Arc<HeldPort>,
    /// The object that gave the port backends again; empty if the port was deleted.
    pub cause: Cause,
    pub reason: ReleaseReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum ReleaseReason {
    /// The service or the port.
    #[strum(to_string = "it was deleted")]
    Deleted,
    #[strum(to_string = "it has backends again")]
    Filled,
    /// The source knows again, and that there are none, or has not known them for longer than it may.
    #[strum(to_string = "its source has no backends for it, and connections are refused")]
    Emptied,
    /// The source has kept the backends for as long as it may.
    #[strum(to_string = "dns.hold has ended, and connections are refused")]
    Expired,
}

/// A service port that lost its last usable backend and is not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    pub id: ServiceId,
    pub key: Arc<PortKey>,
    pub cause: Cause,
    /// Whether the maps still have its backends, because it has to wait.
    pub is_kept: bool,
}

/// The ports of protected services. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    held: OrdMap<ServiceId, Arc<HeldPort>>,
    /// Held ports that have not been reported in the journal, because their source has not reported everything.
    unannounced: OrdSet<ServiceId>,
    /// Held ports with the backends that the maps had at the start.
    pub(crate) from_start: OrdSet<ServiceId>,
    /// Every port of a protected service.
    protected: OrdSet<ServiceId>,
    /// The backends from before the start, until a source reports the port.
    remembered: Arc<BTreeMap<PortKey, Remembered>>,
    /// Ports that are held, no longer held, or held with another text, since [`Holds::take_changed`].
    changed: Vec<ServiceId>,
}

impl Holds {
    /// Accepts the records of the previous engine. Returns the services they concern.
    pub(crate) fn remember(&mut self, records: Vec<Remembered>) -> BTreeSet<ServiceName> {
        let remembered = Arc::make_mut(&mut self.remembered);
        let mut names = BTreeSet::new();
        for record in records.into_iter().filter(Remembered::is_plausible).take(MAX_REMEMBERED) {
            names.insert(record.port.service.clone());
            remembered.insert(record.port.clone(), record);
        }
        names
    }

    /// The records that `Snapshot::remembered` returns.
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

    /// The hold on the entry, if it has been reported.
    pub(crate) fn announced(&self, id: ServiceId) -> Option<&Arc<HeldPort>> {
        self.held.get(&id).filter(|_| !self.unannounced.contains(&id))
    }

    pub(crate) fn all_announced(&self) -> impl Iterator<Item = &Arc<HeldPort>> {
        self.held.keys().filter_map(|id| self.announced(*id))
    }

    /// Whether no port is held or protected and nothing is remembered. This is usual while a start compiles many
    /// services.
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

    /// The hold on last known backends, because the source cannot tell the current ones.
    pub(crate) fn last_known(&self, id: ServiceId) -> Option<&Arc<HeldPort>> {
        self.held.get(&id).filter(|port| port.problem.is_some())
    }

    /// The hold has lasted since this time at least.
    pub(crate) fn date(&mut self, id: ServiceId, since: Moment) {
        if let Some(port) = self.held.get_mut(&id).filter(|port| port.since > since) {
            Arc::make_mut(port).since = since;
        }
    }

    /// Holds the port with its last known backends, now or still. Returns the hold if the journal must report it now.
    pub(crate) fn hold_last_known(&mut self, id: ServiceId, port: HeldPort) -> Option<Arc<HeldPort>> {
        let Some(since) = self.last_known(id).map(|before| before.since) else { return self.begin(id, port) };
        self.changed.push(id);
        self.held.insert(id, Arc::new(HeldPort { since, ..port }));
        None
    }

    /// All backends that are held, whether or not they are drained.
    pub(crate) fn known(&self, id: ServiceId) -> Option<&Views> {
        self.held.get(&id).map(|port| &port.known).filter(|known| !known.cluster.is_empty())
    }

    /// These of the held backends are in use.
    pub(crate) fn set_in_use(&mut self, id: ServiceId, backends: Vec<L4Addr>) {
        if let Some(port) = self.held.get_mut(&id).filter(|port| port.backends != backends) {
            *port = Arc::new(HeldPort::clone(port).using(backends));
            self.changed.push(id);
        }
    }

    pub(crate) fn is_protected(&self, id: ServiceId) -> bool {
        self.protected.contains(&id)
    }

    /// Whether an apiserver is in one of the lists of the service, or was before the start.
    pub(crate) fn has_apiserver<'a>(
        &self,
        service: &ServiceName,
        apiservers: &Apiservers,
        mut lists: impl Iterator<Item = &'a Arc<ServiceEntry>>,
    ) -> bool {
        let mut recorded = self.records_of(service).flat_map(|record| &record.cluster);
        lists.any(|entry| entry.cluster.iter().any(|slot| apiservers.has(slot.addr)))
            || recorded.any(|(addr, _)| apiservers.has(*addr))
    }

    pub(crate) fn set_protected(&mut self, id: ServiceId, is_protected: bool) {
        if is_protected {
            self.protected.insert(id);
        } else if self.protected.contains(&id) {
            self.protected.remove(&id);
        }
    }

    /// The record of the port from before the start.
    pub(crate) fn record(&self, key: &PortKey) -> Option<&Remembered> {
        self.remembered.get(key)
    }

    /// The records of the service's ports from before the start.
    pub(crate) fn records_of(&self, service: &ServiceName) -> impl Iterator<Item = &Remembered> {
        self.remembered.values().filter(move |record| record.port.service == *service)
    }

    /// The ports with a status that may have changed since the last call, although their entries may be the same.
    pub(crate) fn take_changed(&mut self) -> Vec<ServiceId> {
        std::mem::take(&mut self.changed)
    }

    /// Whether the hold has not been reported yet and has no cause.
    pub(crate) fn lacks_cause(&self, id: ServiceId) -> bool {
        let is_unknown = self.held.get(&id).is_some_and(|port| port.cause == Cause::default());
        is_unknown && self.unannounced.contains(&id)
    }

    /// Starts to hold the port. Returns the hold if the journal must report it now.
    pub(crate) fn begin(&mut self, id: ServiceId, port: HeldPort) -> Option<Arc<HeldPort>> {
        // The port was held before the start and still has no backend. This does not depend on whether its source has
        // reported everything, because it is not news from the source.
        let was_held = self.remembered.get(&port.key).is_some_and(|record| record.cause.is_some());
        let port = Arc::new(port);
        self.changed.push(id);
        self.held.insert(id, Arc::clone(&port));
        if was_held {
            return Some(port);
        }
        self.unannounced.insert(id);
        None
    }

    /// Ends the hold, if there is one, because the port has backends since this change, or was removed. Returns the
    /// release if the journal must report it.
    pub(crate) fn end(&mut self, id: ServiceId, why: Option<(ReleaseReason, &DirtyReason)>) -> Option<Release> {
        if !self.is_held(id) {
            return None;
        }
        self.from_start.remove(&id);
        let port = self.held.remove(&id)?;
        self.changed.push(id);
        if self.unannounced.remove(&id).is_some() {
            return None;
        }
        let cause = why.map(|(_, reason)| reason.trigger_of(&port.key).cause()).unwrap_or_default();
        let reason = match why {
            Some((ReleaseReason::Emptied, _)) if cause.is_end_of_hold() => ReleaseReason::Expired,
            Some((why, _)) => why,
            None => ReleaseReason::Deleted,
        };
        Some(Release { port, cause, reason })
    }

    /// Forgets everything about the port: it was removed, or the port that has its name now is a different one.
    pub(crate) fn forget_port(&mut self, key: &PortKey, id: Option<ServiceId>) -> Option<Release> {
        self.forget(key);
        let id = id?;
        let release = self.end(id, None);
        self.set_protected(id, false);
        release
    }

    /// Forgets the records of services that do not exist, because every source has reported everything.
    pub(crate) fn forget_unheard(&mut self, is_known: impl Fn(&ServiceName) -> bool) {
        if !self.remembered.is_empty() {
            Arc::make_mut(&mut self.remembered).retain(|key, _| is_known(&key.service));
        }
    }

    /// The holds that the journal must report now, because their source has reported everything. Before that, an empty
    /// port may only be one with backends that have not been reported yet.
    pub(crate) fn announce(&mut self, is_source_synced: impl Fn(ServiceId) -> bool, now: Moment) -> Vec<Arc<HeldPort>> {
        let synced: Vec<ServiceId> = self.unannounced.iter().copied().filter(|id| is_source_synced(*id)).collect();
        let announce = |id: ServiceId| {
            self.unannounced.remove(&id);
            self.changed.push(id);
            let port = self.held.get_mut(&id)?;
            Arc::make_mut(port).since = now;
            Some(Arc::clone(port))
        };
        synced.into_iter().filter_map(announce).collect()
    }
}

#[cfg(test)]
#[path = "tests/holds.rs"]
mod tests;

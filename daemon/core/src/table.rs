//! The current objects of all sources: services, slices and node facts. The table decides which services a change makes
//! dirty. It does not depend on the content of the maps.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::change::Change;
use crate::model::addr::{Addr, L4Addr};
use crate::model::cause::{Checked, Trigger};
use crate::model::drain::{self, DrainCause, Drained, Drains};
use crate::model::moment::Moment;
use crate::model::named::Named;
use crate::model::service::{Service, ServiceName, Slice, SliceName, Source};
use crate::state::entries::MapState;
use crate::state::owner::hash_of;
use crate::state::remembered::Remembered;
use crate::state::used::Used;
use apiservers::{leads_to, lists_apiservers};
use names::{Context, Names, Resolved};
use record::{Record, change_record, share_names};
use slices_by_name::SlicesByName;
use verdicts::Verdicts;

pub use facts::{Described, Facts};
pub(crate) use record::Owner;
pub use sameness::{same_service, same_slice};

pub mod apiservers;
mod facts;
pub mod health_check_ports;
mod names;
mod record;
mod records;
mod sameness;
mod slices_by_name;
mod verdicts;

/// The current reports of the sources, for the writer. Dereferences to the [`Facts`] that it contains.
#[derive(Debug, Default)]
pub struct Table {
    facts: Facts,
    /// Every slice. A slice may move to another service, and its removal is reported only by its own name.
    slices: SlicesByName,
    /// The zone from [`Change::Node`], which takes precedence unless it is empty.
    own_zone: Arc<str>,
    /// The addresses of apiservers that have not been compared with the services yet.
    newly_known: BTreeSet<(Addr, u16)>,
    verdicts: Verdicts,
    names: Names,
}

impl Deref for Table {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

/// The consequence of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing. The content was already known, or does not affect connections.
    None,
    /// These services must be compiled again.
    Services(SmallVec<[ServiceName; 2]>, Trigger),
    /// No source describes the service any more.
    Deleted(ServiceName, Trigger),
    /// The facts that selection uses about the node changed, so every service must be compiled again.
    AllServices,
    /// The node gained or lost these addresses, or the set of addresses that answer NodePorts changed. Nothing else
    /// changed.
    NodeAddresses(BTreeSet<Addr>),
    /// A source is synced, has become complete, or has recalled what it had stored.
    Synced,
    Uplinks,
    /// Records that the engine may use as a fallback.
    Remember(Vec<Remembered>),
}

impl Table {
    /// The table of a start with these maps. Services of the `unchecked` sources get no health checks.
    pub fn new(maps: &MapState, unchecked: &BTreeSet<Source>) -> Self {
        let used = Used::of(maps, |source| !unchecked.contains(&source));
        let names = Names::new(Used::of(maps, |source| source == Source::Files));
        Self { verdicts: Verdicts::new(used, unchecked.clone()), names, ..Self::default() }
    }

    /// Notes when conditions that readers ask for have begun. `now` is the time of a round.
    pub fn note_time(&mut self, now: Moment) {
        let facts = &mut self.facts;
        facts.node_missing_since = facts.is_node_missing.then(|| facts.node_missing_since.unwrap_or(now));
        if !facts.bound.keys().eq(facts.bound_since.keys()) {
            let since = |at| facts.bound_since.get(at).copied().unwrap_or(now);
            facts.bound_since = Arc::new(facts.bound.keys().map(|at| (*at, since(at))).collect());
        }
    }

    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::UpsertService(service) => self.upsert_service(service),
            Change::RemoveService(name, source) => self.remove_service(name, source, Trigger::ServiceRemoved),
            Change::Unselect(name, source, why) => self.remove_service(name, source, |_| Trigger::Unselected(why)),
            Change::UpsertSlice(slice) => self.upsert_slice(slice),
            Change::UpsertNamed(named) => {
                self.upsert_named(named);
                Effect::None
            }
            Change::Answer(question, answer) => {
                self.names.answer(question, answer);
                Effect::None
            }
            Change::RemoveSlice(name, source) => self.remove_slice(&name, source),
            Change::Node(node) => {
                self.own_zone = Arc::clone(&node.zone);
                self.change_node(|facts| facts.node = Arc::new(node))
            }
            Change::NodeObject(object) => self.change_node(|facts| {
                facts.is_node_missing = object.is_none();
                // The earlier facts about the machine remain valid, because the machine has not moved.
                facts.node_object = object.map(Arc::new).or_else(|| facts.node_object.take());
            }),
            Change::NodeObjectUnknown => self.change_node(|facts| {
                facts.is_node_missing = false;
                facts.node_object = None;
            }),
            Change::Quarantine(name, failed) => {
                self.verdicts.set_failed(&name, failed);
                self.judge(name)
            }
            Change::Passed(name, passed) => {
                self.verdicts.set_passed(&name, passed);
                self.judge(name)
            }
            Change::Drains(name, drains, cause) => self.set_drains(name, drains, cause),
            Change::Apiservers(addresses) => {
                let new = Arc::make_mut(&mut self.facts.apiservers).set_reported(addresses);
                self.newly_known.extend(new);
                Effect::None
            }
            Change::Remember(records) => {
                let new = Arc::make_mut(&mut self.facts.apiservers).restore(&records);
                self.newly_known.extend(new);
                Effect::Remember(records)
            }
            Change::Synced { source, incomplete } => {
                self.facts.synced.insert(source, incomplete);
                self.settle_verdicts(source);
                Effect::Synced
            }
            other => self.note(other),
        }
    }

    /// Stores a fact that no service depends on.
    fn note(&mut self, change: Change) -> Effect {
        let facts = &mut self.facts;
        match change {
            Change::HealthCheckPortError(of, Some(error)) => drop(facts.health_check_port_errors.insert(of, error)),
            Change::HealthCheckPortError(of, None) => drop(facts.health_check_port_errors.remove(&of)),
            Change::Bound(nodeports) => facts.bound = Arc::new(nodeports),
            Change::Uplinks(uplinks) => {
                facts.uplinks = uplinks.into();
                return Effect::Uplinks;
            }
            Change::Translation(translation) => facts.translation = translation,
            Change::Recalled(source) => {
                facts.recalled.insert(source);
                return Effect::Synced;
            }
            Change::Unread(namespaces) => facts.unread = Arc::new(namespaces),
            // Only the history or the engine has it.
            _ => {}
        }
        Effect::None
    }

    fn upsert_service(&mut self, service: Service) -> Effect {
        let (name, service) = (service.name.clone(), Arc::new(service));
        // Most reports are about new services, which need only this search.
        let new = Arc::new(Record::described_by(Arc::clone(&service)));
        let (name, is_known) = match self.facts.records.insert(name.clone(), new) {
            None => {
                self.facts.note_owner(&name, Some(&service));
                (name, false)
            }
            Some(mut record) => {
                let is_known = record.has_claim(&service) || Arc::make_mut(&mut record).describe(&service);
                // Slices and dirty services share the name that the record had; see `Records`.
                let name = record.slices.first().map_or(name, |slice| slice.service.clone());
                self.facts.note_owner(&name, record.claims.first());
                self.facts.records.insert(name.clone(), record);
                (name, is_known)
            }
        };
        if is_known {
            return Effect::None;
        }
        self.names.note_claims();
        self.judge_again(&name);
        Effect::Services(smallvec![name], Trigger::Service(service))
    }

    fn remove_service(
        &mut self,
        name: ServiceName,
        source: Source,
        trigger: impl FnOnce(Arc<Service>) -> Trigger,
    ) -> Effect {
        let Some(record) = self.facts.records.get_mut(&name) else { return Effect::None };
        let Some(place) = record.claims.iter().position(|claim| claim.source == source) else {
            return Effect::None;
        };
        let record = Arc::make_mut(record);
        let trigger = trigger(record.claims.remove(place));
        let (owner, is_empty) = (record.claims.first().cloned(), record.is_empty());
        let is_deleted = owner.is_none();
        self.facts.note_owner(&name, owner.as_ref());
        if is_empty {
            self.facts.records.remove(&name);
        }
        self.names.note_claims();
        self.verdicts.forget(&name, source);
        self.names.forget_used(&name, source);
        self.judge_again(&name);
        if is_deleted { Effect::Deleted(name, trigger) } else { Effect::Services(smallvec![name], trigger) }
    }

    fn upsert_slice(&mut self, mut slice: Slice) -> Effect {
        let source = slice.source;
        slice.sort_ports();
        if lists_apiservers(&slice) {
            let new = Arc::make_mut(&mut self.facts.apiservers).learn(&slice);
            self.newly_known.extend(new);
        }
        if self.slices.has(&slice) {
            return Effect::None;
        }
        let (slice, is_known) = change_record(&mut self.facts.records, &slice.service.clone(), |record| {
            share_names(record, &mut slice);
            let slice = Arc::new(slice);
            let is_known = match record.find_slice(source, &slice.name) {
                Ok(place) => {
                    let is_known = same_slice(&record.slices[place], &slice);
                    record.slices[place] = Arc::clone(&slice);
                    is_known
                }
                Err(place) => {
                    record.slices.insert(place, Arc::clone(&slice));
                    false
                }
            };
            (slice, is_known)
        });
        let mut dirty = SmallVec::new();
        if let Some(before) = self.slices.insert(Arc::clone(&slice))
            && before.service != slice.service
        {
            self.take_slice(&before.service, source, &slice.name);
            dirty.push(before.service.clone());
        }
        if !is_known {
            dirty.push(slice.service.clone());
        }
        dirty.iter().for_each(|name| self.judge_again(name));
        if dirty.is_empty() { Effect::None } else { Effect::Services(dirty, Trigger::Slice(slice)) }
    }

    fn remove_slice(&mut self, name: &SliceName, source: Source) -> Effect {
        if source == Source::Files
            && let Some(named) = self.facts.named.remove(name)
        {
            self.facts.left_out.remove(name);
            self.names.forget(&named);
        }
        let Some(slice) = self.slices.remove(source, name) else { return Effect::None };
        let service = slice.service.clone();
        self.take_slice(&service, source, name);
        self.judge_again(&service);
        // A service entry of a file has no slice if it has no backends. If that file still has the service, the entry
        // was changed, not removed.
        let is_entry = |it: &&Arc<Service>| {
            source == Source::Files && it.source == source && it.origin.object == slice.origin.object
        };
        let entry = self.claims(&service).iter().find(is_entry).cloned();
        let trigger = entry.map_or_else(|| Trigger::SliceRemoved(slice), Trigger::Service);
        Effect::Services(smallvec![service], trigger)
    }

    fn upsert_named(&mut self, named: Named) {
        if self.facts.named.get(&named.slice).is_some_and(|known| **known == named) {
            return;
        }
        // A service that was described when the source had reported had all its names then.
        let is_described = || self.claims(&named.service).iter().any(|claim| claim.source == Source::Files);
        let is_new = self.facts.is_read(Source::Files, &named.service.namespace)
            || self.facts.is_synced(Source::Files) && is_described();
        let is_start = self.names.is_of_start(&named.slice) || !is_new;
        if let Some(before) = self.facts.named.get(&named.slice) {
            self.names.forget(before);
        }
        self.names.describe(&named, is_start);
        self.facts.named.insert(named.slice.clone(), Arc::new(named));
    }

    /// Makes the slices that follow from changed names and answers, and returns the effects. To be called when the changes of
    /// a round are known, because an address that a service claims is no backend.
    pub fn resolve_names(&mut self) -> Vec<Effect> {
        let dirty = self.names.take_dirty();
        if dirty.is_empty() {
            return Vec::new();
        }
        let Self { facts, slices, names, .. } = self;
        let ports = facts.records.values().flat_map(|record| &record.claims).flat_map(|claim| &claim.ports);
        names.set_claims(ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol))));
        let nodeport_addresses = facts.nodeport_addresses();
        let mut new = Vec::new();
        for name in dirty {
            let Some(named) = facts.named.get(&name) else { continue };
            let is_frontend = |address: L4Addr| {
                names.is_claimed(&address)
                    || nodeport_addresses.contains(&address.addr) && names.is_claimed(&address.wildcard())
            };
            let (failed, drains) = (facts.quarantine(&named.service), facts.drains(&named.service));
            let context = Context {
                before: slices.get(Source::Files, &name).map(|slice| &**slice),
                named: &facts.named,
                slices: facts.records.get(&named.service).map_or(&[], |record| &record.slices),
                is_frontend: &is_frontend,
                is_kept_out: &|backend| {
                    failed.is_some_and(|failed| failed.contains_key(&backend))
                        || drains.is_some_and(|drains| drain::find(drains, backend).is_some())
                },
            };
            new.push(names.resolve(named, &context));
        }
        let set = |Resolved { slice, left_out, is_settled }| {
            if is_settled {
                self.names.settle(&slice.name);
            }
            match left_out {
                Some(why) => drop(self.facts.left_out.insert(slice.name.clone(), why.into())),
                None => drop(self.facts.left_out.remove(&slice.name)),
            }
            self.upsert_slice(slice)
        };
        new.into_iter().map(set).collect()
    }

    /// Ends what the maps of the start mean for backends that the source lists later, if it has reported everything.
    fn settle_verdicts(&mut self, source: Source) {
        let checked: Vec<ServiceName> = self.facts.checked.keys().cloned().collect();
        if self.facts.incomplete(source).is_none() {
            self.verdicts.settle(source, &checked.iter().map(hash_of).collect());
        }
        checked.iter().for_each(|name| self.judge_again(name));
    }

    /// Judges the backends of a service whose description or slices have changed.
    fn judge_again(&mut self, name: &ServiceName) {
        let starts_unhealthy =
            |service: &Arc<Service>| service.health_check.as_ref().is_some_and(|it| !it.starts_healthy);
        if self.facts.checked.get(name).is_some_and(starts_unhealthy) || self.facts.quarantine.contains_key(name) {
            self.judge(name.clone());
        }
    }

    /// Stores which backends of the service are unhealthy. A new text for a backend that is already known to be unhealthy
    /// is stored, but makes nothing dirty.
    fn judge(&mut self, name: ServiceName) -> Effect {
        let owner = self.facts.owner(&name);
        let is_read = owner.is_some_and(|(service, _)| self.facts.is_read(service.source, &name.namespace))
            && !self.names.awaits(&name);
        let backends = self.verdicts.judge(&name, owner, is_read);
        let before = self.facts.quarantine.get(&name).cloned().unwrap_or_default();
        let failed = backends.iter().find(|(backend, _)| !before.contains_key(backend));
        let failed = failed.map(|(backend, error)| Checked::Failed(*backend, Arc::clone(error)));
        let recovered = || before.keys().find(|backend| !backends.contains_key(backend));
        // Backends that are not checked any more are in use again because of the service's description.
        let unchecked =
            self.facts.owner(&name).map(|(service, _)| service).filter(|it| it.health_check.is_none()).cloned();
        let recovered = recovered().copied().map(|backend| match unchecked {
            Some(service) => Trigger::Service(service),
            None => Trigger::Checks(Checked::Recovered(backend)),
        });
        let change = failed.map(Trigger::Checks).or(recovered);
        if backends.is_empty() {
            self.facts.quarantine.remove(&name);
        } else {
            self.facts.quarantine.insert(name.clone(), Arc::new(backends));
        }
        change.map_or(Effect::None, |change| Effect::Services(smallvec![name], change))
    }

    fn set_drains(&mut self, name: ServiceName, drains: Drains, cause: Option<DrainCause>) -> Effect {
        let before = if drains.is_empty() {
            self.facts.drains.remove(&name)
        } else {
            self.facts.drains.insert(name.clone(), Arc::new(drains))
        };
        if self.facts.drains.get(&name) == before.as_ref() {
            return Effect::None;
        }
        let (before, now) = (before.unwrap_or_default(), self.facts.drains.get(&name).cloned().unwrap_or_default());
        let is_changed = |backend: &&Drained| before.get(backend) != now.get(backend);
        let changed = || before.keys().chain(now.keys()).filter(is_changed).copied().collect();
        Effect::Services(smallvec![name], cause.map_or(Trigger::Other, |cause| Trigger::Drain(cause, changed())))
    }

    fn take_slice(&mut self, service: &ServiceName, source: Source, name: &SliceName) {
        let Some(record) = self.facts.records.get_mut(service) else { return };
        let Ok(place) = record.find_slice(source, name) else { return };
        Arc::make_mut(record).slices.remove(place);
        if record.is_empty() {
            self.facts.records.remove(service);
        }
    }

    /// The services that reach an apiserver at an address that became known since the last call, or that may reach one
    /// since the addresses of the node changed.
    pub fn take_newly_protected(&mut self) -> Vec<ServiceName> {
        let new = std::mem::take(&mut self.newly_known);
        if new.is_empty() {
            return Vec::new();
        }
        let leads = |record: &Record| {
            let is_new = |addr, port| new.contains(&(addr, port));
            record.claims.first().is_some_and(|owner| leads_to(owner, &record.slices, &self.facts.node, is_new))
        };
        self.facts.records.iter().filter(|(_, record)| leads(record)).map(|(name, _)| name.clone()).collect()
    }

    fn change_node(&mut self, change: impl FnOnce(&mut Facts)) -> Effect {
        let (old, answering) = (Arc::clone(&self.facts.node), self.nodeport_addresses());
        let was_known = self.is_node_object_known();
        change(&mut self.facts);
        let reported = self.node_object().map(|object| Arc::clone(&object.zone));
        let zone = if self.own_zone.is_empty() { reported.unwrap_or_default() } else { Arc::clone(&self.own_zone) };
        if self.node.zone != zone {
            Arc::make_mut(&mut self.facts.node).zone = zone;
        }
        let changed: BTreeSet<Addr> = old.addresses.symmetric_difference(&self.node.addresses).copied().collect();
        if !changed.is_empty() {
            // A NodePort may reach an apiserver now.
            self.newly_known.extend(self.facts.apiservers.iter());
        }
        if old.name != self.node.name || old.zone != self.node.zone {
            Effect::AllServices
        } else if !changed.is_empty()
            || answering != self.nodeport_addresses()
            || was_known != self.is_node_object_known()
        {
            Effect::NodeAddresses(changed)
        } else {
            Effect::None
        }
    }

    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;

//! The current truth, as the sources tell it. Owns services, slices and node facts; decides which services a change
//! makes dirty. Knows nothing of the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use smallvec::{SmallVec, smallvec};

use crate::change::{Change, NodeFacts};
use crate::service::{Service, ServiceName, Slice, SliceName, Source};

/// What the sources say now. Cloning is cheap: readers get a clone.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// By full name, then source: two sources may describe one name, and one of them owns it.
    services: OrdMap<(ServiceName, Source), Arc<Service>>,
    /// By the service they belong to, so that a service's slices lie together.
    slices: OrdMap<(ServiceName, Source, SliceName), Arc<Slice>>,
    /// Which service a slice belongs to: a slice may move to another service, and is removed by its own name only.
    service_of: OrdMap<(Source, SliceName), ServiceName>,
    node: Arc<NodeFacts>,
    synced: BTreeMap<Source, Option<Arc<str>>>,
}

/// What a change makes necessary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it said what was known, or something no connection depends on.
    None,
    /// These services must be compiled again.
    Services(SmallVec<[ServiceName; 2]>),
    /// What selection knows about the node changed: every service must be compiled again.
    AllServices,
    /// The node's addresses changed, nothing else.
    NodeAddresses,
    /// A source is synced, or became complete.
    Synced,
}

impl Table {
    /// Takes in one change.
    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::UpsertService(service) => self.upsert_service(service),
            Change::RemoveService(name, source) => match self.services.remove(&(name.clone(), source)) {
                Some(_removed) => Effect::Services(smallvec![name]),
                None => Effect::None,
            },
            Change::UpsertSlice(slice) => self.upsert_slice(slice),
            Change::RemoveSlice(name, source) => match self.service_of.remove(&(source, name.clone())) {
                Some(service) => {
                    self.slices.remove(&(service.clone(), source, name));
                    Effect::Services(smallvec![service])
                }
                None => Effect::None,
            },
            Change::Node(facts) => self.set_node(facts),
            Change::Synced { source, incomplete } => {
                self.synced.insert(source, incomplete);
                Effect::Synced
            }
        }
    }

    fn upsert_service(&mut self, service: Service) -> Effect {
        let name = service.name.clone();
        let service = Arc::new(service);
        match self.services.insert((name.clone(), service.source), Arc::clone(&service)) {
            Some(old) if same_service(&old, &service) => Effect::None,
            _ => Effect::Services(smallvec![name]),
        }
    }

    fn upsert_slice(&mut self, slice: Slice) -> Effect {
        let (name, service, source) = (slice.name.clone(), slice.service.clone(), slice.source);
        let slice = Arc::new(slice);
        let mut dirty = SmallVec::new();
        if let Some(before) = self.service_of.insert((source, name.clone()), service.clone())
            && before != service
        {
            self.slices.remove(&(before.clone(), source, name.clone()));
            dirty.push(before);
        }
        match self.slices.insert((service.clone(), source, name), Arc::clone(&slice)) {
            Some(old) if same_slice(&old, &slice) && dirty.is_empty() => return Effect::None,
            _ => dirty.push(service),
        }
        Effect::Services(dirty)
    }

    fn set_node(&mut self, facts: NodeFacts) -> Effect {
        let old = std::mem::replace(&mut self.node, Arc::new(facts));
        if old.name != self.node.name || old.zone != self.node.zone {
            Effect::AllServices
        } else if old.addresses != self.node.addresses {
            Effect::NodeAddresses
        } else {
            Effect::None
        }
    }

    /// The description of the service that counts: the oldest, then the first source.
    pub fn owner(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.claims(name).min_by_key(|service| (service.created.unwrap_or(0), service.source))
    }

    /// Every description of the service, one per source.
    pub fn claims(&self, name: &ServiceName) -> impl Iterator<Item = &Arc<Service>> {
        let bounds = (name.clone(), Source::Files)..=(name.clone(), Source::Kubernetes);
        self.services.range(bounds).map(|(_key, service)| service)
    }

    /// The slices of the service that its source named, in name order.
    pub fn slices(&self, name: &ServiceName, source: Source) -> impl Iterator<Item = &Arc<Slice>> {
        let first = (name.clone(), source, SliceName::new("", ""));
        self.slices
            .range(first..)
            .take_while(move |((service, of, _), _)| service == name && *of == source)
            .map(|(_key, slice)| slice)
    }

    /// Every description of every service, by name.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// How many slices there are.
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// What is known about this node.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Whether the source has told everything it had at the start.
    pub fn is_synced(&self, source: Source) -> bool {
        self.synced.contains_key(&source)
    }

    /// What the source could not read, if it is synced but for that.
    pub fn incomplete(&self, source: Source) -> Option<&Arc<str>> {
        self.synced.get(&source).and_then(Option::as_ref)
    }
}

/// Equal in everything a connection depends on. Written out so that a new field must be thought about here.
fn same_service(a: &Service, b: &Service) -> bool {
    let Service { name, source, origin: _, created, ports, internal_policy, external_policy, affinity_seconds } = a;
    (name, source, created, ports) == (&b.name, &b.source, &b.created, &b.ports)
        && (internal_policy, external_policy) == (&b.internal_policy, &b.external_policy)
        && *affinity_seconds == b.affinity_seconds
}

fn same_slice(a: &Slice, b: &Slice) -> bool {
    let Slice { name, service, source, origin: _, ports } = a;
    (name, service, source, ports) == (&b.name, &b.service, &b.source, &b.ports)
}

#[cfg(test)]
mod tests;

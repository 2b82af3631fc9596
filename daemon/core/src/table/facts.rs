//! What readers know of the current objects of all sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::apiservers::{Apiservers, leads_to, lists_apiservers};
use super::health_check_ports::HealthCheckPorts;
use super::record::{Owner, Record};
use crate::map_diff::key_of;
use crate::model::addr::{Addr, Family, L4Addr};
use crate::model::drain::Drains;
use crate::model::health_check::Quarantine;
use crate::model::moment::Moment;
use crate::model::named::Named;
use crate::model::node::{self, NodeFacts, NodeObject, NodePortAddress};
use crate::model::service::{Service, ServiceName, Slice, SliceName, Source};
use crate::model::uplink::{Translation, Uplink};

/// The current reports of the sources, for readers. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub(super) records: OrdMap<ServiceName, Arc<Record>>,
    pub(super) node: Arc<NodeFacts>,
    /// The last report of Kubernetes. It is kept when the Node is removed.
    pub(super) node_object: Option<Arc<NodeObject>>,
    /// Whether Kubernetes has reported that there is no such Node.
    pub is_node_missing: bool,
    /// The time of the first round since that report.
    pub node_missing_since: Option<Moment>,
    /// The services with a port where load balancers check for local backends of this node.
    pub health_check_ports: HealthCheckPorts,
    /// Why load balancers get no answer: for a service, or for the node.
    pub health_check_port_errors: OrdMap<Option<ServiceName>, Arc<str>>,
    /// The services that request health checks, each as the description that takes precedence.
    pub checked: OrdMap<ServiceName, Arc<Service>>,
    pub quarantine: OrdMap<ServiceName, Arc<Quarantine>>,
    pub drains: OrdMap<ServiceName, Arc<Drains>>,
    /// The backends that have names, by the slice that the answers become.
    pub named: OrdMap<SliceName, Arc<Named>>,
    /// Why addresses of names are left out, by the slice.
    pub left_out: OrdMap<SliceName, Arc<str>>,
    /// The NodePorts that processes of this node have bound, under their frontend addresses, each with the process.
    pub bound: Arc<BTreeMap<L4Addr, Arc<str>>>,
    /// The time of the first round since a process has bound the NodePort.
    pub bound_since: Arc<BTreeMap<L4Addr, Moment>>,
    /// The sources of each [`crate::change::Change::Recalled`].
    pub(super) recalled: BTreeSet<Source>,
    pub(super) synced: BTreeMap<Source, Option<Arc<str>>>,
    /// The last [`crate::change::Change::Unread`].
    pub(super) unread: Arc<BTreeSet<Arc<str>>>,
    pub(super) apiservers: Arc<Apiservers>,
    /// The last report about the uplinks; empty before the first one.
    pub uplinks: Arc<[Uplink]>,
    /// The last report about new connections from outside the node.
    pub translation: Translation,
}

/// The descriptions of a service in order of precedence, at least one, and the slices of the source of the first one.
pub type Described<'a> = (&'a [Arc<Service>], &'a [Arc<Slice>]);

impl Facts {
    /// The description of the service that takes precedence, and the slices of the same source in name order.
    pub fn owner(&self, name: &ServiceName) -> Option<Owner<'_>> {
        self.records.get(name)?.owner()
    }

    /// The EndpointSlices of `default/kubernetes`; their ready endpoints are the apiservers.
    pub fn apiserver_slices(&self) -> impl Iterator<Item = &Arc<Slice>> {
        let record = self.records.get(&ServiceName::new("default", "kubernetes"));
        record.into_iter().flat_map(|record| &record.slices).filter(|slice| lists_apiservers(slice))
    }

    /// Every description of the service, one per source, in order of precedence.
    pub fn claims(&self, name: &ServiceName) -> &[Arc<Service>] {
        self.records.get(name).map_or(&[], |record| &record.claims)
    }

    /// The names of all described services, in order.
    pub fn names(&self) -> impl Iterator<Item = &ServiceName> {
        self.records.iter().filter(|(_, record)| !record.claims.is_empty()).map(|(name, _)| name)
    }

    /// The descriptions of each described service, in the order of their names.
    pub fn described(&self) -> impl Iterator<Item = Described<'_>> {
        self.records.values().filter_map(|record| Some((&*record.claims, record.owner()?.1)))
    }

    /// The descriptions of the service; `None` if no source describes it.
    pub fn description(&self, name: &ServiceName) -> Option<Described<'_>> {
        let record = self.records.get(name)?;
        Some((&record.claims, record.owner()?.1))
    }

    /// Every service that the source describes, in order.
    pub fn services_of(&self, source: Source) -> impl Iterator<Item = &Service> {
        let claims = self.records.values().flat_map(|record| &record.claims);
        claims.map(Arc::as_ref).filter(move |service| service.source == source)
    }

    /// Every slice of the source, ordered by service.
    pub fn slices_of(&self, source: Source) -> impl Iterator<Item = &Slice> {
        let slices = self.records.values().flat_map(|record| &record.slices);
        slices.map(Arc::as_ref).filter(move |slice| slice.source == source)
    }

    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// The last report of Kubernetes about this node, even if the Node has been removed since; `None` if Kubernetes has
    /// reported none.
    pub fn node_object(&self) -> Option<&NodeObject> {
        self.node_object.as_deref()
    }

    /// Why load balancers should stop sending traffic to this node according to Kubernetes, if they should: the Node is
    /// missing or about to be removed (KEP-3836).
    pub fn leaving(&self) -> Option<&str> {
        if self.is_node_missing {
            return Some("Kubernetes has no such Node");
        }
        self.node_object().and_then(|object| object.leaving.as_deref())
    }

    /// The reason why load balancers get no answer, see [`Change::HealthCheckPortError`].
    pub fn health_check_port_error(&self, of: Option<&ServiceName>) -> Option<&Arc<str>> {
        self.health_check_port_errors.get(&of.cloned())
    }

    /// Whether Kubernetes has reported anything about this node, including that there is no such Node.
    pub fn is_node_object_known(&self) -> bool {
        self.node_object.is_some() || self.is_node_missing
    }

    pub fn nodeport_addresses(&self) -> BTreeSet<Addr> {
        node::answering(&self.node, self.node_object())
    }

    /// The families of which all addresses answer NodePorts.
    pub fn nodeport_families(&self) -> BTreeSet<Family> {
        let all = self.node.nodeport_addresses.iter().filter_map(|entry| match entry {
            NodePortAddress::Net(net) if net.prefix_len() == 0 => Some(Addr::from(net.network()).family()),
            _ => None,
        });
        all.collect()
    }

    /// The backends of the service that nodelb's own health checks reported as unhealthy. A report stays, even if the
    /// service is not described or has no checks, until the reporter withdraws it.
    pub fn quarantine(&self, name: &ServiceName) -> Option<&Quarantine> {
        self.quarantine.get(name).map(|backends| &**backends)
    }

    /// The backends of the service that the operator drains, whether or not a source describes them; `None` if there are
    /// none.
    pub fn drains(&self, name: &ServiceName) -> Option<&Drains> {
        self.drains.get(name).map(|drains| &**drains)
    }

    /// These facts, if these were the drains of the service.
    pub fn with_drains(&self, name: &ServiceName, drains: Drains) -> Self {
        Self { drains: self.drains.update(name.clone(), Arc::new(drains)), ..self.clone() }
    }

    pub fn apiservers(&self) -> &Apiservers {
        &self.apiservers
    }

    /// Whether the service reaches an apiserver or is the apiservers' own service by name. Such a service must keep its
    /// last backends.
    pub fn is_protected(&self, service: &Service, slices: &[Arc<Slice>]) -> bool {
        let is_apiserver = |addr, port| self.apiservers.contains(addr, port);
        service.name.is_default_kubernetes()
            || !self.apiservers.is_empty() && leads_to(service, slices, &self.node, is_apiserver)
    }

    /// The services with other reports of the sources or of nodelb's own health checks, or with other drains, than in
    /// `before`.
    pub fn names_that_differ(&self, before: &Self) -> BTreeSet<ServiceName> {
        let records = self.reported_since(before);
        let checked = before.quarantine.diff(&self.quarantine).map(|item| key_of(&item));
        let drained = before.drains.diff(&self.drains).map(|item| key_of(&item));
        records.chain(checked).chain(drained).cloned().collect()
    }

    /// The services with other reports of the sources than in `before`.
    pub fn reported_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a ServiceName> {
        before.records.diff(&self.records).map(|item| key_of(&item))
    }

    /// Whether anything differs from `before` that may affect every service's frontends.
    pub fn differs_for_all(&self, before: &Self) -> bool {
        self.node != before.node
            || self.bound != before.bound
            || self.apiservers != before.apiservers
            || self.translation != before.translation
    }

    /// Whether the source has reported everything it had at the start.
    pub fn is_synced(&self, source: Source) -> bool {
        self.synced.contains_key(&source)
    }

    /// Whether these facts began with everything that the source had stored in the previous run.
    pub fn is_recalled(&self, source: Source) -> bool {
        self.recalled.contains(&source)
    }

    /// What the source could not read, if it is otherwise synced.
    pub fn incomplete(&self, source: Source) -> Option<&Arc<str>> {
        self.synced.get(&source).and_then(Option::as_ref)
    }

    /// Whether the source has reported everything about services of the namespace, even if it is incomplete.
    pub fn is_read(&self, source: Source, namespace: &Arc<str>) -> bool {
        let is_other = !self.unread.is_empty() && !self.unread.contains(namespace);
        self.is_synced(source) && (self.incomplete(source).is_none() || source == Source::Kubernetes && is_other)
    }

    /// Whether names of the service may have backends that are not known now.
    pub fn awaits_names(&self, name: &ServiceName) -> bool {
        let slices = self.owner(name).map_or(&[][..], |(_, slices)| slices);
        // A slice that lacks the port says that there are none.
        slices.iter().any(|slice| slice.problem.is_some() && !slice.ports.is_empty())
    }

    /// Whether every backend of the service is known that its source has, as far as this source is concerned.
    pub fn is_known(&self, source: Source, name: &ServiceName) -> bool {
        self.is_read(source, &name.namespace) && !self.awaits_names(name)
    }

    /// Records what the current description of the service contains about its health-check port and its health checks;
    /// `None` if there is no service of this name.
    pub(super) fn note_owner(&mut self, name: &ServiceName, service: Option<&Arc<Service>>) {
        self.health_check_ports.note(name, service.map(|service| &**service));
        match service.filter(|service| service.health_check.is_some()) {
            Some(service) => drop(self.checked.insert(name.clone(), Arc::clone(service))),
            None if self.checked.contains_key(name) => drop(self.checked.remove(name)),
            None => {}
        }
    }
}

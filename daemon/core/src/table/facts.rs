//! What readers can ask about the current reports of the sources.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::apiservers::{Apiservers, leads_to, lists_apiservers};
use super::health_check_ports::HealthCheckPorts;
use super::{Facts, key_of};
use crate::model::addr::{Addr, L4Addr};
use crate::model::health_check::Quarantine;
use crate::model::node::{self, NodeFacts, NodeObject};
use crate::model::service::{Service, ServiceName, Slice, Source};

impl Facts {
    /// The description of the service that takes precedence, and the slices of the same source in name order.
    pub fn owner(&self, name: &ServiceName) -> Option<(&Arc<Service>, &[Arc<Slice>])> {
        let record = self.records.get(name)?;
        let owner = record.claims.first()?;
        let first = record.slices.partition_point(|slice| slice.source < owner.source);
        let end = record.slices.partition_point(|slice| slice.source <= owner.source);
        Some((owner, &record.slices[first..end]))
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

    /// The facts about this node.
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

    /// Whether Kubernetes has reported that there is no such Node.
    pub fn is_node_missing(&self) -> bool {
        self.is_node_missing
    }

    /// The services with a port where load balancers ask for local backends of this node.
    pub fn health_check_ports(&self) -> &HealthCheckPorts {
        &self.health_check_ports
    }

    /// The reason why load balancers get no answer, see [`Change::HealthCheckPortError`].
    pub fn health_check_port_error(&self, of: Option<&ServiceName>) -> Option<&Arc<str>> {
        self.health_check_port_errors.get(&of.cloned())
    }

    /// The number of services that cannot answer at their health-check port.
    pub fn health_check_port_errors(&self) -> usize {
        self.health_check_port_errors.keys().flatten().count()
    }

    /// Every reason why load balancers get no answer: for a service, or for the node.
    pub fn all_health_check_port_errors(&self) -> impl Iterator<Item = (Option<&ServiceName>, &Arc<str>)> {
        self.health_check_port_errors.iter().map(|(of, error)| (of.as_ref(), error))
    }

    /// Whether Kubernetes has reported anything about this node, including that there is no such Node.
    pub fn is_node_object_known(&self) -> bool {
        self.node_object.is_some() || self.is_node_missing
    }

    /// The addresses on which NodePorts are answered.
    pub fn nodeport_addresses(&self) -> BTreeSet<Addr> {
        node::answering(&self.node, self.node_object())
    }

    /// The backends of the service that nodelb's own health checks reported as unhealthy. A report stays, even if the
    /// service is not described or has no checks, until the reporter withdraws it.
    pub fn quarantine(&self, name: &ServiceName) -> Option<&Quarantine> {
        self.quarantine.get(name).map(|backends| &**backends)
    }

    /// The process of this node that has bound the NodePort with this frontend address, if any.
    pub fn bound(&self, nodeport: L4Addr) -> Option<&Arc<str>> {
        self.bound.get(&nodeport)
    }

    /// The NodePorts that processes of this node have bound, each with the process.
    pub fn all_bound(&self) -> impl Iterator<Item = (&L4Addr, &Arc<str>)> {
        self.bound.iter()
    }

    /// The services with backends that nodelb's own health checks reported as unhealthy.
    pub fn quarantined(&self) -> impl Iterator<Item = &ServiceName> {
        self.quarantine.keys()
    }

    /// The number of NodePorts that processes of this node have bound.
    pub fn bound_len(&self) -> usize {
        self.bound.len()
    }

    /// The addresses where apiservers are known to listen.
    pub fn apiservers(&self) -> &Apiservers {
        &self.apiservers
    }

    /// Whether the service leads to an apiserver or is the apiservers' own service by name. Such a service must keep
    /// its last backends.
    pub fn is_protected(&self, service: &Service, slices: &[Arc<Slice>]) -> bool {
        let is_apiserver = |addr, port| self.apiservers.contains(addr, port);
        service.name.is_default_kubernetes()
            || !self.apiservers.is_empty() && leads_to(service, slices, &self.node, is_apiserver)
    }

    /// The services for which the reports of the sources, or of nodelb's own health checks, differ from those in
    /// `before`.
    pub(crate) fn names_that_differ(&self, before: &Self) -> BTreeSet<ServiceName> {
        let records = before.records.diff(&self.records).map(|item| key_of(&item));
        records.chain(before.quarantine.diff(&self.quarantine).map(|item| key_of(&item))).cloned().collect()
    }

    /// Whether anything differs from `before` that may affect every service's frontends.
    pub(crate) fn differs_for_all(&self, before: &Self) -> bool {
        self.node != before.node || self.bound != before.bound || self.apiservers != before.apiservers
    }

    /// Whether the source has reported everything it had at the start.
    pub fn is_synced(&self, source: Source) -> bool {
        self.synced.contains_key(&source)
    }

    /// What the source could not read, if it is otherwise synced.
    pub fn incomplete(&self, source: Source) -> Option<&Arc<str>> {
        self.synced.get(&source).and_then(Option::as_ref)
    }
}

//! The part of a cluster that nodelb reads ([`Selection`]), as scopes: a scope is what one watch is about. No two scopes
//! have an object in common, whatever happens to it: they differ in the kind, in the namespace, or in the names of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use nodelb_core::model::service::ServiceName;
use serde::{Deserialize, Serialize};

use super::decode::Kind;

/// The maximum number of namespaces or services that nodelb watches one by one. Each takes up to two of the 100 requests
/// that an apiserver serves at the same time over one connection.
pub const MAX_NARROW: usize = 32;

/// The objects of one kind that one watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub kind: Kind,
    /// The namespace; `None` for all.
    pub namespace: Option<Arc<str>>,
    /// The names of the Services that these objects are or belong to; the name of a Node. Empty for all.
    pub names: Vec<Arc<str>>,
    /// The label selector for Services; empty for all.
    pub labels: Arc<str>,
}

/// The Services that nodelb reads, with their EndpointSlices. The default is all of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The label selector for Services; empty for all.
    pub labels: Arc<str>,
    /// The namespaces; empty for all.
    pub namespaces: Vec<Arc<str>>,
    /// The only services; empty for all.
    pub services: Vec<ServiceName>,
}

impl Scope {
    pub fn all(kind: Kind) -> Self {
        Self { kind, namespace: None, names: Vec::new(), labels: Arc::default() }
    }

    pub fn node(name: &str) -> Self {
        Self { names: vec![name.into()], ..Self::all(Kind::Node) }
    }

    fn in_namespace(kind: Kind, namespace: &Arc<str>) -> Self {
        Self { namespace: Some(Arc::clone(namespace)), ..Self::all(kind) }
    }

    /// Whether the scope includes the service or its slices.
    pub fn covers(&self, service: &ServiceName) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == service.namespace)
            && (self.names.is_empty() || self.names.contains(&service.name))
    }

    /// Whether this is a part of the cluster that needs its own permission.
    pub fn is_narrow(&self) -> bool {
        self.namespace.is_some()
    }
}

/// As a place below `/sources`: `services`, `services/shop`, `services/default/kubernetes`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.resource())?;
        let Some(namespace) = &self.namespace else { return Ok(()) };
        write!(f, "/{namespace}")?;
        match &self.names[..] {
            [name] if self.kind == Kind::Service => write!(f, "/{name}"),
            _ => Ok(()),
        }
    }
}

/// The number of names that a text shows of a list.
const SHOWN: usize = 3;

fn listed<T: fmt::Display>(names: &[T]) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Selection {
    /// The keys that leave out something other than this selection did before, such as `kubernetes.namespaces = shop`;
    /// `None` if it leaves out nothing more.
    pub fn narrowed_from(&self, before: &Self) -> Option<String> {
        let labels = self.labels != before.labels && !self.labels.is_empty();
        let namespaces = self.namespaces != before.namespaces && !self.namespaces.is_empty();
        let services = self.services != before.services && !self.services.is_empty();
        let keys = [
            labels.then(|| format!("kubernetes.label-selector = {}", self.labels)),
            namespaces.then(|| format!("kubernetes.namespaces = {}", listed(&self.namespaces))),
            services.then(|| format!("kubernetes.services = {}", listed(&self.services))),
        ];
        let keys: Vec<String> = keys.into_iter().flatten().collect();
        (!keys.is_empty()).then(|| keys.join(" and "))
    }

    /// Whether nodelb reads the service if its labels match.
    pub fn covers(&self, service: &ServiceName) -> bool {
        (self.namespaces.is_empty() || self.namespaces.contains(&service.namespace))
            && (self.services.is_empty() || self.services.contains(service))
    }

    /// The scopes, those of one namespace one after the other. They include the slices of `default/kubernetes`, from which
    /// nodelb learns the addresses of apiservers, also if nodelb does not serve that service.
    pub fn scopes(&self) -> Vec<Scope> {
        let of_apiservers = ServiceName::new("default", "kubernetes");
        let mut scopes = Vec::new();
        if self.services.is_empty() && self.namespaces.is_empty() {
            let services = Scope { labels: Arc::clone(&self.labels), ..Scope::all(Kind::Service) };
            return vec![services, Scope::all(Kind::EndpointSlice)];
        }
        for namespace in &self.namespaces {
            let labels = Arc::clone(&self.labels);
            scopes.push(Scope { labels, ..Scope::in_namespace(Kind::Service, namespace) });
            scopes.push(Scope::in_namespace(Kind::EndpointSlice, namespace));
        }
        // A slice may change its service: one watch for all of a namespace sees it once.
        let mut slices: BTreeMap<&Arc<str>, BTreeSet<&Arc<str>>> = BTreeMap::new();
        for service in &self.services {
            slices.entry(&service.namespace).or_default().insert(&service.name);
        }
        if !scopes.iter().any(|scope| scope.covers(&of_apiservers)) {
            slices.entry(&of_apiservers.namespace).or_default().insert(&of_apiservers.name);
        }
        for (namespace, names) in slices {
            let services = self.services.iter().filter(|service| service.namespace == *namespace);
            scopes.extend(services.filter_map(|service| Self::of_service(service).into_iter().next()));
            let names = names.into_iter().cloned().collect();
            scopes.push(Scope { names, ..Scope::in_namespace(Kind::EndpointSlice, namespace) });
        }
        scopes
    }

    /// The scopes of one service; none if nodelb does not read it.
    pub fn scopes_of(&self, service: &ServiceName) -> Vec<Scope> {
        let scopes = Self::of_service(service).map(|scope| Scope { labels: Arc::clone(&self.labels), ..scope });
        if self.covers(service) { scopes.into() } else { Vec::new() }
    }

    fn of_service(service: &ServiceName) -> [Scope; 2] {
        let names = || vec![Arc::clone(&service.name)];
        Kind::SERVED.map(|kind| Scope { names: names(), ..Scope::in_namespace(kind, &service.namespace) })
    }
}

#[cfg(test)]
#[path = "tests/scope.rs"]
mod tests;

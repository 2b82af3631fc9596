//! The services with a port where load balancers check whether this node has local backends (Kubernetes
//! `healthCheckNodePort`), and the data for the responses. The daemon listens on the ports.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;

use crate::model::addr::{Addr, Family};
use crate::model::service::{FrontendKind, Service, ServiceName};

/// The services with a health-check port. The set is updated with each change, so that no search through all services
/// is necessary.
#[derive(Clone, Debug, Default)]
pub struct HealthCheckPorts(OrdMap<ServiceName, Wanted>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    port: u16,
    /// The families of the service's ClusterIPs. Load balancers of the other family do not use the port.
    families: BTreeSet<Family>,
    /// The addresses of the service's load balancers.
    balancers: BTreeSet<Addr>,
    created: Option<u64>,
}

/// The services that want the same port over IPv4 or IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimants {
    /// The oldest service that wants the port; among services of equal age, the first by name.
    pub owner: ServiceName,
    /// The other services, in order of precedence. A cluster assigns each port to one service, but files may contain
    /// conflicts.
    pub waiting: Vec<ServiceName>,
}

impl HealthCheckPorts {
    /// Records the current description of the service; `None` if there is no service of this name.
    pub(crate) fn note(&mut self, name: &ServiceName, service: Option<&Service>) {
        let wanted = service.and_then(|service| {
            let port = service.health_check_port?;
            let of_kind = |kind| {
                let frontends = service.ports.iter().flat_map(|port| &port.frontends);
                frontends.filter(move |frontend| frontend.kind == kind).map(|frontend| frontend.addr)
            };
            let families = of_kind(FrontendKind::ClusterIP).map(Addr::family).collect();
            let balancers = of_kind(FrontendKind::LoadBalancer).collect();
            Some(Wanted { port, families, balancers, created: service.created })
        });
        if self.0.get(name) == wanted.as_ref() {
            return;
        }
        match wanted {
            Some(wanted) => self.0.insert(name.clone(), wanted),
            None => self.0.remove(name),
        };
    }

    /// Whether both are unchanged clones of one another. May return false for equal contents.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The services and their ports, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ServiceName, u16)> {
        self.0.iter().map(|(name, wanted)| (name, wanted.port))
    }

    /// The addresses of the service's load balancers.
    pub fn balancers(&self, name: &ServiceName) -> impl Iterator<Item = &Addr> {
        self.0.get(name).into_iter().flat_map(|wanted| &wanted.balancers)
    }

    pub fn by_port(&self) -> BTreeMap<(u16, Family), Claimants> {
        let mut lines: BTreeMap<(u16, Family), Vec<(u64, &ServiceName)>> = BTreeMap::new();
        for (name, wanted) in &self.0 {
            for family in &wanted.families {
                let line = lines.entry((wanted.port, *family)).or_default();
                line.push((wanted.created.unwrap_or(0), name));
            }
        }
        let claimants = |(at, mut line): (_, Vec<(u64, &ServiceName)>)| {
            line.sort();
            let mut names = line.into_iter().map(|(_, name)| name.clone());
            names.next().map(|owner| (at, Claimants { owner, waiting: names.collect() }))
        };
        lines.into_iter().filter_map(claimants).collect()
    }
}

#[cfg(test)]
#[path = "tests/health_check_ports.rs"]
mod tests;

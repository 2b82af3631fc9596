//! Local entry: which services have a port where load balancers ask whether this node has a backend of its own
//! (Kubernetes `healthCheckNodePort`), and what they are to be told. Listening there is the daemon's.

use std::collections::{BTreeMap, BTreeSet};

use imbl::OrdMap;

use crate::model::addr::Family;
use crate::model::service::{FrontendKind, Service, ServiceName};

/// The services with a health-check port, kept up to date change by change: nobody looks through every service for them.
#[derive(Clone, Debug, Default)]
pub struct HealthCheckPorts(OrdMap<ServiceName, Wanted>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    port: u16,
    /// Those the service has a ClusterIP in: a load balancer of the other one has no business here.
    families: BTreeSet<Family>,
    created: Option<u64>,
}

/// Who is asked at a port, over IPv4 or IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimants {
    /// The oldest service that wants it, the first by name of those.
    pub owner: ServiceName,
    /// The others, in line. A cluster gives each port to one service; files may say anything.
    pub waiting: Vec<ServiceName>,
}

impl HealthCheckPorts {
    /// Takes note of what the service is now; `None` where there is none of this name.
    pub(crate) fn note(&mut self, name: &ServiceName, service: Option<&Service>) {
        let wanted = service.and_then(|service| {
            let port = service.health_check_port?;
            let frontends = service.ports.iter().flat_map(|port| &port.frontends);
            let inside = frontends.filter(|frontend| frontend.kind == FrontendKind::ClusterIP);
            let families = inside.map(|frontend| frontend.addr.family()).collect();
            Some(Wanted { port, families, created: service.created })
        });
        if self.0.get(name) == wanted.as_ref() {
            return;
        }
        match wanted {
            Some(wanted) => self.0.insert(name.clone(), wanted),
            None => self.0.remove(name),
        };
    }

    /// Whether both are clones of one another and nothing has changed since. May say no although they are equal.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// How many services want a port.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The services and their ports, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ServiceName, u16)> {
        self.0.iter().map(|(name, wanted)| (name, wanted.port))
    }

    /// Who is asked at which port.
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
mod tests;

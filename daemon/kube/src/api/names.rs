//! Strings that many objects share, which would otherwise take more memory than the objects.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use nodelb_core::change::Change;
use nodelb_core::model::service::{Backend, Hints, Origin, Service, ServiceName, Slice};
use nodelb_core::text::name;

use super::objects::EndpointHints;

/// Names that many objects have in common: namespaces, nodes, zones, ports and writers. Each is checked and stored once.
#[derive(Debug, Default)]
pub struct Names(HashSet<Arc<str>, RandomState>);

/// The maximum number of shared names: twice the number of nodes in the largest cluster that Kubernetes supports.
const MAX_NAMES: usize = 10_000;

impl Names {
    /// The name, safe for a terminal. A name that is stored is safe.
    pub fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.0.get(text) {
            return Arc::clone(shared);
        }
        if self.0.len() == MAX_NAMES {
            // Some of them are not in use any more; the others are stored again.
            self.0.clear();
        }
        let shared: Arc<str> = (&*name(text)).into();
        self.0.insert(Arc::clone(&shared));
        shared
    }

    pub fn non_empty(&mut self, text: Option<&str>) -> Option<Arc<str>> {
        text.filter(|text| !text.is_empty()).map(|text| self.shared(text))
    }

    /// `None` if the hints contain no names: empty hints are ignored.
    pub fn hints(&mut self, hints: &EndpointHints) -> Option<Arc<Hints>> {
        let zones: Vec<_> = hints.for_zones.iter().filter_map(|zone| self.non_empty(Some(&zone.name))).collect();
        let nodes: Vec<_> = hints.for_nodes.iter().filter_map(|node| self.non_empty(Some(&node.name))).collect();
        (!zones.is_empty() || !nodes.is_empty()).then(|| Arc::new(Hints { zones, nodes }))
    }

    /// Makes an object that was read from a file as small as one that was translated from an apiserver's.
    pub fn share(&mut self, change: &mut Change) {
        match change {
            Change::UpsertService(Service { name, origin, ports, .. }) => {
                *name = ServiceName::of(self.shared(&name.namespace), Arc::clone(&name.name));
                self.share_origin(origin);
                ports.shrink_to_fit();
                for port in ports {
                    port.name = self.shared(&port.name);
                    port.frontends.shrink_to_fit();
                }
            }
            Change::UpsertSlice(Slice { name, origin, ports, .. }) => {
                name.namespace = self.shared(&name.namespace);
                self.share_origin(origin);
                ports.shrink_to_fit();
                for port in ports {
                    port.name = self.shared(&port.name);
                    port.backends.shrink_to_fit();
                    port.backends.iter_mut().for_each(|backend| self.share_backend(backend));
                }
            }
            _ => {}
        }
    }

    fn share_origin(&mut self, origin: &mut Origin) {
        origin.object = self.shared(&origin.object);
        origin.writer = self.shared(&origin.writer);
    }

    fn share_backend(&mut self, Backend { node, zone, hints, .. }: &mut Backend) {
        let mut share = |name: &mut Arc<str>| *name = self.shared(name);
        node.iter_mut().chain(zone).for_each(&mut share);
        if let Some(Hints { zones, nodes }) = hints.as_mut().map(Arc::make_mut) {
            zones.iter_mut().chain(nodes).for_each(share);
        }
    }
}

#[cfg(test)]
#[path = "tests/names.rs"]
mod tests;

//! Operations that the datapath did not carry out, by the entry they concern. The round decides when to retry them.

use std::collections::BTreeMap;

use imbl::OrdMap;

use crate::datapath::MapError;
use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, MapOp, Realised, ServiceId};
use crate::state::map_ops::Touched;

/// The last error of each entry with a failed last operation.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) services: BTreeMap<ServiceId, MapError>,
    frontends: BTreeMap<L4Addr, MapError>,
    /// A persistent map, because readers get copies of it.
    pub(super) node_addrs: OrdMap<Addr, MapError>,
}

impl Failures {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty() && self.node_addrs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.services.len() + self.frontends.len() + self.node_addrs.len()
    }

    /// The error that delays the frontend at the address, which leads to the service.
    pub(super) fn of_frontend(&self, address: L4Addr, service: ServiceId) -> Option<&MapError> {
        self.services.get(&service).or_else(|| self.frontends.get(&address))
    }

    /// Records the result of the operation.
    pub(super) fn note(&mut self, op: &MapOp, error: Option<MapError>) {
        match op {
            MapOp::PutService(id, _) | MapOp::DeleteService(id) => note(&mut self.services, *id, error),
            MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                note(&mut self.frontends, *address, error);
            }
            MapOp::PutNodeAddr(addr) | MapOp::DeleteNodeAddr(addr) => match error {
                Some(error) => drop(self.node_addrs.insert(*addr, error)),
                // A removal copies the part that is shared with readers, so it must not be done without need.
                None if self.node_addrs.contains_key(addr) => drop(self.node_addrs.remove(addr)),
                None => {}
            },
        }
    }

    /// The entries to retry while the `node_addrs` map has this number of entries. If the map is as full as before, it
    /// accepts none of the failed node addresses.
    pub(super) fn to_retry(&self, node_addr_count: usize) -> Touched {
        let has_hope = |(_, error): &(&Addr, &MapError)| match error {
            MapError::TooManyNodeAddrs { limit } => node_addr_count < *limit as usize,
            _ => true,
        };
        Touched {
            services: self.services.keys().copied().collect(),
            frontends: self.frontends.keys().copied().collect(),
            node_addrs: self.node_addrs.iter().filter(has_hope).map(|(addr, _)| *addr).collect(),
        }
    }

    /// Forgets the touched entries that are equal in the desired and the realised state.
    pub(super) fn settle(&mut self, touched: &Touched, desired: &Desired, realised: &Realised) {
        for id in touched.services.iter().filter(|id| desired.services.get(*id) == realised.services.get(*id)) {
            self.services.remove(id);
        }
        for address in touched.frontends.iter().filter(|a| desired.frontends.get(*a) == realised.frontends.get(*a)) {
            self.frontends.remove(address);
        }
        let is_right = |addr: &&Addr| desired.node_addrs.contains(*addr) == realised.node_addrs.contains(*addr);
        for addr in touched.node_addrs.iter().filter(is_right) {
            self.node_addrs.remove(addr);
        }
    }
}

fn note<K: Ord>(failed: &mut BTreeMap<K, MapError>, key: K, error: Option<MapError>) {
    match error {
        Some(error) => {
            failed.insert(key, error);
        }
        None => {
            failed.remove(&key);
        }
    }
}

//! Operations that the datapath did not carry out, by the entry they are about. When they are tried again is the round's
//! business.

use std::collections::BTreeMap;

use imbl::OrdMap;

use crate::datapath::MapError;
use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, MapOp, Realised, ServiceId};
use crate::state::map_ops::Touched;

/// The last error of each entry whose last operation failed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) services: BTreeMap<ServiceId, MapError>,
    frontends: BTreeMap<L4Addr, MapError>,
    /// For readers.
    pub(super) node_addrs: OrdMap<Addr, MapError>,
}

impl Failures {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty() && self.node_addrs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.services.len() + self.frontends.len() + self.node_addrs.len()
    }

    /// What the frontend at the address, which leads to the service, waits for.
    pub(super) fn of_frontend(&self, address: L4Addr, service: ServiceId) -> Option<&MapError> {
        self.services.get(&service).or_else(|| self.frontends.get(&address))
    }

    /// The operation went like this.
    pub(super) fn note(&mut self, op: &MapOp, error: Option<MapError>) {
        match op {
            MapOp::PutService(id, _) | MapOp::DeleteService(id) => note(&mut self.services, *id, error),
            MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                note(&mut self.frontends, *address, error);
            }
            MapOp::PutNodeAddr(addr) | MapOp::DeleteNodeAddr(addr) => match error {
                Some(error) => drop(self.node_addrs.insert(*addr, error)),
                // A removal makes a copy of what readers have.
                None if self.node_addrs.contains_key(addr) => drop(self.node_addrs.remove(addr)),
                None => {}
            },
        }
    }

    /// The entries to try again in a kernel that answers NodePorts on so many addresses: a map that is as full as it was
    /// takes none of them.
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

    /// Forgets those of them in which the kernel is as it should be.
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

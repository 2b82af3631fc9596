//! The addresses where apiservers are known to listen, and the decision whether a service reaches one of them. Such a
//! service is protected: it always keeps its last backends. The engine applies the protection.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{FrontendKind, Service, Slice, Source};
use crate::state::remembered::Remembered;

/// The maximum number of addresses that were read from slices or are no longer reported. It bounds the memory
/// regardless of the slices; a cluster has only a few apiservers.
pub const MAX_OBSERVED: usize = 256;

/// The addresses of apiservers. A known address stays known for the lifetime of the engine, because removing one could
/// only remove protection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apiservers {
    /// The addresses in the last [`crate::change::Change::Apiservers`].
    reported: BTreeSet<(Addr, u16)>,
    /// The backends of `default/kubernetes`, including removed ones, and the addresses that were reported earlier.
    observed: BTreeSet<(Addr, u16)>,
    /// One bit for each known port modulo 64. It makes lookups cheap: they are made for every backend of every service,
    /// and hardly any has such a port.
    ports: u64,
}

impl Apiservers {
    /// Whether an apiserver is known to listen at this address and port.
    pub fn contains(&self, addr: Addr, port: u16) -> bool {
        self.ports & port_bit(port) != 0
            && (self.reported.contains(&(addr, port)) || self.observed.contains(&(addr, port)))
    }

    /// Whether the transport address is an apiserver's. Apiservers listen on TCP.
    pub fn has(&self, at: L4Addr) -> bool {
        at.protocol == Protocol::Tcp && self.contains(at.addr, at.port)
    }

    pub fn is_empty(&self) -> bool {
        self.reported.is_empty() && self.observed.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Addr, u16)> {
        self.reported.union(&self.observed).copied()
    }

    /// Accepts the current addresses of the address pool. Returns those that were not known.
    pub(crate) fn set_reported(&mut self, addresses: BTreeSet<(Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let new = addresses.iter().filter(|(addr, port)| !self.contains(*addr, *port)).copied().collect();
        self.ports |= addresses.iter().fold(0, |ports, (_, port)| ports | port_bit(*port));
        let before = std::mem::replace(&mut self.reported, addresses);
        self.add(before);
        new
    }

    /// Accepts the backends in a slice of `default/kubernetes`. Returns those that were not known.
    pub(crate) fn learn(&mut self, slice: &Slice) -> BTreeSet<(Addr, u16)> {
        let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        self.add_new(ports.flat_map(|port| &port.backends).map(|backend| (backend.addr, backend.port)))
    }

    /// Accepts the backends that `default/kubernetes` had before the start. Returns those that were not known.
    pub(crate) fn restore(&mut self, records: &[Remembered]) -> BTreeSet<(Addr, u16)> {
        let records = records.iter().filter(|it| it.port.service.is_default_kubernetes() && it.is_plausible());
        let backends = records.flat_map(|record| &record.cluster).map(|(at, _)| *at);
        self.add_new(backends.filter(|at| at.protocol == Protocol::Tcp).map(|at| (at.addr, at.port)))
    }

    fn add_new(&mut self, addresses: impl Iterator<Item = (Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let is_new = |at: &(Addr, u16)| is_address(*at) && !self.contains(at.0, at.1);
        let new: Vec<_> = addresses.filter(is_new).collect();
        self.add(new)
    }

    fn add(&mut self, addresses: impl IntoIterator<Item = (Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let mut taken = BTreeSet::new();
        for address in addresses {
            if self.observed.len() < MAX_OBSERVED && self.observed.insert(address) {
                self.ports |= port_bit(address.1);
                taken.insert(address);
            }
        }
        taken
    }
}

fn port_bit(port: u16) -> u64 {
    1 << (port % 64)
}

/// Whether a slice may add this address as an apiserver's.
fn is_address((addr, port): (Addr, u16)) -> bool {
    port != 0 && !addr.is_unspecified() && !addr.is_multicast() && !addr.is_loopback()
}

/// Whether the slice contains the addresses of apiservers.
pub(crate) fn lists_apiservers(slice: &Slice) -> bool {
    slice.source == Source::Kubernetes && slice.service.is_default_kubernetes()
}

/// Whether one of the service's frontends has one of these addresses, or one of its backends does, usable or not.
pub(crate) fn leads_to(
    service: &Service,
    slices: &[Arc<Slice>],
    node: &NodeFacts,
    is_apiserver: impl Fn(Addr, u16) -> bool,
) -> bool {
    let is_apiserver_frontend = |addr: Addr, port: u16, kind: FrontendKind| match kind {
        FrontendKind::NodePort => {
            let of_family = |own: &&Addr| own.family() == addr.family();
            node.addresses.iter().filter(of_family).any(|own| is_apiserver(*own, port))
        }
        _ => is_apiserver(addr, port),
    };
    let mut frontends = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp).flat_map(|p| &p.frontends);
    let ports = slices.iter().flat_map(|slice| &slice.ports).filter(|port| port.protocol == Protocol::Tcp);
    frontends.any(|frontend| is_apiserver_frontend(frontend.addr, frontend.port, frontend.kind))
        || ports.flat_map(|port| &port.backends).any(|backend| is_apiserver(backend.addr, backend.port))
}

#[cfg(test)]
#[path = "tests/apiservers.rs"]
mod tests;

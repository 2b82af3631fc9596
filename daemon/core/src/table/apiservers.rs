//! At which addresses an apiserver is known to listen, and which services lead there: those are protected, their last
//! backends are never taken from them. Owns the set and the judgement; what follows from it is the engine's.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{FrontendKind, Service, ServiceName, Slice, Source};
use crate::state::remembered::Remembered;

/// The most addresses kept that were read from slices or are no longer told. Memory must not depend on what a slice
/// says; a cluster has a handful of apiservers.
pub const MAX_SEEN: usize = 256;

/// The addresses of apiservers. An address once known stays known for as long as the engine lives: forgetting one could
/// only take protection away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apiservers {
    /// As [`crate::change::Change::Apiservers`] says now.
    told: BTreeSet<(Addr, u16)>,
    /// Backends of `default/kubernetes`, gone ones too, and what was told before.
    seen: BTreeSet<(Addr, u16)>,
    /// A bit for each known port modulo 64: every backend of every service is asked about, and hardly any has such a
    /// port.
    ports: u64,
}

impl Apiservers {
    /// Whether an apiserver is known to listen there.
    pub fn contains(&self, addr: Addr, port: u16) -> bool {
        self.ports & port_bit(port) != 0 && (self.told.contains(&(addr, port)) || self.seen.contains(&(addr, port)))
    }

    /// Whether the transport address is one of theirs: they listen on TCP.
    pub fn has(&self, at: L4Addr) -> bool {
        at.protocol == Protocol::Tcp && self.contains(at.addr, at.port)
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty() && self.seen.is_empty()
    }

    /// Every known address, each once.
    pub fn iter(&self) -> impl Iterator<Item = (Addr, u16)> {
        self.told.union(&self.seen).copied()
    }

    /// Takes in what the address pool says. Returns what was not known.
    pub(crate) fn tell(&mut self, addresses: BTreeSet<(Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let new = addresses.iter().filter(|(addr, port)| !self.contains(*addr, *port)).copied().collect();
        self.ports |= addresses.iter().fold(0, |ports, (_, port)| ports | port_bit(*port));
        let before = std::mem::replace(&mut self.told, addresses);
        self.see(before);
        new
    }

    /// Takes in the backends of a slice of `default/kubernetes`. Returns what was not known.
    pub(crate) fn learn(&mut self, slice: &Slice) -> BTreeSet<(Addr, u16)> {
        let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        self.see_new(ports.flat_map(|port| &port.backends).map(|backend| (backend.addr, backend.port)))
    }

    /// Takes in the backends that `default/kubernetes` had before the start. Returns what was not known.
    pub(crate) fn recall(&mut self, records: &[Remembered]) -> BTreeSet<(Addr, u16)> {
        let records = records.iter().filter(|it| is_default_kubernetes(&it.port.service) && it.is_plausible());
        let backends = records.flat_map(|record| &record.cluster).map(|(at, _)| *at);
        self.see_new(backends.filter(|at| at.protocol == Protocol::Tcp).map(|at| (at.addr, at.port)))
    }

    fn see_new(&mut self, addresses: impl Iterator<Item = (Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let is_new = |at: &(Addr, u16)| is_address(*at) && !self.contains(at.0, at.1);
        let new: Vec<_> = addresses.filter(is_new).collect();
        self.see(new)
    }

    fn see(&mut self, addresses: impl IntoIterator<Item = (Addr, u16)>) -> BTreeSet<(Addr, u16)> {
        let mut taken = BTreeSet::new();
        for address in addresses {
            if self.seen.len() < MAX_SEEN && self.seen.insert(address) {
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

/// Whether the address may be an apiserver's on the word of a slice.
fn is_address((addr, port): (Addr, u16)) -> bool {
    port != 0 && !addr.is_unspecified() && !addr.is_multicast() && !addr.is_loopback()
}

/// Whether this is the service the apiservers publish themselves under.
pub(crate) fn is_default_kubernetes(name: &ServiceName) -> bool {
    *name.name == *"kubernetes" && *name.namespace == *"default"
}

/// Whether the slice says where apiservers are.
pub(crate) fn tells_of_apiservers(slice: &Slice) -> bool {
    slice.source == Source::Kubernetes && is_default_kubernetes(&slice.service)
}

/// Whether a client that dials one of the service's frontends dials one of these addresses, or one of its backends is
/// one of them, usable or not.
pub(crate) fn leads_to(
    service: &Service,
    slices: &[Arc<Slice>],
    node: &NodeFacts,
    is_apiserver: impl Fn(Addr, u16) -> bool,
) -> bool {
    let is_dialled = |addr: Addr, port: u16, kind: FrontendKind| match kind {
        FrontendKind::NodePort => {
            let of_family = |own: &&Addr| own.family() == addr.family();
            node.addresses.iter().filter(of_family).any(|own| is_apiserver(*own, port))
        }
        _ => is_apiserver(addr, port),
    };
    let mut frontends = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp).flat_map(|p| &p.frontends);
    let ports = slices.iter().flat_map(|slice| &slice.ports).filter(|port| port.protocol == Protocol::Tcp);
    frontends.any(|frontend| is_dialled(frontend.addr, frontend.port, frontend.kind))
        || ports.flat_map(|port| &port.backends).any(|backend| is_apiserver(backend.addr, backend.port))
}

#[cfg(test)]
mod tests;

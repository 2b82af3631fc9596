//! The result of a connection, derived from the state alone. It answers the operator's question, and the BPF programs
//! are tested against it: `bpf/service.h` makes the same decision in C.

use std::ops::RangeInclusive;

use imbl::OrdMap;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::packets::admission::{Refusal, admit};
use crate::snapshot::Snapshot;
use crate::state::entries::{FrontendEntry, Lead, MapState, OutsideEntry, ServiceId, Slot};

/// The result of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The connection goes to one of these slots with equal probability. For a UDP socket without a backend,
    /// rendezvous hashing determines the slot.
    Forwarded(ServiceId, &'a [Slot]),
    /// The connection of a process on this node fails immediately. Of clients outside the node, it is refused if there is
    /// no backend; otherwise their packets are dropped.
    Refused(ServiceId, Refusal),
    /// The connection is not translated.
    PassedThrough,
}

impl<'a> Verdict<'a> {
    fn new(state: &'a MapState, lead: Option<Lead>, client: Option<Addr>) -> Self {
        let Some(lead) = lead else { return Self::PassedThrough };
        match admit(state, lead, client) {
            Ok(view) => Self::Forwarded(lead.service, view),
            Err(why) => Self::Refused(lead.service, why),
        }
    }
}

/// The result of a connection from a process on this node to this address. Affinity, and a UDP socket's earlier backend,
/// may restrict a forwarded connection to one of the slots but never add others.
pub fn trace<'a>(state: &'a MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr) -> Verdict<'a> {
    let found = lookup_frontend(state, nodeport_range, to);
    Verdict::new(state, found.map(|(_, entry)| entry.lead()), None)
}

/// The result of a connection from a client outside the node. Without its address, the client counts as admitted.
pub fn trace_outside<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
    client: Option<Addr>,
) -> Verdict<'a> {
    let found = lookup_outside(state, nodeport_range, to);
    Verdict::new(state, found.map(|(_, entry)| *entry), client)
}

/// Whether the address admits a socket that may get each of these source addresses: that of a bound socket, or those of a
/// network namespace. `bpf/clients.h` makes the same decision; [`trace`] is about a client that is admitted.
pub fn admits(state: &MapState, to: L4Addr, sources: &[Addr]) -> bool {
    let to = destination(to);
    let Some(entry) = state.outside.get(&to).filter(|entry| entry.has_ranges) else { return true };
    let mut sources = sources.iter().filter(|source| !source.is_loopback());
    sources.any(|source| state.ranges_of(entry.service).any(|range| range.contains(*source)))
}

/// The result of a connection from a process on this node to this address.
pub fn verdict(snapshot: &Snapshot, to: L4Addr) -> Verdict<'_> {
    trace(&snapshot.answering, &snapshot.config.guard.nodeport_range, to)
}

/// The destination that the kernel uses for this address: the unspecified address means the loopback address of its
/// family. NodePorts are stored under the unspecified address, so it is never looked up as the client's destination.
pub fn destination(to: L4Addr) -> L4Addr {
    match to.addr {
        Addr::UNSPECIFIED_V4 => L4Addr { addr: Addr::LOOPBACK_V4, ..to },
        Addr::UNSPECIFIED_V6 => L4Addr { addr: Addr::LOOPBACK_V6, ..to },
        _ => to,
    }
}

/// The frontend that matches for clients on this node, and its key: the address of the connection, or the unspecified
/// address of a NodePort.
pub fn lookup_frontend<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
) -> Option<(L4Addr, &'a FrontendEntry)> {
    lookup(&state.frontends, state, nodeport_range, destination(to))
}

/// The frontend that matches for clients outside the node, and its key.
pub fn lookup_outside<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
) -> Option<(L4Addr, &'a OutsideEntry)> {
    lookup(&state.outside, state, nodeport_range, to)
}

/// Whether a service has the address for clients outside the node, at any port. What is not translated there is not passed
/// on, unless a device or a pod of the node has the address.
pub fn is_of_service_outside(state: &MapState, addr: Addr) -> bool {
    !addr.is_unspecified() && state.outside.range(L4Addr::all_at(addr)).next().is_some()
}

/// The entry of the address itself, or that of the NodePort if the address is the node's. NodePorts are stored under the
/// unspecified address, which is no destination of its own.
fn lookup<'a, E>(
    entries: &'a OrdMap<L4Addr, E>,
    state: &MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
) -> Option<(L4Addr, &'a E)> {
    if to.protocol == Protocol::Sctp || to.addr.is_unspecified() {
        return None;
    }
    let kept_at = |at: L4Addr| Some((at, entries.get(&at)?));
    kept_at(to).or_else(|| {
        let is_nodeport = nodeport_range.contains(&to.port) && state.node_addrs.contains(&to.addr);
        is_nodeport.then(|| kept_at(to.wildcard())).flatten()
    })
}

/// The served NodePorts, under the unspecified address of their family, that a socket takes away from their services
/// when it is bound to this address.
pub fn taken_nodeports(state: &MapState, bound: L4Addr, only_v6: bool) -> impl Iterator<Item = L4Addr> {
    let is_here = bound.addr.is_unspecified() || state.node_addrs.contains(&bound.addr);
    let is_both = bound.addr == Addr::UNSPECIFIED_V6 && !only_v6;
    let other = is_both.then_some(L4Addr { addr: Addr::UNSPECIFIED_V4, ..bound });
    let nodeports = is_here.then(|| bound.wildcard()).into_iter().chain(other);
    nodeports.filter(|nodeport| {
        let entry = state.frontends.get(nodeport);
        entry.is_some_and(|entry| state.services.get(&entry.service).is_none_or(|service| !service.may_be_bound))
    })
}

#[cfg(test)]
#[path = "tests/outside_clients.rs"]
mod outside_clients;
#[cfg(test)]
#[path = "tests/trace.rs"]
mod tests;

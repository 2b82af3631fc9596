//! The result of a connection, derived from the state alone. It answers the operator's question, and the BPF programs
//! are tested against it: `bpf/service.h` makes the same decision in C.

use std::ops::RangeInclusive;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::snapshot::Snapshot;
use crate::state::entries::{FrontendEntry, MapState, ServiceId, Slot};

/// The result of a connection from a process on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The connection goes to one of these slots with equal probability. For a UDP socket without a backend,
    /// rendezvous hashing determines the slot.
    Forwarded(ServiceId, &'a [Slot]),
    /// The connection fails immediately.
    Refused(ServiceId, Errno),
    /// The connection is not translated.
    PassedThrough,
}

/// The errors of refused connections. EPERM is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Errno {
    /// The service has no usable backend at all.
    #[strum(to_string = "ECONNREFUSED")]
    ConnectionRefused,
    /// The policy restricts the client to this node, and no backend is here.
    #[strum(to_string = "EHOSTUNREACH")]
    HostUnreachable,
    /// The client is in none of the source ranges of the service.
    #[strum(to_string = "EHOSTUNREACH")]
    NotAdmitted,
}

/// The result of a connection to this address. Affinity, and a UDP socket's earlier backend, may restrict a forwarded
/// connection to one of the slots but never add others.
pub fn trace<'a>(state: &'a MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr) -> Verdict<'a> {
    let Some((_, frontend)) = lookup_frontend(state, nodeport_range, to) else { return Verdict::PassedThrough };
    let service = frontend.service;
    let Some(entry) = state.services.get(&service) else {
        return Verdict::Refused(service, Errno::ConnectionRefused);
    };
    let view = entry.view(frontend.inside_local);
    if !view.is_empty() {
        Verdict::Forwarded(service, view)
    } else if entry.has_backends {
        Verdict::Refused(service, Errno::HostUnreachable)
    } else {
        Verdict::Refused(service, Errno::ConnectionRefused)
    }
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

/// Whether a datagram that a UDP socket of the node's own network namespace sends to this address is an answer to a socket
/// of that namespace that has the port; an answer is not translated. `has_received`: the sending socket has received a
/// datagram from there while the NodePort was served and could not be bound, and was not a client of the NodePort before.
/// A new socket never answers. `bpf/answers.h` makes the same decision.
pub fn is_answer(state: &MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr, has_received: bool) -> bool {
    let to = destination(to);
    let found = lookup_frontend(state, nodeport_range, to);
    let is_nodeport = found.is_some_and(|(at, entry)| at != to && !may_be_bound(state, entry));
    to.protocol == Protocol::Udp && has_received && is_nodeport
}

/// The frontend that matches, and its key: the address of the connection, or the unspecified address of a NodePort.
pub fn lookup_frontend<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
) -> Option<(L4Addr, &'a FrontendEntry)> {
    if to.protocol == Protocol::Sctp {
        return None;
    }
    let to = destination(to);
    let kept_at = |at: L4Addr| Some((at, state.frontends.get(&at)?));
    kept_at(to).or_else(|| {
        if !nodeport_range.contains(&to.port) || !state.node_addrs.contains(&to.addr) {
            return None;
        }
        kept_at(to.wildcard())
    })
}

/// Whether a process on this node is prevented from binding this address, because it would take a NodePort away from
/// its service for clients outside the node. A socket that accepts IPv6 only takes fewer ([`taken_nodeports`]), which the
/// program sees on Linux 6.2 and newer. `bpf/bind.h` makes the same decision.
pub fn refuses_bind(state: &MapState, nodeport_range: &RangeInclusive<u16>, bound: L4Addr) -> bool {
    if !nodeport_range.contains(&bound.port) || bound.protocol == Protocol::Sctp {
        return false;
    }
    taken_nodeports(state, bound, false).next().is_some()
}

/// The served NodePorts, under the unspecified address of their family, that a socket takes away from their services
/// when it is bound to this address.
pub fn taken_nodeports(state: &MapState, bound: L4Addr, only_v6: bool) -> impl Iterator<Item = L4Addr> {
    let is_here = bound.addr.is_unspecified() || state.node_addrs.contains(&bound.addr);
    let is_both = bound.addr == Addr::UNSPECIFIED_V6 && !only_v6;
    let other = is_both.then_some(L4Addr { addr: Addr::UNSPECIFIED_V4, ..bound });
    let nodeports = is_here.then(|| bound.wildcard()).into_iter().chain(other);
    nodeports.filter(|nodeport| state.frontends.get(nodeport).is_some_and(|entry| !may_be_bound(state, entry)))
}

/// See [`crate::state::entries::ServiceEntry::may_be_bound`].
fn may_be_bound(state: &MapState, nodeport: &FrontendEntry) -> bool {
    state.services.get(&nodeport.service).is_some_and(|service| service.may_be_bound)
}

#[cfg(test)]
#[path = "tests/trace.rs"]
mod tests;

//! What the socket programs decide except where a connection leads, which [`nodelb_core::trace`] does.

use std::ops::RangeInclusive;

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::state::entries::MapState;
use nodelb_core::trace::{destination, lookup_frontend, taken_nodeports};

/// Whether a datagram that a UDP socket of the node's own network namespace sends to this address is an answer to a socket
/// of that namespace that has the port; an answer is not translated. `has_received`: the sending socket has received a
/// datagram from there while a socket had the port and the NodePort was served and could not be bound, and was not a client of
/// the NodePort before.
/// A new socket never answers. `bpf/answers.h` makes the same decision.
pub fn is_answer(state: &MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr, has_received: bool) -> bool {
    let to = destination(to);
    let found = lookup_frontend(state, nodeport_range, to);
    let may_be_bound = |id| state.services.get(&id).is_some_and(|service| service.may_be_bound);
    let is_nodeport = found.is_some_and(|(at, entry)| at != to && !may_be_bound(entry.service));
    to.protocol == Protocol::Udp && has_received && is_nodeport
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

#[cfg(test)]
#[path = "tests/sockets.rs"]
mod tests;

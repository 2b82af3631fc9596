//! The result of a connection from a client outside the node, derived from the state alone: whether the address is
//! served, whether the client is admitted, and which backend it gets. The BPF programs make the same decisions.

use std::ops::RangeInclusive;

use crate::claims::{Claim, Row};
use crate::compile::outside::{has_ranges, source_ranges};
use crate::explain::rows::OutsideAccess;
use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::source_range::SourceRange;
use crate::snapshot::Snapshot;
use crate::state::entries::{MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};
use crate::state::ring;

/// The result of a connection from a client outside the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutsideVerdict<'a> {
    /// The connection goes to one of these slots.
    Forwarded(ServiceId, &'a [Slot]),
    /// The connection is refused, because the service has no usable backend at all.
    Refused(ServiceId),
    /// The packets are dropped, because the service has usable backends, but the policy requires one on this node.
    NoLocalBackend(ServiceId),
    /// The packets are dropped, because the client is in none of the service's source ranges.
    NotAdmitted(ServiceId),
    /// The connection is not translated.
    PassedThrough,
}

/// Who may connect to an address from outside the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every client: the address has no source ranges.
    All,
    /// The client, because it is in this range, the longest one that contains it.
    Range(SourceRange),
    /// Not the client: it is in no range.
    No,
    /// Only clients in the ranges, and the address of the client is not given.
    Unknown,
}

/// The result of a connection to this address. Without the client's address, the client counts as admitted.
pub fn trace_outside<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
    client: Option<Addr>,
) -> OutsideVerdict<'a> {
    let Some((_, entry)) = lookup_outside(state, nodeport_range, to) else { return OutsideVerdict::PassedThrough };
    if admission(state, entry, client) == Admission::No {
        return OutsideVerdict::NotAdmitted(entry.service);
    }
    let service = state.services.get(&entry.service);
    let view = service.map_or(&[][..], |service| service.view(entry.local));
    match view {
        [] if service.is_some_and(|service| service.has_backends) => OutsideVerdict::NoLocalBackend(entry.service),
        [] => OutsideVerdict::Refused(entry.service),
        view => OutsideVerdict::Forwarded(entry.service, view),
    }
}

/// The entry of `outside` that matches, and its key.
pub(crate) fn lookup_outside<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
) -> Option<(L4Addr, &'a OutsideEntry)> {
    if to.protocol == Protocol::Sctp || to.addr.is_unspecified() {
        return None;
    }
    let kept_at = |at: L4Addr| Some((at, state.outside.get(&at)?));
    let is_nodeport = nodeport_range.contains(&to.port) && state.node_addrs.contains(&to.addr);
    kept_at(to).or_else(|| is_nodeport.then(|| kept_at(to.wildcard())).flatten())
}

/// Whether the client may connect.
pub(crate) fn admission(state: &MapState, entry: &OutsideEntry, client: Option<Addr>) -> Admission {
    match client {
        _ if !entry.has_ranges => Admission::All,
        None => Admission::Unknown,
        Some(client) => {
            let admitting = state.ranges_of(entry.service).filter(|range| range.contains(client));
            admitting.max_by_key(|range| range.prefix).map_or(Admission::No, Admission::Range)
        }
    }
}

/// The backend that a client without a connection and without affinity gets; `None` if it is chosen at random, or if it
/// depends on the client's port, which is not given.
pub(crate) fn selected(
    service: &ServiceEntry,
    local: bool,
    to: L4Addr,
    (client, port): (Addr, Option<u16>),
) -> Option<L4Addr> {
    let view = service.view(local);
    let hash = match port {
        _ if view.len() > 1 && !service.has_rings => return None,
        _ if service.affinity_seconds > 0 => ring::client_hash(client, None),
        Some(port) => ring::client_hash(client, Some((port, to))),
        None if view.len() > 1 => return None,
        None => 0,
    };
    view.get(ring::select(view, hash)).map(|slot| slot.addr)
}

/// Whether clients outside the node are served through the claim at this position of the row.
pub(crate) fn access(snapshot: &Snapshot, row: &Row, place: usize) -> OutsideAccess {
    let claim = &row.claims()[place];
    match () {
        () if !snapshot.config.packets.is_on => OutsideAccess::Off,
        () if !claim.is_outside => OutsideAccess::Inside,
        () if claim.target.is_err() || place > 0 => OutsideAccess::Refused,
        () if admits_none(snapshot, claim) => OutsideAccess::NoSourceRange,
        () => OutsideAccess::Served,
    }
}

/// Whether the source ranges of the service admit no client of the address's family.
fn admits_none(snapshot: &Snapshot, claim: &Claim) -> bool {
    let owner = snapshot.facts.owner(&claim.key.service).filter(|_| has_ranges(claim.kind));
    let ranges = owner.and_then(|(service, _)| source_ranges(service, claim.key.family));
    ranges.is_some_and(|ranges| ranges.is_empty())
}

#[cfg(test)]
#[path = "tests/outside.rs"]
mod tests;

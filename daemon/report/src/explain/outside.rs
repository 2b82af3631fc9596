//! The result of a connection from a client outside the node, derived from the state alone: whether the address is
//! served, whether the client is admitted, and which backend it gets. The decisions are those of [`nodelb_core::packets`].

use std::ops::RangeInclusive;

use crate::explain::rows::OutsideAccess;
use nodelb_core::claims::{Claim, Row};
use nodelb_core::compile::outside::{has_ranges, source_ranges};
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::uplink::Translation;
use nodelb_core::packets::admission::{Refusal, admit};
use nodelb_core::packets::frontend::find_outside;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapState, ServiceId, Slot};

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

/// The result of a connection to this address. Without the client's address, the client counts as admitted.
pub fn trace_outside<'a>(
    state: &'a MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
    client: Option<Addr>,
) -> OutsideVerdict<'a> {
    let Some(frontend) = find_outside(state, nodeport_range, to) else { return OutsideVerdict::PassedThrough };
    let service = frontend.service;
    match admit(state, frontend, client) {
        Ok(view) => OutsideVerdict::Forwarded(service, view),
        Err(Refusal::NotAdmitted) => OutsideVerdict::NotAdmitted(service),
        Err(Refusal::NoLocalBackend) => OutsideVerdict::NoLocalBackend(service),
        Err(Refusal::NoBackend) => OutsideVerdict::Refused(service),
    }
}

/// Whether clients outside the node are served through the claim at this position of the row.
pub(crate) fn access(snapshot: &Snapshot, row: &Row, place: usize, address: L4Addr) -> OutsideAccess {
    let claim = &row.claims()[place];
    match () {
        () if !snapshot.config.packets.is_on => OutsideAccess::Off,
        () if snapshot.still_serves(row, place, address) => access_as_before(snapshot, address),
        () if !claim.is_outside => OutsideAccess::NodeOnly,
        () if claim.target.is_err() || place > 0 => OutsideAccess::Refused,
        () if admits_none(snapshot, claim) => OutsideAccess::NoSourceRange,
        () if lacks_local_backend(snapshot, claim) => OutsideAccess::NoLocalBackend,
        () => access_now(snapshot),
    }
}

/// Whether clients outside the node are served at an address that the maps have from before the start.
pub(crate) fn access_as_before(snapshot: &Snapshot, address: L4Addr) -> OutsideAccess {
    match snapshot.realised.outside.contains_key(&address) {
        _ if !snapshot.config.packets.is_on => OutsideAccess::Off,
        true => access_now(snapshot),
        false => OutsideAccess::NodeOnly,
    }
}

/// Whether clients outside the node are served at an address for them.
fn access_now(snapshot: &Snapshot) -> OutsideAccess {
    match snapshot.facts().translation {
        Translation::On => OutsideAccess::Served,
        Translation::Draining => OutsideAccess::Draining,
        Translation::Off => OutsideAccess::Off,
    }
}

/// Whether the service has backends, but none on this node, where the policy Local requires one.
pub(crate) fn lacks_local_backend(snapshot: &Snapshot, claim: &Claim) -> bool {
    let service = claim.target.as_ref().ok().and_then(|id| snapshot.realised.services.get(id));
    claim.outside_local && service.is_some_and(|service| service.has_backends && service.local.is_empty())
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

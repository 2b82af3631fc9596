//! Whether clients outside the node are served at an address.

use crate::explain::rows::OutsideAccess;
use nodelb_core::claims::{Claim, Row};
use nodelb_core::compile::outside::{has_ranges, source_ranges};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::model::uplink::Translation;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceEntry;

/// Whether clients outside the node are served through the claim at this position of the row.
pub(crate) fn access(snapshot: &Snapshot, row: &Row, place: usize, address: L4Addr) -> OutsideAccess {
    let claim = &row.claims()[place];
    match () {
        () if !snapshot.config.packets.is_on => OutsideAccess::Off,
        () if snapshot.still_serves(row, place, address) => access_as_before(snapshot, address),
        () if !claim.is_outside => OutsideAccess::NodeOnly,
        () if claim.target.is_err() || place > 0 => OutsideAccess::Refused,
        () if snapshot.facts.translation.of(Some(claim.source)) != Translation::On => {
            access_now(snapshot, Some(claim.source))
        }
        () if admits_none(snapshot, claim) => OutsideAccess::NoSourceRange,
        () if lacks_local_backend(snapshot, claim) => OutsideAccess::NoLocalBackend,
        () => access_now(snapshot, Some(claim.source)),
    }
}

/// Whether clients outside the node are served at an address that the maps have from before the start.
pub(crate) fn access_as_before(snapshot: &Snapshot, address: L4Addr) -> OutsideAccess {
    match snapshot.realised.outside.get(&address) {
        _ if !snapshot.config.packets.is_on => OutsideAccess::Off,
        Some(entry) => access_now(snapshot, snapshot.realised.source_of(entry.service)),
        None => OutsideAccess::NodeOnly,
    }
}

/// Whether clients outside the node are served at an address for them of a service of this source.
fn access_now(snapshot: &Snapshot, source: Option<Source>) -> OutsideAccess {
    match snapshot.facts.translation.of(source) {
        Translation::On => OutsideAccess::Served,
        Translation::Files | Translation::Draining => OutsideAccess::Draining,
        Translation::Off => OutsideAccess::Off,
    }
}

/// How packets of clients outside reach backends on other machines from the address.
pub(crate) fn forward(entry: Option<&ServiceEntry>, address: L4Addr, access: OutsideAccess) -> Forward {
    entry.filter(|_| may_forward(address, access)).map_or(Forward::Translate, |entry| entry.forward)
}

/// Whether packets to the address may be forwarded without a translation. Those to a NodePort never are.
pub(crate) fn may_forward(address: L4Addr, access: OutsideAccess) -> bool {
    let is_served = !matches!(access, OutsideAccess::Off | OutsideAccess::NodeOnly | OutsideAccess::Refused);
    is_served && !address.addr.is_unspecified()
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

//! Whether clients outside the node are served at an address.

use std::collections::BTreeSet;

use crate::explain::rows::OutsideAccess;
use nodelb_core::claims::{Claim, Row};
use nodelb_core::compile::outside::{has_ranges, is_outside, source_ranges};
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::model::uplink::Translation;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{ServiceEntry, backends_of};

/// Why packets of a client outside the node are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The policy requires a backend on this node, and none of the usable ones is here.
    NoLocalBackend,
    /// The client is in none of the service's source ranges.
    NotAdmitted,
    /// The kernel of this node does not forward packets.
    NotForwarded,
    /// The kernel forwards no packets from a link-local address of IPv6 (RFC 4291, section 2.5.6).
    LinkLocal,
    /// The client has the address and port of a service.
    ServedSource,
    /// No service has the port and protocol, and only nodelb has the address.
    NotServed,
    /// A policy of IPsec protects the packets.
    Ipsec,
}

/// Whether clients outside the node are served through the claim at this position of the row.
pub(crate) fn access(snapshot: &Snapshot, row: &Row, place: usize, address: L4Addr) -> OutsideAccess {
    let claim = &row.claims()[place];
    match () {
        () if !snapshot.config.packets.is_on => OutsideAccess::Off,
        () if snapshot.still_serves(row, place, address) => access_as_before(snapshot, address),
        () if !claim.is_outside && is_asked_for(snapshot, claim) => OutsideAccess::Loopback,
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

/// Whether the service is described as one for clients outside the node. If they are not served nevertheless, it has only
/// loopback backends.
fn is_asked_for(snapshot: &Snapshot, claim: &Claim) -> bool {
    let owner = snapshot.facts.owner(&claim.key.service);
    owner.is_some_and(|(service, _)| is_outside(service, claim.kind, snapshot.config.packets))
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

/// The services with clients outside the node whose packets the kernel has to forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Those to all of their backends.
    pub all: BTreeSet<ServiceName>,
    /// Those to some of them.
    pub some: BTreeSet<ServiceName>,
}

/// Finds the services of a family with clients outside the node and with backends that have no address of it.
pub fn forwarded(snapshot: &Snapshot, family: Family) -> Forwarded {
    let (mut found, mut seen) = (Forwarded::default(), BTreeSet::new());
    let own = &snapshot.facts.node().addresses;
    for entry in snapshot.realised.outside.iter().filter(|(at, _)| at.addr.family() == family).map(|(_, entry)| entry) {
        if !seen.insert((entry.service, entry.local)) || snapshot.facts.translation == Translation::Off {
            continue;
        }
        let owner = snapshot.owners.get(&entry.service).map(|owner| &owner.key.service);
        let Some((name, service)) = owner.zip(snapshot.realised.services.get(&entry.service)) else { continue };
        let is_here: Vec<bool> = backends_of(service.view(entry.local)).map(|(at, _)| own.contains(&at.addr)).collect();
        match is_here.iter().filter(|is_here| !**is_here).count() {
            0 => continue,
            elsewhere if elsewhere == is_here.len() => found.all.insert(name.clone()),
            _ => found.some.insert(name.clone()),
        };
    }
    found.some.retain(|name| !found.all.contains(name));
    found
}

/// How packets of clients outside reach backends on other machines from the address.
pub(crate) fn forward(entry: Option<&ServiceEntry>, address: L4Addr, access: OutsideAccess) -> Forward {
    entry.filter(|_| may_forward(address, access)).map_or(Forward::Translate, |entry| entry.forward)
}

/// Whether packets to the address may be forwarded without a translation. Those to a NodePort never are.
pub(crate) fn may_forward(address: L4Addr, access: OutsideAccess) -> bool {
    use OutsideAccess::{Loopback, NodeOnly, Off, Refused};
    let is_served = !matches!(access, Off | NodeOnly | Loopback | Refused);
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

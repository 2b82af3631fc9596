//! Services whose clients outside the node are dropped, because a policy of IPsec protects their packets.

use std::collections::BTreeSet;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_core::text::{counted, listed};

use super::problem::{DROPS_WITHIN, Observed, Problem, SHOWN};
use super::reason::Reason;

pub(super) fn protected(observed: &Observed) -> Option<Problem> {
    let snapshot = &observed.snapshot;
    let is_recent = |last: crate::time::Time| last.age(observed.clocks.time) <= DROPS_WITHIN;
    let drops = observed.drops.iter().find(|it| it.reason == "ipsec" && is_recent(it.last));
    let services: BTreeSet<String> = match observed.policies.rules[..] {
        [] => BTreeSet::new(),
        _ => to_protected(observed).filter_map(|id| snapshot.service_of(id)).collect(),
    };
    if services.is_empty() && drops.is_none() {
        return None;
    }
    let of_services = match services.is_empty() {
        true => "clients outside the node that they cover are dropped".to_owned(),
        false => format!("clients outside the node do not reach backends of {}", listed(&services, SHOWN)),
    };
    let why = match observed.policies.is_cut {
        true => "there are more policies of IPsec than nodelb follows, so that all packets count as protected",
        false => "policies of IPsec protect packets that nodelb cannot encrypt",
    };
    let packets = drops.map(|it| {
        let packets = usize::try_from(it.packets).unwrap_or(usize::MAX);
        format!("; {} dropped", counted(packets, "packet"))
    });
    let cause = format!("{why}: {of_services}{}", packets.unwrap_or_default());
    let since = drops.filter(|it| services.is_empty() && it.first.age(it.last) <= DROPS_WITHIN).map(|it| it.first);
    Some(Problem::new(Reason::IpsecProtects, "packets", cause).since(since))
}

/// The services for clients outside the node with a backend to which packets are protected.
fn to_protected(observed: &Observed) -> impl Iterator<Item = ServiceId> {
    let snapshot: &Snapshot = &observed.snapshot;
    let is_protected = |backend: &L4Addr| observed.policies.protect_to(*backend, snapshot.realised.uplinks.values());
    let services: BTreeSet<ServiceId> = snapshot.realised.outside.values().map(|entry| entry.service).collect();
    services.into_iter().filter(move |id| {
        let entry = snapshot.realised.services.get(id);
        entry.is_some_and(|entry| entry.cluster.iter().any(|slot| is_protected(&slot.addr)))
    })
}

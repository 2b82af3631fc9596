//! Rows about what the maps contain from before the start and no source describes. The maps contain no names; those that
//! the previous run has stored are used.

use std::collections::BTreeMap;

use super::from_maps::slot_rows;
use super::services::{BackendRow, FrontendRow, ServiceRow, direct_return};
use crate::explain::kept::why_kept;
use crate::explain::outside;
use crate::explain::reports::distinct;
use crate::filter::Filter;
use crate::time::Clocks;
use nodelb_core::before::Lasting;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::TrafficPolicy;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{FrontendEntry, ServiceId};

/// The rows of `/frontends`, by address.
pub(super) fn frontends<'a>(
    snapshot: &'a Snapshot,
    filter: &'a Filter,
    clocks: Clocks,
) -> impl Iterator<Item = FrontendRow> + 'a {
    let kept = addresses(snapshot, filter);
    let kept = kept.filter(|(.., kept)| filter.status.is_none_or(|wanted| kept.status == wanted));
    kept.map(move |(address, entry, Lasting { status, since })| {
        let service = snapshot.realised.services.get(&entry.service);
        let named = snapshot.former_port(entry.service);
        FrontendRow {
            address,
            kind: None,
            service: named.map(|port| port.service.to_string()),
            port: named.map(|port| port.port.to_string()).filter(|port| !port.is_empty()),
            backends: service.map(|service| distinct(service.view(entry.inside_local))).unwrap_or_default(),
            flags: Vec::new(),
            outside: outside::access_as_before(snapshot, address).to_string(),
            status,
            since: Some(clocks.time_of(since)),
            error: Some(why(snapshot, address, entry)),
        }
    })
}

/// The rows of `/services`: one for each service port.
pub(super) fn services(snapshot: &Snapshot, filter: &Filter) -> Vec<ServiceRow> {
    let ports = ports(snapshot, filter).into_iter();
    let rows = ports.filter_map(|(id, addresses)| service(snapshot, id, &addresses));
    rows.filter(|row| filter.status.is_none_or(|status| row.status == status)).collect()
}

/// The rows of `/backends`, by service port and address.
pub(super) fn backends(snapshot: &Snapshot, filter: &Filter) -> Vec<BackendRow> {
    let everywhere = Filter { address: None, ..filter.clone() };
    let ports = ports(snapshot, &everywhere).into_keys();
    let rows = ports.filter_map(|id| Some(slot_rows(snapshot.realised.services.get(&id)?, None))).flatten();
    rows.filter(|row| filter.address.is_none_or(|addr| row.address.addr == addr)).collect()
}

type Kept<'a> = (L4Addr, &'a FrontendEntry, Lasting);

/// The addresses that the filter accepts. None of them has a known type.
fn addresses<'a>(snapshot: &'a Snapshot, filter: &'a Filter) -> impl Iterator<Item = Kept<'a>> + 'a {
    let is_any = filter.service.is_none() && filter.namespace.is_none();
    let is_meant = move |(address, entry, _): &Kept<'_>| {
        let is_named = || snapshot.former_port(entry.service).is_some_and(|port| filter.accepts(&port.service));
        filter.address.is_none_or(|addr| address.addr == addr) && (is_any || is_named())
    };
    let kept = filter.kind.is_none().then(|| snapshot.kept()).into_iter().flatten();
    kept.filter(is_meant)
}

fn ports<'a>(snapshot: &'a Snapshot, filter: &'a Filter) -> BTreeMap<ServiceId, Vec<Kept<'a>>> {
    let mut ports: BTreeMap<ServiceId, Vec<Kept<'_>>> = BTreeMap::new();
    addresses(snapshot, filter).for_each(|kept| ports.entry(kept.1.service).or_default().push(kept));
    ports
}

fn service(snapshot: &Snapshot, id: ServiceId, addresses: &[Kept<'_>]) -> Option<ServiceRow> {
    let entry = snapshot.realised.services.get(&id)?;
    let (first, of_first, _) = addresses.first()?;
    let is_local = |view: fn(&FrontendEntry) -> bool| {
        let is_any = addresses.iter().any(|(_, entry, _)| view(entry));
        if is_any { TrafficPolicy::Local } else { TrafficPolicy::Cluster }.to_string()
    };
    let mut ports: Vec<String> =
        addresses.iter().map(|(address, ..)| format!("{}/{}", address.port, address.protocol)).collect();
    ports.dedup();
    Some(ServiceRow {
        service: snapshot.former_port(id).map(|port| port.service.to_string()),
        source: entry.tag.map(|tag| tag.source.to_string()).unwrap_or_default(),
        ports,
        internal_policy: is_local(|entry| entry.inside_local),
        external_policy: is_local(|entry| entry.outside_local),
        affinity: (entry.affinity_seconds > 0).then_some(entry.affinity_seconds.into()),
        forward: direct_return(entry.forward),
        frontends: addresses.len() as u64,
        outside: addresses.iter().map(|(address, ..)| outside::access_as_before(snapshot, *address)).min()?.to_string(),
        backends: distinct(&entry.cluster).len() as u64,
        selectable: distinct(entry.view(of_first.inside_local)).len() as u64,
        status: addresses.iter().map(|(.., kept)| kept.status).max_by_key(|status| status.badness())?,
        origin: None,
        error: Some(format!("{first}: {}", why(snapshot, *first, of_first))),
    })
}

fn why(snapshot: &Snapshot, address: L4Addr, entry: &FrontendEntry) -> String {
    format!("in use as before the start, {}", why_kept(snapshot, address, entry))
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;

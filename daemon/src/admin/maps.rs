//! `/maps`: the present contents of the maps, read from the kernel, with the names of services that the table knows.
//! The caller reads the maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::StatusCode;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::entries::{FrontendEntry, MapState, ServiceEntry, ServiceId};
use nodelb_core::state::kernel_check::Content;
use nodelb_datapath::packets::ConnectionCount;
use nodelb_report::explain::explanation::ViewKind;
use nodelb_report::filter::Filter;
use nodelb_report::problems::TableUsage;
use nodelb_report::rows::{LimitRow, MapFrontendRow, MapServiceRow, MapSlotRow, Maps, NodeAddressRow, direct_return};

use super::query::Problem;
use super::state::{AdminState, latest};

/// Returns the answer of `/maps`: frontends, services, slots, node addresses, and the usage of each map. The filter
/// applies to all but the last: the address of a frontend selects its service and slots, the address of a backend
/// selects every service and frontend that reaches it. `name_of` returns the name of a service id, such as
/// `shop/web:http/TCP/IPv4`.
pub(super) fn maps(
    held: &MapState,
    name_of: &dyn Fn(ServiceId) -> Option<String>,
    usage: &[TableUsage],
    filter: &Filter,
) -> Maps {
    let shown = Shown::new(held, name_of, filter);
    Maps {
        frontends: shown.frontends(held),
        services: shown.services(held),
        slots: shown.slots(held),
        node_addresses: node_addresses(held, filter),
        limits: limits(usage),
    }
}

/// The filter, and the names of the services.
struct Shown<'a> {
    names: BTreeMap<ServiceId, String>,
    /// Services with a frontend at the requested address.
    reached: BTreeSet<ServiceId>,
    /// Services with a slot of the requested address.
    holding: BTreeSet<ServiceId>,
    filter: &'a Filter,
}

impl<'a> Shown<'a> {
    fn new(held: &MapState, name_of: &dyn Fn(ServiceId) -> Option<String>, filter: &'a Filter) -> Self {
        let known = held.services.keys().copied().chain(held.frontends.values().map(|entry| entry.service));
        let names = known.filter_map(|id| Some((id, name_of(id)?))).collect();
        let mut shown = Self { names, reached: BTreeSet::new(), holding: BTreeSet::new(), filter };
        let frontends = held.frontends.iter().filter(|(key, _)| shown.shows_address(key.addr));
        let reached = frontends.map(|(_, entry)| entry.service).filter(|&id| shown.names_service(id)).collect();
        let entries = held.services.iter().filter(|(_, entry)| shown.shows_some_slot(entry));
        let holding = entries.map(|(id, _)| *id).filter(|&id| shown.names_service(id)).collect();
        shown.reached = reached;
        shown.holding = holding;
        shown
    }

    fn shows_some_slot(&self, entry: &ServiceEntry) -> bool {
        let mut slots = entry.cluster.iter().chain(entry.local.iter());
        self.filter.address.is_none() || slots.any(|slot| self.shows_address(slot.addr.addr))
    }

    fn shows_address(&self, addr: Addr) -> bool {
        self.filter.address.is_none_or(|wanted| wanted == addr)
    }

    /// Compares the full name, which ends at the `:` before the name of the port, or at the `/` before its protocol.
    fn names_service(&self, id: ServiceId) -> bool {
        let mut parts = self.names.get(&id).into_iter().flat_map(|name| name.split(['/', ':']));
        let (namespace, name) = (parts.next(), parts.next());
        let is_it = |wanted: &ServiceName| (namespace, name) == (Some(&*wanted.namespace), Some(&*wanted.name));
        let Filter { service, namespace: of, .. } = self.filter;
        service.as_ref().is_none_or(is_it) && of.as_ref().is_none_or(|of| namespace == Some(&**of))
    }

    fn shows_service(&self, id: ServiceId) -> bool {
        self.reached.contains(&id) || self.holding.contains(&id)
    }

    fn name(&self, id: ServiceId) -> Option<String> {
        self.names.get(&id).cloned()
    }

    fn frontends(&self, held: &MapState) -> Vec<MapFrontendRow> {
        let is_shown = |(key, entry): &(&L4Addr, &FrontendEntry)| match self.shows_address(key.addr) {
            true => self.reached.contains(&entry.service),
            false => self.holding.contains(&entry.service),
        };
        let row = |(key, entry): (&L4Addr, &FrontendEntry)| MapFrontendRow {
            address: key.to_string(),
            id: entry.service.0.into(),
            service: self.name(entry.service),
            inside: view(entry.inside_local),
            outside: view(entry.outside_local),
        };
        held.frontends.iter().filter(is_shown).map(row).collect()
    }

    fn services(&self, held: &MapState) -> Vec<MapServiceRow> {
        let row = |(&key, entry): (&ServiceId, &Arc<ServiceEntry>)| MapServiceRow {
            id: key.0.into(),
            service: self.name(key),
            cluster: entry.cluster.len() as u64,
            local: entry.local.len() as u64,
            has_backends: entry.has_backends,
            affinity: Some(entry.affinity_seconds.into()).filter(|seconds| *seconds > 0),
            forward: direct_return(entry.forward),
        };
        held.services.iter().filter(|(key, _)| self.shows_service(**key)).map(row).collect()
    }

    /// Returns one row per backend of a view. A backend of weight 3 has three slots.
    fn slots(&self, held: &MapState) -> Vec<MapSlotRow> {
        let mut rows = Vec::new();
        for (&key, entry) in held.services.iter().filter(|(key, _)| self.shows_service(**key)) {
            for (name, slots) in [(ViewKind::Cluster, &entry.cluster), (ViewKind::Local, &entry.local)] {
                let runs = slots.chunk_by(|left, right| left == right);
                let runs = runs.filter(|run| self.reached.contains(&key) || self.shows_address(run[0].addr.addr));
                rows.extend(runs.map(|run| MapSlotRow {
                    id: key.0.into(),
                    service: self.name(key),
                    view: name.to_string(),
                    backend: run[0].addr.to_string(),
                    backend_id: run[0].backend.0.into(),
                    slots: run.len() as u64,
                }));
            }
        }
        rows
    }
}

fn view(local: bool) -> String {
    if local { ViewKind::Local } else { ViewKind::Cluster }.to_string()
}

fn node_addresses(held: &MapState, filter: &Filter) -> Vec<NodeAddressRow> {
    let shown = held.node_addrs.iter().filter(|addr| filter.address.is_none_or(|wanted| wanted == **addr));
    shown.map(|addr| NodeAddressRow { address: addr.to_string() }).collect()
}

/// The name of the map with a limit that nodelb does not have to observe, because the kernel evicts entries.
const CACHE: &str = "affinity";

/// The usage of the map with this name in `bpf/maps.h`.
fn table(name: &'static str, used: Option<u64>, limit: u32, key: &'static str) -> TableUsage {
    TableUsage { name, used, limit: limit.into(), key, is_cache: name == CACHE, full_since: None }
}

/// Returns the usage of each map. Slots at rest count as used, if their number is known. The maps of connections have two
/// entries for each connection; their rows count connections, as the last count found them.
pub(super) fn usage(held: &MapState, state: &AdminState, now: Moment) -> Vec<TableUsage> {
    usage_with(held, state, now, state.datapath.clients())
}

/// [`usage`] with this number of clients, which takes long to count.
pub(super) fn usage_with(held: &MapState, state: &AdminState, now: Moment, clients: Option<usize>) -> Vec<TableUsage> {
    let datapath = &state.datapath;
    let slots = datapath.slots_taken(now).unwrap_or_else(|| held.slot_count());
    let mut usage = usage_of(held, datapath.limits(), (slots, clients));
    if let Some(sweep) = state.packets.as_ref().and_then(|packets| packets.sweep.as_ref()) {
        let (sweep, max_handshakes) = (latest(sweep), latest(&state.config).packets.max_handshakes);
        let number = |of: fn(&ConnectionCount) -> u64| sweep.count.as_ref().map(of);
        usage.push(table("connections", number(|it| it.connections), sweep.limit, "packets.max-connections"));
        usage.push(table("half_open", number(ConnectionCount::half_open), max_handshakes, "packets.max-handshakes"));
    }
    usage
}

/// Returns the usage of the maps with services, which have this number of slots and clients in use.
pub(super) fn usage_of(held: &MapState, limits: Limits, (slots, clients): (usize, Option<usize>)) -> Vec<TableUsage> {
    let map = |name, used: Option<usize>, limit, key| table(name, used.map(|used| used as u64), limit, key);
    let mut usage = vec![
        map("frontends", Some(held.frontends.len()), limits.frontends, "datapath.max-frontends"),
        map("services", Some(held.services.len()), limits.services, "datapath.max-services"),
        map("slots", Some(slots), limits.slots, "datapath.max-slots"),
        map("affinity", clients, limits.affinity, "datapath.max-affinity"),
    ];
    if limits.outside > 0 {
        usage.push(map("outside", Some(held.outside.len()), limits.outside, "packets.max-outside"));
        let ranges = Some(held.source_ranges.len());
        usage.push(map("source_ranges", ranges, limits.source_ranges, "packets.max-source-ranges"));
    }
    usage
}

pub(super) fn limits(usage: &[TableUsage]) -> Vec<LimitRow> {
    let row =
        |it: &TableUsage| LimitRow { map: it.name.into(), used: it.used, limit: it.limit, config_key: it.key.into() };
    usage.iter().map(row).collect()
}

pub(super) fn held(state: &AdminState) -> Result<Content, Problem> {
    state.datapath.content().map_err(|reason| {
        let message = format!("cannot read the kernel maps: {reason}; connections keep working, see the journal");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

#[cfg(test)]
#[path = "tests/maps.rs"]
mod tests;

//! Rows from the content of the maps alone, for a command that works without the daemon. What the maps do not contain,
//! such as the node of a backend, is absent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::services::{BackendRow, FrontendRow};
use crate::explain::explanation::{Client, ConnectResult, ViewKind, result};
use crate::explain::outside;
use crate::explain::ranges::Admitted;
use crate::explain::reports::{affinity_flag, distinct, forward_flag, port_keys};
use crate::explain::rows::OutsideAccess;
use crate::filter::Filter;
use nodelb_core::compile::outside::PacketsConfig;
use nodelb_core::compile::select::Choice;
use nodelb_core::history::Record;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::drain::{self, Drain, Drains};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, PortKey, Service, ServiceName, Slice, SlicePort, Source,
};
use nodelb_core::state::entries::{FrontendEntry, Lead, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::owner::OwnerTag;
use nodelb_core::state::status::Status;
use nodelb_core::text::filled;
use nodelb_core::trace::{destination, lookup_frontend, lookup_outside};

/// Why the daemon's health checks matter while it does not run.
const LAST_RESORT: &str = "every backend failed its health checks while the daemon ran, and none is checked now";

/// The names of service ports that may be in the maps. An entry contains only hashes of its owner's name.
#[derive(Debug, Default)]
pub struct Names {
    /// `None` if several ports have this tag.
    ports: BTreeMap<OwnerTag, Option<Arc<PortKey>>>,
    kinds: BTreeMap<(ServiceName, L4Addr), FrontendKind>,
    backends: BTreeMap<PortKey, BTreeSet<L4Addr>>,
    pub drains: BTreeMap<ServiceName, Drains>,
}

impl Names {
    /// Adds the ports of a service, and the kinds of its addresses.
    pub fn add_service(&mut self, service: &Service) {
        for key in port_keys(service, &[], PacketsConfig::default()) {
            self.add(&Arc::new(key), service.source);
        }
        for port in &service.ports {
            let kinds = port.frontends.iter().map(|it| ((service.name.clone(), it.l4(port.protocol)), it.kind));
            self.kinds.extend(kinds);
        }
    }

    /// Adds the backends of a slice. Those with a DNS name are not in it.
    pub fn add_slice(&mut self, slice: &Slice) {
        for SlicePort { name, protocol, backends } in &slice.ports {
            for Backend { addr, port, .. } in backends {
                let (service, port_name) = (slice.service.clone(), Arc::clone(name));
                let key = PortKey { service, port: port_name, protocol: *protocol, family: addr.family() };
                self.backends.entry(key).or_default().insert(L4Addr::new(*addr, *port, *protocol));
            }
        }
    }

    /// The backends of the port that are drained, which the entry therefore does not have.
    fn drained(&self, key: Option<&Arc<PortKey>>, entry: Option<&Arc<ServiceEntry>>) -> Vec<(L4Addr, &Drain)> {
        let Some((key, entry)) = key.map(Arc::as_ref).zip(entry) else { return Vec::new() };
        let Some((drains, known)) = self.drains.get(&key.service).zip(self.backends.get(key)) else {
            return Vec::new();
        };
        let unused = known.iter().filter(|at| entry.cluster.iter().all(|slot| slot.addr != **at));
        unused.filter_map(|at| Some((*at, drain::find(drains, (at.addr, at.port))?))).collect()
    }

    pub fn add_record(&mut self, record: &Record) {
        if let (Some(key), Some(source)) = (&record.event.port, record.event.source) {
            self.add(key, source);
        }
    }

    fn add(&mut self, key: &Arc<PortKey>, source: Source) {
        let known = self.ports.entry(OwnerTag::new(key, source)).or_insert_with(|| Some(Arc::clone(key)));
        if known.as_ref().is_some_and(|known| known != key) {
            *known = None;
        }
    }

    fn of(&self, entry: &ServiceEntry) -> Option<&Arc<PortKey>> {
        self.ports.get(entry.tag.as_ref()?)?.as_ref()
    }
}

/// The content of the maps, and what else is known about it.
#[derive(Debug)]
pub struct MapContent {
    pub state: MapState,
    /// The names that may be in it.
    pub names: Names,
    pub nodeport_range: RangeInclusive<u16>,
    /// Whether there are maps for clients outside the node.
    pub has_outside: bool,
}

/// Where a connection leads according to the maps.
#[derive(Debug)]
pub struct MapTrace<'a> {
    pub result: ConnectResult,
    /// Whether the source ranges of the service admit the client, the address of which is not known.
    pub admitted: Admitted,
    /// The frontend that matches; `None` if none does.
    pub found: Option<MapMatch<'a>>,
}

/// The frontend that an address leads to, as [`MatchedFrontend`](crate::explain::explanation::MatchedFrontend), and its
/// service.
#[derive(Debug)]
pub struct MapMatch<'a> {
    pub at: L4Addr,
    pub id: ServiceId,
    /// The service port; `None` if its name is unknown.
    pub port: Option<&'a Arc<PortKey>>,
    /// The kind of the address; `None` if it is unknown.
    pub kind: Option<FrontendKind>,
    pub view: ViewKind,
    pub affinity_seconds: u32,
    pub forward: Forward,
    /// Every backend of the service port, with the number of its slots in the view.
    pub backends: Vec<(L4Addr, usize)>,
    pub drained: Vec<(L4Addr, &'a Drain)>,
    /// Whether every backend failed its health checks while the daemon ran.
    pub is_last_resort: bool,
}

impl MapContent {
    /// The service port with this id, as `shop/web:http/TCP/IPv4`; `None` if its name is unknown.
    pub fn name_of(&self, id: ServiceId) -> Option<String> {
        if id == ServiceId::CANARY {
            return Some("canary".into());
        }
        self.port(id).map(ToString::to_string)
    }

    /// The names of the services in the maps, as far as they are known.
    pub fn services(&self) -> BTreeSet<&ServiceName> {
        self.state.services.keys().filter_map(|id| Some(&self.port(*id)?.service)).collect()
    }

    /// The services with this address, at any port.
    pub fn services_at(&self, addr: Addr) -> BTreeSet<ServiceName> {
        let entries = self.state.frontends.range(L4Addr::all_at(addr));
        entries.filter_map(|(_, entry)| Some(self.port(entry.service)?.service.clone())).collect()
    }

    /// The rows of `/frontends`, by address.
    pub fn frontends(&self, filter: &Filter) -> Vec<FrontendRow> {
        let entries = self.state.frontends.iter().filter(|(_, entry)| entry.service != ServiceId::CANARY);
        let entries = entries.filter(|(at, entry)| {
            self.accepts(filter, entry.service) && filter.address.is_none_or(|addr| at.addr == addr)
        });
        let rows = entries.map(|(at, entry)| self.frontend(*at, entry));
        let kind = filter.kind.map(|kind| kind.to_string());
        let is_meant = |row: &FrontendRow| {
            (kind.is_none() || row.kind == kind) && filter.status.is_none_or(|status| row.status == status)
        };
        rows.filter(is_meant).collect()
    }

    fn frontend(&self, address: L4Addr, frontend: &FrontendEntry) -> FrontendRow {
        let entry = self.state.services.get(&frontend.service);
        let is_local = entry.map_or(frontend.inside_local, |entry| frontend.is_judged_by_local(address, entry));
        let port = self.port(frontend.service);
        let backends = entry.map(|entry| distinct(entry.view(is_local))).unwrap_or_default();
        let drained = self.names.drained(port, entry);
        let outside = self.access(address);
        let is_last_resort = entry.is_some_and(|entry| entry.is_view_last_resort(is_local));
        let flags = [
            entry.and_then(|entry| affinity_flag(entry)),
            (!drained.is_empty()).then(|| format!("Drained={}", drained.len())),
            forward_flag(outside::forward(entry.map(|entry| &**entry), address, outside)),
            is_last_resort.then(|| "LastResort".into()),
            is_local.then(|| "Local".into()),
        ];
        let error = drained.first().filter(|_| backends.is_empty()).map(|(at, drain)| format!("{at} is {drain}"));
        let error = error.or_else(|| is_last_resort.then(|| LAST_RESORT.into()));
        let status = match () {
            () if backends.is_empty() => Status::NoBackends,
            () if is_last_resort => Status::LastResort,
            () => Status::Ok,
        };
        FrontendRow {
            address,
            kind: self.kind(address, port).map(|kind| kind.to_string()),
            service: port.map(|port| port.service.to_string()),
            port: port.and_then(|port| filled(&port.port)),
            status,
            backends,
            flags: flags.into_iter().flatten().collect(),
            outside: outside.to_string(),
            since: None,
            error,
        }
    }

    /// The rows of `/backends`, by service, port and address.
    pub fn backends(&self, filter: &Filter) -> Vec<BackendRow> {
        let ids = self.state.services.iter().filter(|(id, _)| self.accepts(filter, **id));
        let mut ports: Vec<_> = ids.map(|(id, entry)| (self.port(*id), *id, entry)).collect();
        ports.sort_by_key(|(port, id, _)| (port.is_none(), *port, *id));
        let rows = ports.into_iter().flat_map(|(port, _, entry)| {
            let drained = self.names.drained(port, Some(entry)).into_iter();
            slot_rows(entry, port).chain(drained.map(move |(address, drain)| BackendRow {
                state: Some(BackendState::Maintenance),
                choice: Choice::Maintenance,
                reason: Some(drain.to_string()),
                ..row(address, port)
            }))
        });
        rows.filter(|row| filter.address.is_none_or(|addr| row.address.addr == addr)).collect()
    }

    pub fn trace(&self, to: L4Addr, from: Client) -> MapTrace<'_> {
        let (state, range) = (&self.state, &self.nodeport_range);
        let admitted = Admitted::new(state, range, destination(to), None);
        let found = match from {
            Client::Outside => lookup_outside(state, range, to).map(|(at, entry)| (at, *entry)),
            Client::Pod if from.has_own(destination(to)) => None,
            Client::Host | Client::Pod => lookup_frontend(state, range, to).map(|(at, entry)| (at, entry.lead())),
        };
        let Some((at, Lead { service: id, local: is_local, .. })) = found else {
            return MapTrace { result: ConnectResult::PassedThrough, admitted, found: None };
        };
        let result = result(state, range, to, (from, None)).restricted(admitted.admission, from);
        let entry = state.services.get(&id);
        let [all, view] = [false, is_local].map(|is_local| entry.map_or(&[][..], |entry| entry.view(is_local)));
        let slots = |backend: L4Addr| view.iter().filter(|slot: &&Slot| slot.addr == backend).count();
        let port = self.port(id);
        let found = MapMatch {
            at,
            id,
            port,
            kind: self.kind(at, port),
            view: if is_local { ViewKind::Local } else { ViewKind::Cluster },
            affinity_seconds: entry.map_or(0, |entry| entry.affinity_seconds),
            forward: outside::forward(entry.map(|entry| &**entry), at, OutsideAccess::Served),
            backends: distinct(all).into_iter().map(|backend| (backend, slots(backend))).collect(),
            drained: self.names.drained(port, entry),
            is_last_resort: entry.is_some_and(|entry| entry.is_view_last_resort(is_local)),
        };
        MapTrace { result, admitted, found: Some(found) }
    }

    fn port(&self, id: ServiceId) -> Option<&Arc<PortKey>> {
        self.names.of(self.state.services.get(&id)?)
    }

    /// The kind according to the description of the service. A NodePort is recognised without one.
    fn kind(&self, address: L4Addr, port: Option<&Arc<PortKey>>) -> Option<FrontendKind> {
        if address.addr.is_unspecified() {
            return Some(FrontendKind::NodePort);
        }
        self.names.kinds.get(&(port?.service.clone(), address)).copied()
    }

    /// Whether clients outside the node are served at the address.
    fn access(&self, address: L4Addr) -> OutsideAccess {
        let admits_some = |entry: &OutsideEntry| {
            let mut ranges = self.state.ranges_of(entry.service);
            !entry.has_ranges || ranges.any(|range| range.family() == address.addr.family())
        };
        match self.state.outside.get(&address) {
            _ if !self.has_outside => OutsideAccess::Off,
            None => OutsideAccess::NodeOnly,
            Some(entry) if !admits_some(entry) => OutsideAccess::NoSourceRange,
            Some(entry) if self.lacks_local_backend(address, entry.service) => OutsideAccess::NoLocalBackend,
            Some(_) => OutsideAccess::Served,
        }
    }

    fn lacks_local_backend(&self, address: L4Addr, id: ServiceId) -> bool {
        let is_local = self.state.frontends.get(&address).is_some_and(|entry| entry.outside_local);
        is_local && self.state.services.get(&id).is_some_and(|entry| entry.has_backends && entry.local.is_empty())
    }

    /// Whether the filter accepts the service. An unknown name is neither that of a service nor in a namespace.
    fn accepts(&self, filter: &Filter, id: ServiceId) -> bool {
        match self.port(id) {
            Some(port) => filter.accepts(&port.service),
            None => filter.service.is_none() && filter.namespace.is_none(),
        }
    }
}

/// The rows of the backends in the entry.
pub(super) fn slot_rows<'a>(
    entry: &'a ServiceEntry,
    port: Option<&'a Arc<PortKey>>,
) -> impl Iterator<Item = BackendRow> + 'a {
    let runs = entry.cluster.chunk_by(|left, right| left.addr == right.addr);
    runs.map(move |slots| BackendRow { weight: slots.len() as u64, ..row(slots[0].addr, port) })
}

/// The row of a backend about which only the address and the port are known.
fn row(address: L4Addr, port: Option<&Arc<PortKey>>) -> BackendRow {
    BackendRow {
        address,
        service: port.map(|port| port.service.to_string()),
        port: port.and_then(|port| filled(&port.port)),
        state: None,
        weight: 0,
        node: None,
        zone: None,
        choice: Choice::Selected,
        origin: None,
        reason: None,
        check: None,
        checked: None,
        latency: None,
    }
}

#[cfg(test)]
#[path = "tests/from_maps.rs"]
mod tests;

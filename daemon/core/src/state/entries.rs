//! The desired and the realised content of the maps, as one type, and the operations that lead from one to the other.
//! This is the logical content only; the datapath decides where in the `slots` map a list is stored
//! ([`crate::state::runs`]).

use std::fmt;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use smallvec::SmallVec;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::forward::Forward;
use crate::model::service::Source;
use crate::model::source_range::SourceRange;
use crate::model::uplink::UplinkEntry;
use crate::state::owner::OwnerTag;
use crate::state::ring;
pub(crate) use crate::state::slot::differing_backends;
pub use crate::state::slot::{BackendId, MAX_VIEW_SLOTS, Slot, backends_of};

/// The canaries: addresses that no service may have and that only the hooks refuse. 192.0.0.8 is the IPv4 dummy address
/// (RFC 7600), 100::/64 the discard-only prefix (RFC 6666).
pub const CANARIES: [L4Addr; 2] = [
    L4Addr::new(Addr::from_octets([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 0, 8]), 9, Protocol::Udp),
    L4Addr::new(Addr::from_octets([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]), 9, Protocol::Udp),
];

/// An index into the `services` map, one per [`crate::model::service::PortKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

impl ServiceId {
    /// The canary's service. It never has a backend, so a connection to a canary is always refused.
    pub const CANARY: Self = Self(0);
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Each backend once with its number of slots, in address order.
pub type View = SmallVec<[(L4Addr, u16); 2]>;

/// The content of the maps for one service id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry {
    /// The view with every selected backend, in address order; at most [`MAX_VIEW_SLOTS`] slots.
    pub cluster: Arc<[Slot]>,
    /// The view with the selected backends on this node.
    pub local: Arc<[Slot]>,
    /// Whether any backend is usable at all, on this node or elsewhere. It determines whether an empty view results in
    /// EHOSTUNREACH or ECONNREFUSED.
    pub has_backends: bool,
    /// The session affinity timeout in seconds; 0 without session affinity.
    pub affinity_seconds: u32,
    /// Whether processes of this node may bind the service's NodePorts: one of them is its backend at such a port, or
    /// no address of the node answers NodePorts of the family.
    pub may_be_bound: bool,
    /// Whether each view with more than one slot is followed by its ring ([`crate::state::ring`]).
    pub has_rings: bool,
    /// Whether some addresses admit only clients in the source ranges of the service.
    pub has_ranges: bool,
    /// Whether every backend of the view failed its health checks, and is used because there is no other one.
    pub is_last_resort: bool,
    /// The same for the view with the backends on this node.
    pub is_local_last_resort: bool,
    pub forward: Forward,
    /// The owner, for recognition after a restart; `None` for the canary, and in entries of an earlier nodelb, which
    /// did not write it.
    pub tag: Option<OwnerTag>,
    /// In the canary's entry, where the next start continues. The default in every other entry.
    pub next_ids: NextIds,
}

/// Where the next start continues to number services and backends. Connections, and clients with session affinity, may
/// still have the numbers of deleted ones. 0 is unknown: an earlier nodelb wrote the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextIds {
    /// The first service id to try.
    pub service: u32,
    /// The highest backend id that may have been given.
    pub backend: u32,
}

impl ServiceEntry {
    /// Whether every backend of the view failed its health checks.
    pub fn is_view_last_resort(&self, is_local: bool) -> bool {
        if is_local { self.is_local_last_resort } else { self.is_last_resort }
    }

    /// Whether the entries are equal in everything that affects connections.
    pub(crate) fn is_same_to_clients(&self, after: &Self) -> bool {
        let Self { may_be_bound, has_rings, has_ranges, is_last_resort, is_local_last_resort, tag, .. } = *after;
        let same = Self { may_be_bound, has_rings, has_ranges, tag, ..self.clone() };
        Self { is_last_resort, is_local_last_resort, ..same } == *after
    }

    /// Whether only rings distinguish the entry from this one, which has them.
    pub(crate) fn lacks_rings_of(&self, wanted: &Self) -> bool {
        wanted.has_rings && !self.has_rings && Self { has_rings: true, ..self.clone() } == *wanted
    }

    /// The number of slots that one of the service's views takes, with its ring.
    pub fn run_len(&self, view: &[Slot]) -> usize {
        if self.has_rings { ring::slots_with_ring(view.len()) } else { view.len() }
    }

    /// The number of slots that both views take.
    pub fn slot_count(&self) -> usize {
        self.run_len(&self.cluster) + self.run_len(&self.local)
    }

    /// Whether a view has the backend.
    pub fn has(&self, backend: BackendId) -> bool {
        self.cluster.iter().chain(&*self.local).any(|slot| slot.backend == backend)
    }

    pub fn view(&self, is_local: bool) -> &[Slot] {
        if is_local { &self.local } else { &self.cluster }
    }
}

/// The content of the maps for one frontend address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    pub service: ServiceId,
    /// Whether clients on this node get the local view instead of the cluster view.
    pub inside_local: bool,
    /// Whether clients outside the node get the local view instead of the cluster view. Only the packet path reads it.
    pub outside_local: bool,
}

impl FrontendEntry {
    /// Whether the local view of its service decides the status of the address: that of clients on this node, or that of
    /// clients outside if the backends are of the other family, which only these reach.
    pub fn is_judged_by_local(&self, address: L4Addr, service: &ServiceEntry) -> bool {
        let first = service.cluster.first();
        let is_other_family = first.is_some_and(|slot| slot.addr.addr.family() != address.addr.family());
        if is_other_family { self.outside_local } else { self.inside_local }
    }
}

/// The content of the maps for one frontend address that clients outside the node may connect to.
pub type OutsideEntry = Lead;

/// The content of nodelb's maps, desired or realised. The maps have converged when the two are equal. Cloning is cheap
/// (shared structure), which is how readers get their copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    /// The frontends by the address that clients connect to; NodePorts under the unspecified address of their family.
    pub frontends: OrdMap<L4Addr, FrontendEntry>,
    pub services: OrdMap<ServiceId, Arc<ServiceEntry>>,
    /// The addresses that answer NodePorts.
    pub node_addrs: OrdSet<Addr>,
    /// The frontends that clients outside the node may connect to. Each is one of `frontends`, with the same service.
    pub outside: OrdMap<L4Addr, OutsideEntry>,
    /// The ranges of client addresses that may connect to each service.
    pub source_ranges: OrdSet<(ServiceId, SourceRange)>,
    /// The uplinks by the index of the device.
    pub uplinks: OrdMap<u32, UplinkEntry>,
}

/// The content that follows from the sources.
pub type Desired = MapState;
/// The content that the maps have.
pub type Realised = MapState;

/// One change of the maps. Each may be repeated without effect, and does not affect services that it does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Publishes the service entry. Readers see the old lists or the new ones, never a mixture within one view.
    PutService(ServiceId, Arc<ServiceEntry>),
    /// Points the address at the service.
    PutFrontend(L4Addr, FrontendEntry),
    /// Stops the translation of the address. Deleting an absent entry succeeds.
    DeleteFrontend(L4Addr),
    /// Empties the service entry. Valid only when no frontend points at it.
    DeleteService(ServiceId),
    /// Answers NodePorts on the address.
    PutNodeAddr(Addr),
    DeleteNodeAddr(Addr),
    /// Lets clients outside the node connect to the address.
    PutOutside(L4Addr, OutsideEntry),
    /// Stops the translation of the address for clients outside the node. Deleting an absent entry succeeds.
    DeleteOutside(L4Addr),
    /// Admits the clients in the range to the service.
    PutSourceRange(ServiceId, SourceRange),
    DeleteSourceRange(ServiceId, SourceRange),
    /// Describes the uplink to the packet programs.
    PutUplink(u32, UplinkEntry),
    DeleteUplink(u32),
}

/// The key of one entry in the maps. Those of services come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKey {
    /// An entry of `services`, including its slots.
    Service(ServiceId),
    Frontend(L4Addr),
    NodeAddress(Addr),
    Outside(L4Addr),
    SourceRange(ServiceId, SourceRange),
    Uplink(u32),
}

impl MapOp {
    pub fn key(&self) -> EntryKey {
        match *self {
            Self::PutService(id, _) | Self::DeleteService(id) => EntryKey::Service(id),
            Self::PutFrontend(address, _) | Self::DeleteFrontend(address) => EntryKey::Frontend(address),
            Self::PutNodeAddr(addr) | Self::DeleteNodeAddr(addr) => EntryKey::NodeAddress(addr),
            Self::PutOutside(address, _) | Self::DeleteOutside(address) => EntryKey::Outside(address),
            Self::PutSourceRange(id, range) | Self::DeleteSourceRange(id, range) => EntryKey::SourceRange(id, range),
            Self::PutUplink(index, _) | Self::DeleteUplink(index) => EntryKey::Uplink(index),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryValue<'a> {
    Service(&'a Arc<ServiceEntry>),
    Frontend(FrontendEntry),
    Outside(OutsideEntry),
    Uplink(UplinkEntry),
    /// A node address or a source range: the key says everything.
    Present,
}

impl MapState {
    pub fn get(&self, key: EntryKey) -> Option<EntryValue<'_>> {
        match key {
            EntryKey::Service(id) => self.services.get(&id).map(EntryValue::Service),
            EntryKey::Frontend(address) => self.frontends.get(&address).copied().map(EntryValue::Frontend),
            EntryKey::NodeAddress(addr) => self.node_addrs.contains(&addr).then_some(EntryValue::Present),
            EntryKey::Outside(address) => self.outside.get(&address).copied().map(EntryValue::Outside),
            EntryKey::SourceRange(id, range) => {
                self.source_ranges.contains(&(id, range)).then_some(EntryValue::Present)
            }
            EntryKey::Uplink(index) => self.uplinks.get(&index).copied().map(EntryValue::Uplink),
        }
    }

    /// Whether the entry is the same in both, or in neither.
    pub fn agrees(&self, other: &Self, key: EntryKey) -> bool {
        self.get(key) == other.get(key)
    }

    /// The service entry that the frontend at the address points at.
    pub fn service_at(&self, address: L4Addr) -> Option<&Arc<ServiceEntry>> {
        self.services.get(&self.frontends.get(&address)?.service)
    }

    /// The source that describes the service; `None` if the maps do not say so.
    pub fn source_of(&self, service: ServiceId) -> Option<Source> {
        Some(self.services.get(&service)?.tag?.source)
    }

    /// Whether new connections to the address reach a backend of the service, in the view that decides its status.
    pub fn reaches_backends(&self, address: L4Addr, service: ServiceId) -> bool {
        let frontend = self.frontends.get(&address).filter(|frontend| frontend.service == service);
        let found = frontend.zip(self.services.get(&service));
        found.is_some_and(|(frontend, entry)| !entry.view(frontend.is_judged_by_local(address, entry)).is_empty())
    }

    /// As [`Self::reaches_backends`], for the service with this hash.
    pub fn serves(&self, address: L4Addr, service: u32) -> bool {
        let tag = self.service_at(address).and_then(|entry| entry.tag);
        tag.is_some_and(|tag| tag.service == service) && self.reaches_any(address)
    }

    /// As [`Self::reaches_backends`], whatever the service.
    pub fn reaches_any(&self, address: L4Addr) -> bool {
        self.frontends.get(&address).is_some_and(|frontend| self.reaches_backends(address, frontend.service))
    }

    /// Whether new connections to the address are refused: the maps contain it, and no backend.
    pub fn refuses(&self, address: L4Addr) -> bool {
        self.frontends.contains_key(&address) && !self.reaches_any(address)
    }

    /// The number of slots that the services' views take, with their rings.
    pub fn slot_count(&self) -> usize {
        self.services.values().map(|entry| entry.slot_count()).sum()
    }

    /// The ranges of client addresses that may connect to the service.
    pub fn ranges_of(&self, id: ServiceId) -> impl Iterator<Item = SourceRange> {
        // Few services have ranges, and a search in an empty set costs as much as in a full one.
        let ranges = (!self.source_ranges.is_empty())
            .then(|| self.source_ranges.range((id, SourceRange::FIRST)..=(id, SourceRange::LAST)));
        ranges.into_iter().flatten().map(|(_, range)| *range)
    }

    /// Changes the state as the successful operation changes the maps.
    pub fn apply(&mut self, op: &MapOp) {
        match op {
            MapOp::PutService(id, entry) => _ = self.services.insert(*id, Arc::clone(entry)),
            MapOp::PutFrontend(key, entry) => _ = self.frontends.insert(*key, *entry),
            MapOp::DeleteFrontend(key) => _ = self.frontends.remove(key),
            MapOp::DeleteService(id) => _ = self.services.remove(id),
            MapOp::PutNodeAddr(addr) => _ = self.node_addrs.insert(*addr),
            MapOp::DeleteNodeAddr(addr) => _ = self.node_addrs.remove(addr),
            MapOp::PutOutside(key, entry) => _ = self.outside.insert(*key, *entry),
            MapOp::DeleteOutside(key) => _ = self.outside.remove(key),
            MapOp::PutSourceRange(id, range) => _ = self.source_ranges.insert((*id, *range)),
            MapOp::DeleteSourceRange(id, range) => _ = self.source_ranges.remove(&(*id, *range)),
            MapOp::PutUplink(ifindex, entry) => _ = self.uplinks.insert(*ifindex, *entry),
            MapOp::DeleteUplink(ifindex) => _ = self.uplinks.remove(ifindex),
        }
    }
}

/// The maximum number of uplinks: the size of the map `uplinks`.
pub const MAX_UPLINKS: u32 = 256;

/// Where clients that connect to an address are led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    pub service: ServiceId,
    /// Whether the clients get the local view instead of the cluster view.
    pub local: bool,
    /// Whether only the clients in the service's source ranges may connect.
    pub has_ranges: bool,
}

impl Lead {
    /// Whether a client gets a backend in this state.
    pub fn is_answered(self, state: &MapState) -> bool {
        state.services.get(&self.service).is_some_and(|entry| !entry.view(self.local).is_empty())
    }
}

impl FrontendEntry {
    /// Where clients on this node are led.
    pub fn lead(&self) -> Lead {
        Lead { service: self.service, local: self.inside_local, has_ranges: false }
    }
}

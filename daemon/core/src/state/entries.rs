//! The desired and the realised content of the maps, as one type, and the operations that lead from one to the other.
//! This is the logical content only; the datapath decides where in the `slots` map a list is stored
//! ([`crate::state::runs`]).

use std::fmt;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use smallvec::SmallVec;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::state::owner::OwnerTag;

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

/// The canaries: addresses that no service may have and that only the hooks refuse. 192.0.0.8 is the IPv4 dummy address
/// (RFC 7600), 100::/64 the discard-only prefix (RFC 6666).
pub const CANARIES: [L4Addr; 2] = [
    L4Addr::new(Addr::from_octets([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 0, 8]), 9, Protocol::Udp),
    L4Addr::new(Addr::from_octets([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]), 9, Protocol::Udp),
];

/// A stable number for one backend address, the same in every service that has it. 0 means no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

/// One selectable entry of a view. A backend of weight 3 has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The id of the backend.
    pub backend: BackendId,
    /// The transport address of the backend.
    pub addr: L4Addr,
}

/// Each backend of a view once, in the view's order, with its number of slots.
pub fn backends_of(view: &[Slot]) -> impl Iterator<Item = (L4Addr, usize)> {
    view.chunk_by(|a, b| a.addr == b.addr).map(|run| (run[0].addr, run.len()))
}

/// Each backend once with its number of slots, in address order.
pub type View = SmallVec<[(L4Addr, u16); 2]>;

/// The maximum number of slots in one view: the count has 16 bits in the kernel's view word.
pub const MAX_VIEW_SLOTS: usize = u16::MAX as usize;

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
    /// The owner, for recognition after a restart; `None` for the canary, and in entries of an earlier nodelb, which
    /// did not write it.
    pub tag: Option<OwnerTag>,
}

/// The content of the maps for one frontend address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    /// The index of the service entry.
    pub service: ServiceId,
    /// Whether clients on this node get the local view instead of the cluster view.
    pub inside_local: bool,
    /// Whether clients outside the node get the local view instead of the cluster view. Only the packet path reads it.
    pub outside_local: bool,
}

/// The content of nodelb's maps, desired or realised. The maps have converged when the two are equal. Cloning is cheap
/// (shared structure), which is how readers get their copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    /// The frontends by the address that clients connect to; NodePorts under the unspecified address of their family.
    pub frontends: OrdMap<L4Addr, FrontendEntry>,
    /// The service entries by id.
    pub services: OrdMap<ServiceId, Arc<ServiceEntry>>,
    /// The addresses on which NodePorts are answered.
    pub node_addrs: OrdSet<Addr>,
}

/// The content that the sources ask for.
pub type Desired = MapState;
/// The content that the maps have.
pub type Realised = MapState;

/// One change of the maps. Each may be repeated without effect, and does not affect services that it does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Publishes the service entry. Readers see the old lists or the new ones, never a mixture within one view.
    PutService(ServiceId, Arc<ServiceEntry>),
    /// Lets the address lead to the service.
    PutFrontend(L4Addr, FrontendEntry),
    /// Stops the translation of the address. Deleting an absent entry succeeds.
    DeleteFrontend(L4Addr),
    /// Empties the service entry. Valid only when no frontend points at it.
    DeleteService(ServiceId),
    /// Answers NodePorts on the address.
    PutNodeAddr(Addr),
    /// Stops answering NodePorts on the address.
    DeleteNodeAddr(Addr),
}

impl MapState {
    /// The number of slots in the services' views.
    pub fn slot_count(&self) -> usize {
        self.services.values().map(|entry| entry.cluster.len() + entry.local.len()).sum()
    }

    /// Changes the state as the successful operation changes the maps.
    pub fn apply(&mut self, op: &MapOp) {
        match op {
            MapOp::PutService(id, entry) => {
                self.services.insert(*id, Arc::clone(entry));
            }
            MapOp::PutFrontend(key, entry) => {
                self.frontends.insert(*key, *entry);
            }
            MapOp::DeleteFrontend(key) => {
                self.frontends.remove(key);
            }
            MapOp::DeleteService(id) => {
                self.services.remove(id);
            }
            MapOp::PutNodeAddr(addr) => {
                self.node_addrs.insert(*addr);
            }
            MapOp::DeleteNodeAddr(addr) => {
                self.node_addrs.remove(addr);
            }
        }
    }
}

/// Whether a client on this node that connects to the frontend gets a backend in this state.
pub(crate) fn is_answered(state: &MapState, frontend: &FrontendEntry) -> bool {
    let view = |entry: &Arc<ServiceEntry>| {
        if frontend.inside_local { !entry.local.is_empty() } else { !entry.cluster.is_empty() }
    };
    state.services.get(&frontend.service).is_some_and(view)
}

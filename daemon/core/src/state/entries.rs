//! What the kernel should hold and what it holds, as one type; and the operations that lead from one to the other.
//! Logical content only: where in the `slots` map a list lives is the datapath's business ([`crate::state::runs`]).

use std::fmt;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use smallvec::SmallVec;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::state::owner::OwnerTag;

/// Index into the kernel's `services` map. One per [`crate::model::service::PortKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

impl ServiceId {
    /// The canary's service: never has a backend, so a connection to a canary frontend is always refused.
    pub const CANARY: Self = Self(0);
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The frontends of the proof of life: addresses no service may have, answered with a refusal by the hooks alone.
/// 192.0.0.8 is the IPv4 dummy address (RFC 7600), 100::/64 the discard-only prefix (RFC 6666).
pub const CANARIES: [L4Addr; 2] = [
    L4Addr::new(Addr::from_octets([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 0, 8]), 9, Protocol::Udp),
    L4Addr::new(Addr::from_octets([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]), 9, Protocol::Udp),
];

/// A stable number for one backend address, the same in every service that has it. 0 is no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

/// One selectable place in a backend list. A backend of weight 3 has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Whom.
    pub backend: BackendId,
    /// Where.
    pub addr: L4Addr,
}

/// Each backend of a view once, in the view's order, with how many slots it has.
pub fn backends_of(view: &[Slot]) -> impl Iterator<Item = (L4Addr, usize)> {
    view.chunk_by(|a, b| a.addr == b.addr).map(|run| (run[0].addr, run.len()))
}

/// Each backend once with its number of slots, in address order.
pub type View = SmallVec<[(L4Addr, u16); 2]>;

/// The most slots one view can have: its count is 16 bits in the kernel's view word.
pub const MAX_VIEW_SLOTS: usize = u16::MAX as usize;

/// What the kernel holds for one service id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry {
    /// The view that holds every selected backend, in address order; at most [`MAX_VIEW_SLOTS`].
    pub cluster: Arc<[Slot]>,
    /// The view that holds the selected backends on this node.
    pub local: Arc<[Slot]>,
    /// Whether any backend is usable at all, here or elsewhere: what an empty view answers, EHOSTUNREACH or
    /// ECONNREFUSED, hangs on it.
    pub has_backends: bool,
    /// Seconds a client keeps its backend; 0 without session affinity.
    pub affinity_seconds: u32,
    /// Whether processes of this node may bind the service's NodePorts: one of them is its backend at such a port, or no
    /// address of the node answers NodePorts of the family.
    pub may_be_bound: bool,
    /// The owner, for the next start; `None` in entries of an earlier nodelb, which did not write it, and in the canary's.
    pub tag: Option<OwnerTag>,
}

/// What the kernel holds for one frontend address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendEntry {
    /// Index of the service entry.
    pub service: ServiceId,
    /// A client on this node gets the local view instead of the cluster view.
    pub inside_local: bool,
    /// A client from outside the node gets the local view instead of the cluster view. Read by the packet path only.
    pub outside_local: bool,
}

/// The content of nodelb's maps: desired, or realised. Equality is the definition of converged. Cloning is cheap
/// (shared structure), which is how readers get their copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    /// By the address a client dials; a NodePort under the unspecified address of its family.
    pub frontends: OrdMap<L4Addr, FrontendEntry>,
    /// By id.
    pub services: OrdMap<ServiceId, Arc<ServiceEntry>>,
    /// The addresses a NodePort is answered on.
    pub node_addrs: OrdSet<Addr>,
}

/// What the sources ask for.
pub type Desired = MapState;
/// What the kernel has.
pub type Realised = MapState;

/// One change to the kernel. Each may be repeated without harm, and each leaves every service that it does not name
/// as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Publish the service entry: readers see the old lists or the new ones, never a mixture within one view.
    PutService(ServiceId, Arc<ServiceEntry>),
    /// Point the address at the service.
    PutFrontend(L4Addr, FrontendEntry),
    /// Stop translating the address. Deleting what is absent succeeds.
    DeleteFrontend(L4Addr),
    /// Empty the service entry. Only after nothing points at it.
    DeleteService(ServiceId),
    /// Answer NodePorts on the address.
    PutNodeAddr(Addr),
    /// Stop doing so.
    DeleteNodeAddr(Addr),
}

impl MapState {
    /// How many slots the services' views take.
    pub fn slot_count(&self) -> usize {
        self.services.values().map(|entry| entry.cluster.len() + entry.local.len()).sum()
    }

    /// What the state is after the operation succeeds.
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

/// Whether the state has a backend for a client on this node that dials the frontend.
pub(crate) fn is_answered(state: &MapState, frontend: &FrontendEntry) -> bool {
    let view = |entry: &Arc<ServiceEntry>| {
        if frontend.inside_local { !entry.local.is_empty() } else { !entry.cluster.is_empty() }
    };
    state.services.get(&frontend.service).is_some_and(view)
}

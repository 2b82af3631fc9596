//! The frontend that a client connects to.

use std::ops::RangeInclusive;

use crate::model::addr::{L4Addr, Protocol};
use crate::state::entries::{MapState, ServiceId};

/// The frontend that a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    pub service: ServiceId,
    /// Whether the client gets a backend on this node only.
    pub is_local: bool,
    /// Whether only clients in the service's source ranges may connect.
    pub has_ranges: bool,
}

/// The frontend at this address for clients outside the node.
pub fn find_outside(state: &MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr) -> Option<Frontend> {
    let entry = at(state, nodeport_range, to, |at| state.outside.get(at))?;
    Some(Frontend { service: entry.service, is_local: entry.local, has_ranges: entry.has_ranges })
}

/// The frontend at this address for clients inside the node, such as pods.
pub fn find_inside(state: &MapState, nodeport_range: &RangeInclusive<u16>, to: L4Addr) -> Option<Frontend> {
    let entry = at(state, nodeport_range, to, |at| state.frontends.get(at))?;
    Some(Frontend { service: entry.service, is_local: entry.inside_local, has_ranges: false })
}

/// The entry of the address itself, or that of the NodePort if the address is the node's. NodePorts are stored under the
/// unspecified address, which is no destination of its own.
fn at<'a, T>(
    state: &MapState,
    nodeport_range: &RangeInclusive<u16>,
    to: L4Addr,
    stored: impl Fn(&L4Addr) -> Option<&'a T>,
) -> Option<&'a T> {
    if to.protocol == Protocol::Sctp || to.addr.is_unspecified() {
        return None;
    }
    let is_nodeport = nodeport_range.contains(&to.port) && state.node_addrs.contains(&to.addr);
    stored(&to).or_else(|| is_nodeport.then(|| stored(&to.wildcard())).flatten())
}

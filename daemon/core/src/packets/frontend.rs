//! The frontend to which a client connects.

use crate::model::addr::L4Addr;
use crate::packets::key::Hook;
use crate::packets::node::Node;
use crate::state::entries::ServiceId;

/// The frontend to which a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frontend {
    /// The service.
    pub(super) service: ServiceId,
    /// Whether the client gets a backend on this node only.
    pub(super) is_local: bool,
    /// Whether only clients in the service's source ranges may connect.
    pub(super) has_ranges: bool,
}

/// The frontend at this address for clients at this hook: an entry of its own, or the NodePort if the address is the
/// node's. NodePorts are stored under the unspecified address, which is no destination of its own.
pub(super) fn find(node: &Node<'_>, hook: Hook, to: L4Addr) -> Option<Frontend> {
    if to.addr.is_unspecified() {
        return None;
    }
    let is_nodeport = node.settings.nodeport_range.contains(&to.port) && node.state.node_addrs.contains(&to.addr);
    at(node, hook, to).or_else(|| at(node, hook, to.wildcard()).filter(|_| is_nodeport))
}

/// Pods are clients inside the node.
fn at(node: &Node<'_>, hook: Hook, to: L4Addr) -> Option<Frontend> {
    if hook.is_pod() {
        let found = node.state.frontends.get(&to)?;
        return Some(Frontend { service: found.service, is_local: found.inside_local, has_ranges: false });
    }
    let found = node.state.outside.get(&to)?;
    Some(Frontend { service: found.service, is_local: found.local, has_ranges: found.has_ranges })
}

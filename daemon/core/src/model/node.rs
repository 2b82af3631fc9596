//! The node: its own facts, the Node object in Kubernetes, and the choice of its addresses that answer NodePorts, a
//! function of both. This module has no access to interfaces or routes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, AddrError, Family, parse_net};

/// The facts about the node that selection and compilation need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The node name, which is compared with [`crate::model::service::Backend::node`].
    pub name: Arc<str>,
    /// The zone; empty if unknown.
    pub zone: Arc<str>,
    /// Every address of its interfaces, including loopback and link-local ones. No service may have one of them, except
    /// in the networks of `datapath.own-addresses`.
    pub addresses: BTreeSet<Addr>,
    /// The source address of each family that the node uses towards other hosts, according to its routes. Used if
    /// Kubernetes does not report one.
    pub primary: BTreeSet<Addr>,
    /// The selection of `addresses` that answer NodePorts; none if empty. Configuration key `node.nodeport-addresses`.
    pub nodeport_addresses: Vec<NodePortAddress>,
}

/// The parts of a Kubernetes Node object that matter to the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObject {
    /// The zone, empty if the object has none. Used if [`NodeFacts::zone`] is empty.
    pub zone: Arc<str>,
    /// From `status.addresses`: the first InternalIP of each family, or the first ExternalIP of a family without one.
    pub addresses: BTreeSet<Addr>,
    /// Why load balancers should stop sending traffic to the node; `None` if they should not. The Node is being
    /// deleted, or has a taint that announces its deletion.
    pub leaving: Option<Arc<str>>,
}

/// One entry of the list of addresses that answer NodePorts. An address is selected if any entry matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodePortAddress {
    /// The node's addresses according to Kubernetes that this machine has. For a family without one, the source address
    /// that the machine uses towards other hosts.
    Primary,
    /// Every loopback address that is assigned to an interface: usually 127.0.0.1 and ::1, and not all of 127.0.0.0/8.
    Loopback,
    /// Every address in the network. Loopback and link-local addresses match only a network that contains no others.
    Net(IpNet),
}

impl NodePortAddress {
    fn means(self, addr: Addr, primary: &BTreeSet<Addr>) -> bool {
        match self {
            Self::Primary => primary.contains(&addr),
            Self::Loopback => addr.is_loopback(),
            Self::Net(net) => {
                let is_all = |is_special: fn(Addr) -> bool| {
                    [net.network(), net.broadcast()].map(Addr::from).into_iter().all(is_special)
                };
                net.contains(&addr.ip())
                    && (!addr.is_loopback() || is_all(Addr::is_loopback))
                    && (!addr.is_link_local() || is_all(Addr::is_link_local))
            }
        }
    }
}

impl FromStr for NodePortAddress {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        match text {
            "primary" => Ok(Self::Primary),
            "loopback" => Ok(Self::Loopback),
            _ => parse_net(text).map(Self::Net),
        }
    }
}

impl fmt::Display for NodePortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Loopback => f.write_str("loopback"),
            Self::Net(net) => net.fmt(f),
        }
    }
}

/// A node name in the form for comparison: without surrounding white space, in lower case. The kubelet registers its
/// Node in this form, and kube-proxy reads `--hostname-override` the same way.
#[must_use]
pub fn node_name(text: &str) -> String {
    text.trim().to_lowercase()
}

/// The addresses that answer NodePorts. All of them are addresses of the node.
pub(crate) fn answering(node: &NodeFacts, object: Option<&NodeObject>) -> BTreeSet<Addr> {
    let primary = primary(node, object);
    let is_chosen = |addr: &Addr| node.nodeport_addresses.iter().any(|entry| entry.means(*addr, &primary));
    node.addresses.iter().copied().filter(is_chosen).collect()
}

/// The addresses that [`NodePortAddress::Primary`] matches. Kubernetes may report addresses that this machine does not
/// have, such as public addresses that a cloud translates to the node's.
fn primary(node: &NodeFacts, object: Option<&NodeObject>) -> BTreeSet<Addr> {
    let mut primary = BTreeSet::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let own = |addresses: &BTreeSet<Addr>| -> BTreeSet<Addr> {
            addresses.intersection(&node.addresses).copied().filter(|addr| addr.family() == family).collect()
        };
        let reported = object.map(|object| own(&object.addresses)).unwrap_or_default();
        primary.extend(if reported.is_empty() { own(&node.primary) } else { reported });
    }
    primary
}

#[cfg(test)]
#[path = "tests/node.rs"]
mod tests;

//! The node: what it says of itself, what Kubernetes says of it, and on which of its own addresses it answers NodePorts. Owns the choice, which is a function of what the node says of
//! itself and what Kubernetes says of it; knows neither interfaces nor routes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, AddrError, Family, parse_net};

/// What selection and compilation need to know about the node they run on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Node name, compared with [`crate::model::service::Backend::node`].
    pub name: Arc<str>,
    /// Zone; empty where unknown.
    pub zone: Arc<str>,
    /// Every address of its interfaces, loopback and link-local ones included. No service may have one of them.
    pub addresses: BTreeSet<Addr>,
    /// Of each family the one it uses towards others, by its routes; counts where Kubernetes does not say.
    pub primary: BTreeSet<Addr>,
    /// Which of `addresses` NodePorts are answered on; none if empty. Config key `node.nodeport-addresses`.
    pub nodeport_addresses: Vec<NodePortAddress>,
}

/// A Kubernetes Node, as far as it matters to the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeObject {
    /// Its zone, empty where it has none; counts where [`NodeFacts::zone`] is empty.
    pub zone: Arc<str>,
    /// `status.addresses`: the first InternalIP of each family, or the first ExternalIP of a family without one.
    pub addresses: BTreeSet<Addr>,
    /// Why load balancers should stop sending to it, if they should: it is being deleted, or tainted to be.
    pub leaving: Option<Arc<str>>,
}

/// One entry of the list that says where NodePorts are answered; an address that any of them means is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodePortAddress {
    /// What Kubernetes says are the node's addresses, as far as this machine has them; of a family without one, the
    /// address that the machine itself uses towards others.
    Primary,
    /// Every loopback address that is on an interface: usually 127.0.0.1 and ::1, and not all of 127.0.0.0/8.
    Loopback,
    /// Every address inside. Loopback and link-local ones are meant only by a network that holds nothing else.
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

/// The addresses on which NodePorts are answered: some of the node's own, never others.
pub(crate) fn answering(node: &NodeFacts, object: Option<&NodeObject>) -> BTreeSet<Addr> {
    let primary = primary(node, object);
    let is_chosen = |addr: &Addr| node.nodeport_addresses.iter().any(|entry| entry.means(*addr, &primary));
    node.addresses.iter().copied().filter(is_chosen).collect()
}

/// What [`NodePortAddress::Primary`] means. Kubernetes may name addresses that are somewhere else, such as those a cloud
/// translates to the node's.
fn primary(node: &NodeFacts, object: Option<&NodeObject>) -> BTreeSet<Addr> {
    let mut primary = BTreeSet::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let own = |addresses: &BTreeSet<Addr>| -> BTreeSet<Addr> {
            addresses.intersection(&node.addresses).copied().filter(|addr| addr.family() == family).collect()
        };
        let told = object.map(|object| own(&object.addresses)).unwrap_or_default();
        primary.extend(if told.is_empty() { own(&node.primary) } else { told });
    }
    primary
}

#[cfg(test)]
mod tests;

//! What this machine says about itself: its name, and its addresses, followed as they come and go. Owns the way from
//! interfaces and routes to [`NodeFacts`]; which of the addresses matter for what is decided in the core.

use std::io;
use std::sync::Arc;

use nodelb_core::model::names::node_name;
use nodelb_core::model::node::{NodeFacts, NodePortAddress};

use self::addresses::Addresses;
use crate::config::Node;

mod addresses;
mod netlink;
pub mod watch;

/// What is set about the node, or found out once: everything but its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// See [`NodeFacts::name`].
    pub name: Arc<str>,
    /// Whether that is the host name, because the configuration sets no name.
    pub is_host_name: bool,
    /// See [`NodeFacts::zone`].
    pub zone: Arc<str>,
    /// See [`NodeFacts::nodeport_addresses`].
    pub nodeport_addresses: Vec<NodePortAddress>,
}

impl Identity {
    /// As configured, and with the host name where the configuration leaves the name open. Either in lower case, as the
    /// kubelet registers the Node, which kube-proxy does with `--hostname-override`, too.
    ///
    /// # Errors
    /// When the machine does not tell its host name.
    pub fn of(node: &Node) -> io::Result<Self> {
        let configured = node_name(&node.name);
        let is_host_name = configured.is_empty();
        let name = if is_host_name { host_name()? } else { configured };
        let nodeport_addresses = node.nodeport_addresses.clone();
        Ok(Self { name: name.into(), is_host_name, zone: node.zone.as_str().into(), nodeport_addresses })
    }

    /// The facts about a node that has these addresses.
    fn facts(&self, addresses: &Addresses) -> NodeFacts {
        NodeFacts {
            name: Arc::clone(&self.name),
            zone: Arc::clone(&self.zone),
            addresses: addresses.own.clone(),
            primary: addresses.primary.clone(),
            nodeport_addresses: self.nodeport_addresses.clone(),
        }
    }
}

/// The host name, which is also the kubelet's default for the node name: in lower case.
fn host_name() -> io::Result<String> {
    let name = nix::unistd::gethostname()?;
    name.into_string().map(|name| node_name(&name)).map_err(|name| {
        let message = format!("the host name {} is not text; set node.name", name.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Whether the name is what a machine has whose host name is not set yet: the kernel's own, or that of the loopback address.
fn is_unset(host_name: &str) -> bool {
    matches!(host_name, "" | "(none)" | "localhost" | "localhost.localdomain" | "localhost4" | "localhost6")
}

#[cfg(test)]
#[path = "tests/node.rs"]
mod tests;

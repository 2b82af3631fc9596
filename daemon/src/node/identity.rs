//! What is known about the node except its addresses: its name, its zone, and where it serves NodePorts.

use std::io;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::node::{NodeFacts, NodePortAddress, node_name};

use super::addresses::Addresses;
use crate::config::Config;

/// The configured facts about the node, and those that are read once: everything except its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub name: Arc<str>,
    /// Whether the name is the host name, because the configuration sets none.
    pub is_host_name: bool,
    pub zone: Arc<str>,
    pub nodeport_addresses: Vec<NodePortAddress>,
    /// The addresses that belong to services even if the node has them: `datapath.own-addresses`.
    pub service_addresses: Vec<IpNet>,
}

impl Identity {
    /// The configured identity, with the host name if the configuration sets no name. Both names are in lower case, as
    /// the kubelet registers the Node; kube-proxy does the same with `--hostname-override`.
    pub fn new(config: &Config) -> io::Result<Self> {
        let node = &config.node;
        let configured = node_name(&node.name);
        let is_host_name = configured.is_empty();
        let name = if is_host_name { host_name()? } else { configured };
        let nodeport_addresses = node.nodeport_addresses.clone();
        let (zone, service_addresses) = (node.zone.as_str().into(), config.datapath.own_addresses.clone());
        Ok(Self { name: name.into(), is_host_name, zone, nodeport_addresses, service_addresses })
    }

    pub(super) fn facts(&self, addresses: &Addresses) -> NodeFacts {
        NodeFacts {
            name: Arc::clone(&self.name),
            zone: Arc::clone(&self.zone),
            addresses: addresses.own.clone(),
            primary: addresses.primary.clone(),
            nodeport_addresses: self.nodeport_addresses.clone(),
        }
    }
}

/// The host name in lower case, which is also the kubelet's default for the node name.
pub(super) fn host_name() -> io::Result<String> {
    let name = nix::unistd::gethostname()?;
    name.into_string().map(|name| node_name(&name)).map_err(|name| {
        let message = format!("the host name {} is not text; set node.name", name.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Whether the name is one that a machine has before its host name is set: the kernel's default, or the name of the
/// loopback address.
pub(super) fn is_unset(host_name: &str) -> bool {
    matches!(host_name, "" | "(none)" | "localhost" | "localhost.localdomain" | "localhost4" | "localhost6")
}

#[cfg(test)]
#[path = "tests/identity.rs"]
mod tests;

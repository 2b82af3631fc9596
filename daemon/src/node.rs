//! What this machine says about itself: host name and interface addresses, where the configuration leaves them open.
//! Does not watch them: the owner asks again when it wants to know.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nodelb_core::addr::Addr;
use nodelb_core::change::NodeFacts;

use crate::config::Node;

/// The facts about this node: as configured, and from the machine where the configuration is empty.
///
/// # Errors
/// When the machine does not tell its host name or its interface addresses.
pub fn facts(node: &Node) -> io::Result<NodeFacts> {
    let name = if node.name.is_empty() { host_name()? } else { node.name.clone() };
    let addresses =
        if node.addresses.is_empty() { interface_addresses()? } else { node.addresses.iter().copied().collect() };
    Ok(NodeFacts { name: name.into(), zone: node.zone.as_str().into(), addresses })
}

/// The host name, which is also the kubelet's default for the node name: in lower case.
fn host_name() -> io::Result<String> {
    let name = nix::unistd::gethostname()?;
    name.into_string().map(|name| name.trim().to_lowercase()).map_err(|name| {
        let message = format!("the host name {} is not text; set node.name", name.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// The addresses on this machine's interfaces, without loopback and link-local ones.
///
/// # Errors
/// When the kernel does not list them.
pub fn interface_addresses() -> io::Result<BTreeSet<Addr>> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    Ok(addresses.map(Addr::from).filter(|addr| is_reachable(*addr)).collect())
}

/// Whether somebody else can send to the address: what a NodePort is for.
fn is_reachable(addr: Addr) -> bool {
    !(addr.is_loopback() || addr.is_link_local() || addr.is_unspecified() || addr.is_multicast())
}

#[cfg(test)]
mod tests;

//! The address of an apiserver as it appears in the configuration: an IP address or a host name, a port, and the name
//! that the server's certificate must contain.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::addr::Addr;
use serde::{Deserialize, Serialize};

use super::url::Shown;

/// The address of an apiserver, and the name to verify in its certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Server {
    pub address: Address,
    /// The name that the certificate must contain, which is also sent as SNI; `None` for the host of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<Arc<str>>,
}

/// `192.0.2.1:6443`, `[2001:db8::1]:6443` or `api.example.com:6443`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An IP address, which needs no resolver.
    Ip(IpAddr),
    /// A host name in lower case.
    Name(Arc<str>),
}

impl Address {
    /// The socket address; `None` for a name.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(at: SocketAddr) -> Self {
        Self { host: Host::Ip(at.ip().to_canonical()), port: at.port() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        f.pad(&match host {
            Host::Ip(ip) => SocketAddr::new(*ip, *port).to_string(),
            Host::Name(name) => format!("{name}:{port}"),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("`{0}` is not an apiserver address (expected HOST:PORT, such as 192.0.2.1:6443 or api.example.com:6443)")]
    Form(String),
    #[error("`{0}` is not an apiserver address: {1}; write an address that the apiserver itself listens on")]
    Unusable(String, &'static str),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refused = || AddressError::Form(Shown(text).to_string());
        if let Ok(at) = text.parse::<SocketAddr>() {
            let has_zone = matches!(at, SocketAddr::V6(v6) if v6.scope_id() != 0);
            return match unusable(at) {
                _ if at.port() == 0 || has_zone => Err(refused()),
                Some(why) => Err(AddressError::Unusable(text.into(), why)),
                None => Ok(at.into()),
            };
        }
        let (name, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(refused)?;
        // Resolvers also accept `_`, and a final dot, which marks a fully qualified name.
        let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let label_is_valid = |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(is_part);
        let labels = name.strip_suffix('.').unwrap_or(name);
        // If the last label consists of digits, the text is an incomplete IPv4 address, which resolvers interpret in
        // different ways.
        let is_name = labels.len() <= 253
            && labels.split('.').all(label_is_valid)
            && !labels.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
        if is_name { Ok(Self { host: Host::Name(name.to_lowercase().into()), port }) } else { Err(refused()) }
    }
}

/// The reason why no single host can have this address; `None` if a host can. IPv4 link-local addresses are allowed,
/// because some clouds use them for apiservers.
fn unusable(at: SocketAddr) -> Option<&'static str> {
    let addr = Addr::from(at.ip().to_canonical());
    if addr.is_unspecified() {
        Some("it is the unspecified address")
    } else if addr.is_multicast() || addr.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("it is multicast or broadcast")
    } else if addr.ip().is_ipv6() && addr.is_link_local() {
        Some("it is IPv6 link-local, and the interface is not known")
    } else {
        None
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

/// The reason why nodelb must not use an address that a cluster lists, as the end of a sentence; `None` if it may be
/// used. The list is untrusted: it may be outdated, and a user with write access to it must not be able to make nodelb
/// depend on itself or connect to arbitrary addresses.
pub fn reason_not_to_learn(
    at: SocketAddr,
    service_cidrs: &[IpNet],
    is_frontend: &(dyn Fn(SocketAddr) -> bool + Send + Sync),
) -> Option<&'static str> {
    let addr = Addr::from(at.ip());
    let ip = addr.ip();
    if at.port() == 0 {
        Some("its port is 0")
    } else if addr.is_unspecified() || addr.is_multicast() {
        Some("it is not the address of a host")
    } else if addr.is_loopback() {
        Some("it is this host itself; configure it if an apiserver listens there")
    } else if ip.is_ipv6() && addr.is_link_local() {
        Some("it is link-local, and the interface is not known")
    } else if service_cidrs.iter().any(|net| net.contains(&ip)) {
        Some("it lies in a service CIDR")
    } else if is_frontend(SocketAddr::new(ip, at.port())) {
        Some("it is a service address that nodelb itself translates")
    } else {
        None
    }
}

#[cfg(test)]
#[path = "tests/address.rs"]
mod tests;

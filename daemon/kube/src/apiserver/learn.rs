//! Decides which of the addresses that a cluster lists may be used. Pure. The list is untrusted: it may be outdated,
//! and a user with write access to it must not be able to make nodelb depend on itself or connect to arbitrary
//! addresses.

use std::net::SocketAddr;

use ipnet::IpNet;
use nodelb_core::model::addr::Addr;

/// The reason why a learned address must not be used, as the end of a sentence; `None` if it may be used.
pub fn refusal(
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
#[path = "tests/learn.rs"]
mod tests;

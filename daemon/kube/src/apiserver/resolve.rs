//! Resolves the names of apiservers. Limits the time of a lookup and the number of addresses, and keeps the previous
//! addresses if the resolver fails.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;

use super::address::{Address, Host};
use super::error::LinkError;

/// The maximum number of addresses of a name that are tried.
const MOST: usize = 8;

/// The socket addresses of an address: the address itself if it is an IP address, otherwise the resolver's response
/// within `timeout`. If the resolver fails, returns the addresses in `last`.
///
/// # Errors
/// [`LinkError::Unreachable`] if no address of the name is known.
pub async fn resolve(address: &Address, last: &[SocketAddr], timeout: Duration) -> Result<Vec<SocketAddr>, LinkError> {
    let name = match &address.host {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, address.port)]),
        Host::Name(name) => name,
    };
    let found = match tokio::time::timeout(timeout, lookup_host((&**name, address.port))).await {
        Ok(Ok(found)) => usable(found),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {timeout:?}")),
    };
    match found {
        Ok(found) => Ok(found),
        Err(_) if !last.is_empty() => Ok(last.to_vec()),
        Err(why) => Err(LinkError::Unreachable(format!("{name} does not resolve: {why}"))),
    }
}

fn usable(found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let mut usable = Vec::new();
    for at in found {
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        let is_unusable = at.ip().is_unspecified() || at.ip().is_multicast();
        if !is_unusable && !usable.contains(&at) && usable.len() < MOST {
            usable.push(at);
        }
    }
    if usable.is_empty() { Err("it has no usable address".into()) } else { Ok(usable) }
}

#[cfg(test)]
#[path = "tests/resolve.rs"]
mod tests;

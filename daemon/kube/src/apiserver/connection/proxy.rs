//! An HTTP proxy for connections to an apiserver: its URL, and the `CONNECT` request (RFC 9110 section 9.3.6).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::apiserver::address::{Address, Host};

/// The maximum size of the response's head in bytes.
const MAX_HEAD: usize = 8 << 10;

/// The proxy with the URL `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy(Address);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy must be given as http://HOST:PORT, without user, password or path")]
pub struct ProxyError;

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(url: &str) -> Result<Self, ProxyError> {
        let rest = url.strip_prefix("http://").ok_or(ProxyError)?;
        rest.strip_suffix('/').unwrap_or(rest).parse().map(Self).or(Err(ProxyError))
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

impl Proxy {
    pub(super) async fn resolve(&self, deadline: Instant) -> io::Result<SocketAddr> {
        match &self.0.host {
            Host::Ip(ip) => Ok(SocketAddr::new(*ip, self.0.port)),
            Host::Name(name) => {
                let mut found = timeout_at(deadline, lookup_host((&**name, self.0.port)))
                    .await
                    .or(Err(io::Error::new(io::ErrorKind::TimedOut, "its name was not resolved in time")))??;
                found.next().ok_or_else(|| io::Error::other("its name has no address"))
            }
        }
    }

    pub(super) async fn ask_for(&self, stream: &mut TcpStream, at: SocketAddr, deadline: Instant) -> io::Result<()> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer to CONNECT in time");
        timeout_at(deadline, ask(stream, at)).await.ok().ok_or_else(late)?
    }
}

async fn ask(stream: &mut TcpStream, at: SocketAddr) -> io::Result<()> {
    stream.write_all(format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).await?;
    let mut head = Vec::new();
    // Reads single bytes, because the bytes after the head belong to TLS.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD {
            return Err(io::Error::other("its answer to CONNECT does not end"));
        }
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let status_line = head.lines().next().unwrap_or_default();
    let mut words = status_line.split(' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    match words.next() {
        Some(code) if is_http && code.len() == 3 && code.starts_with('2') => Ok(()),
        _ => Err(io::Error::other(format!("it answered CONNECT with `{}`", status_line.escape_debug()))),
    }
}

#[cfg(test)]
#[path = "tests/proxy.rs"]
mod tests;

//! Backends that an operator drains: no new connection reaches them, and existing ones end on their own. A drain belongs
//! to a service and an address, so that a backend that its source withdraws and adds again stays drained.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::addr::Addr;
use super::calendar::utc;
use crate::durations;

/// The maximum number of drains of all services together.
pub const MAX_DRAINS: usize = 1_024;

/// A backend as an operator names it: with a port, or with all ports of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Drained {
    pub addr: Addr,
    pub port: Option<u16>,
}

impl Drained {
    pub fn includes(&self, (addr, port): (Addr, u16)) -> bool {
        self.addr == addr && self.port.is_none_or(|drained| drained == port)
    }
}

impl std::str::FromStr for Drained {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(socket) = text.parse::<SocketAddr>().ok().filter(|_| !text.contains('%')) {
            return Ok(Self { addr: socket.ip().into(), port: Some(socket.port()) });
        }
        let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let addr = in_brackets.filter(|inner| inner.contains(':')).unwrap_or(text).parse();
        addr.map(|addr| Self { addr, port: None }).map_err(|_no_address| {
            format!("`{text}` is not an address with or without a port, such as 192.0.2.11:8080 or [2001:db8::11]:8080")
        })
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.addr.ip(), port).fmt(f),
            None => self.addr.fmt(f),
        }
    }
}

/// Who drains a backend, and for how long. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The user according to the kernel, such as `root (login alice)`.
    pub by: Arc<str>,
    pub since: u64,
    /// `None` if only `nodelb undrain` ends it.
    pub until: Option<u64>,
}

impl Drain {
    pub fn is_over(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// For comparisons: a drain without an end ends last.
    fn end(&self) -> u64 {
        self.until.unwrap_or(u64::MAX)
    }

    /// Formats as `1h`; `None` for a drain without an end.
    pub fn length(&self) -> Option<String> {
        self.until.map(|until| durations::exact(Duration::from_secs(until.saturating_sub(self.since))))
    }
}

impl fmt::Display for Drain {
    /// Formats as `drained by root (login alice) until 2026-11-20T12:03:04Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "drained by {}", self.by)?;
        match self.until {
            Some(until) => write!(f, " until {}", utc(until).as_deref().unwrap_or("-")),
            None => f.write_str(" until nodelb undrain"),
        }
    }
}

/// The drains of one service.
pub type Drains = BTreeMap<Drained, Drain>;

/// The drain of this backend. If it is drained both with its port and with all ports of its address, the drain that ends
/// later counts.
pub fn find(drains: &Drains, (addr, port): (Addr, u16)) -> Option<&Drain> {
    let named = drains.get(&Drained { addr, port: Some(port) });
    let all = drains.get(&Drained { addr, port: None });
    match (named, all) {
        (Some(named), Some(all)) => Some(if all.end() > named.end() { all } else { named }),
        (named, all) => named.or(all),
    }
}

/// The other drains that include backends of this one.
pub fn overlapping(drains: &Drains, backend: Drained) -> impl Iterator<Item = (&Drained, &Drain)> {
    let of_addr = drains.iter().filter(move |(other, _)| other.addr == backend.addr && **other != backend);
    of_addr.filter(move |(other, _)| other.port.is_none() || backend.port.is_none())
}

/// Why the drains of a service change, such as `drain of 192.0.2.11:8080 by root (login alice) for 1h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainCause {
    Begun(Arc<str>),
    Ended(Arc<str>),
}

impl DrainCause {
    pub fn text(&self) -> &Arc<str> {
        match self {
            Self::Begun(text) | Self::Ended(text) => text,
        }
    }
}

#[cfg(test)]
#[path = "tests/drain.rs"]
mod tests;

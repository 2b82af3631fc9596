//! The values in a service entry that are written as a string.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::node::node_name;
use nodelb_core::model::service::{Backend, BackendState};
use nodelb_kube::api::health_check;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::document;
use nodelb_core::model::named::{DnsName, UNSPECIFIED};

/// `"198.51.100.10:80/TCP"`
pub(super) struct Frontend(pub(super) L4Addr);

/// `"192.0.2.11:8080"` or `"web.example.com:8080"`
struct BackendAddress {
    /// `None` if the backend has an address.
    name: Option<DnsName>,
    /// The unspecified address if the backend has a name.
    addr: Addr,
    port: u16,
}

/// `"192.0.2.11:8080"` or `"web.example.com:8080"`, or a table with more keys of the backend.
pub(super) struct BackendEntry {
    /// The name that leads to the backends; `None` if the backend has an address.
    pub(super) name: Option<DnsName>,
    pub(super) backend: Backend,
}

/// `"srv:_http._tcp.web.example.com"`
pub(super) struct BackendsFrom(pub(super) DnsName);

/// A path, with its query if there is one. Characters that would end the request line early are rejected.
pub(super) struct UrlPath(pub(super) Arc<str>);

/// The value of the Host header: a name or an address, optionally with a port.
pub(super) struct HostName(pub(super) Arc<str>);

/// A status code, as a number or a string, or a range such as `"200-399"`.
pub(super) struct Status(pub(super) RangeInclusive<u16>);

/// A duration within a range, in multiples of `UNIT`, all in milliseconds: a string such as `"1h30m"`, or seconds as a
/// number.
#[derive(Clone, Copy)]
pub(super) struct Limited<const MIN: u64, const MAX: u64, const UNIT: u64>(pub(super) Duration);

/// Values that are written as a string: what describes such a string, and how it is parsed.
macro_rules! texts {
    ($($type:ident, $expected:literal, $parse:expr;)+) => {
        $( impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                document::text(from, $expected, $parse)
            }
        } )+
    };
}

texts! {
    Frontend, "a string such as \"198.51.100.10:80/TCP\"", frontend;
    BackendAddress, "a string such as \"192.0.2.11:8080\"", backend_address;
    BackendsFrom, "a string such as \"srv:_http._tcp.web.example.com\"", backends_from;
    UrlPath, "a string", |text| health_check::path(text).map(UrlPath);
    HostName, "a string", |text| health_check::host(text).map(HostName);
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        document::text_or_integer(from, "a status such as 200 or \"200-399\"", "", |text| {
            health_check::status(text).map(Status)
        })
    }
}

impl<'de, const MIN: u64, const MAX: u64, const UNIT: u64> Deserialize<'de> for Limited<MIN, MAX, UNIT> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        document::text_or_integer(from, "a duration such as \"10s\"", "s", |text| {
            health_check::duration(text, (MIN, MAX), UNIT).map(Self)
        })
    }
}

/// Checks that an address can be that of a frontend or a backend, which is described by `role`.
fn one_host(text: &str, addr: Addr, role: &str) -> Result<(), String> {
    if addr.is_unspecified() {
        Err(format!("`{text}` is the unspecified address, not that of a host; {role}"))
    } else if addr.is_multicast() {
        Err(format!("`{text}` is a multicast or broadcast address, not that of a host; {role}"))
    } else {
        Ok(())
    }
}

fn frontend(text: &str) -> Result<Frontend, String> {
    let addr: L4Addr = text.parse().map_err(|error| format!("{error}"))?;
    one_host(text, addr.addr, "a frontend is an address that clients connect to")?;
    Ok(Frontend(addr))
}

fn backend_address(text: &str) -> Result<BackendAddress, String> {
    if text.contains('/') {
        return Err(format!("`{text}` has a protocol; a backend has that of its frontends: remove the protocol"));
    }
    if let Some((name, port)) = split_name(text) {
        let port = port.and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let port = port.ok_or_else(|| {
            format!("`{}` has no port from 1 to 65535; write it like web.example.com:8080", text.escape_debug())
        })?;
        return Ok(BackendAddress { name: Some(DnsName::parse(name)?), addr: UNSPECIFIED, port });
    }
    let socket: L4Addr = text.parse().map_err(|error| format!("{error}"))?;
    one_host(text, socket.addr, "a backend is an address that connections reach")?;
    Ok(BackendAddress { name: None, addr: socket.addr, port: socket.port })
}

/// The name and the port of a text that looks like `NAME:PORT`; `None` if it is an address. The last label of a name
/// has a letter, unlike that of an IPv4 address.
fn split_name(text: &str) -> Option<(&str, Option<&str>)> {
    let (name, port) = text.rsplit_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let label = name.strip_suffix('.').unwrap_or(name).rsplit('.').next()?;
    let is_name = !name.contains([':', '[', ']']) && label.chars().any(|c| !c.is_ascii_digit());
    is_name.then_some((name, port))
}

fn backends_from(text: &str) -> Result<BackendsFrom, String> {
    let Some(name) = text.strip_prefix("srv:") else {
        let shown = text.escape_debug();
        return Err(format!("`{shown}` must begin with srv:, like srv:_http._tcp.web.example.com"));
    };
    DnsName::parse(name).map(BackendsFrom)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendTable {
    address: BackendAddress,
    weight: Option<u16>,
    state: Option<State>,
    #[serde(default)]
    node: String,
    #[serde(default)]
    zone: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Active,
    Maintenance,
}

impl<'de> Deserialize<'de> for BackendEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AddressOrTable;

        impl<'de> Visitor<'de> for AddressOrTable {
            type Value = BackendEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string such as \"192.0.2.11:8080\" or \"web.example.com:8080\", or a table")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BackendEntry, E> {
                let BackendAddress { name, addr, port } = backend_address(text).map_err(E::custom)?;
                Ok(BackendEntry { name, backend: Backend::new(addr, port) })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BackendEntry, A::Error> {
                BackendTable::deserialize(MapAccessDeserializer::new(map)).map(BackendEntry::from)
            }
        }

        from.deserialize_any(AddressOrTable)
    }
}

impl From<BackendTable> for BackendEntry {
    fn from(BackendTable { address, weight, state, node, zone }: BackendTable) -> Self {
        let BackendAddress { name, addr, port } = address;
        let state = match state {
            Some(State::Maintenance) => BackendState::Maintenance,
            Some(State::Active) | None => BackendState::Active,
        };
        let [node, zone] =
            [node_name(&node), zone].map(|name| Some(name.into()).filter(|name: &Arc<str>| !name.is_empty()));
        let backend = Backend { state, weight: weight.unwrap_or(1), node, zone, ..Backend::new(addr, port) };
        Self { name, backend }
    }
}

#[cfg(test)]
#[path = "tests/values.rs"]
mod tests;

//! The types of the values in a service entry.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::names::node_name;
use nodelb_core::model::service::{Backend, BackendState, ServiceName, TrafficPolicy};
use toml::de::DeTable;

use crate::document::{Fields, Mismatches, Setting, Value, read_text, wrong_type};

/// A value with its position.
pub(super) struct At<T>(pub(super) Range<usize>, pub(super) T);

impl<T: Setting> Setting for At<T> {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        Some(Self(value.span(), T::read(value, mismatches)?))
    }
}

/// `"198.51.100.10:80/TCP"`
pub(super) struct FrontendEntry(pub(super) L4Addr);

/// `"192.0.2.11:8080"`, or a table with more keys of the backend.
pub(super) struct BackendEntry(pub(super) Backend);

/// `"none"` or `"client-ip"`
#[derive(Clone, Copy)]
pub(super) enum Affinity {
    None,
    ClientIp,
}

/// Seconds as a number, or as a text such as `"1h30m"`.
pub(super) struct Timeout(pub(super) u32);

struct Weight(u16);

struct State(BackendState);

struct BackendAddress(Addr, u16);

/// The reason why an address cannot be a backend or a frontend, if so.
fn not_one_host(addr: Addr) -> Option<&'static str> {
    if addr.is_unspecified() {
        Some("is the unspecified address, not that of a host")
    } else if addr.is_multicast() {
        Some("is a multicast or broadcast address, not that of a host")
    } else {
        None
    }
}

impl FromStr for FrontendEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let addr: L4Addr = text.parse().map_err(|error| format!("{error}"))?;
        match not_one_host(addr.addr) {
            Some(why) => Err(format!("`{text}` {why}; a frontend is an address that clients dial")),
            None => Ok(Self(addr)),
        }
    }
}

impl FromStr for BackendAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Err(format!("`{text}` has a protocol; a backend has that of its frontends: write it without"));
        }
        let socket: L4Addr = text.parse().map_err(|error| format!("{error}"))?;
        match not_one_host(socket.addr) {
            Some(why) => Err(format!("`{text}` {why}; a backend is an address that connections reach")),
            None => Ok(Self(socket.addr, socket.port)),
        }
    }
}

impl FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "client-ip" => Ok(Self::ClientIp),
            _ => Err(format!("`{text}` is not a session affinity (expected \"none\" or \"client-ip\")")),
        }
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "active" => Ok(Self(BackendState::Active)),
            "maintenance" => Ok(Self(BackendState::Maintenance)),
            _ => Err(format!("`{text}` is not a state (expected \"active\" or \"maintenance\")")),
        }
    }
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = duration(text).filter(|duration| duration.subsec_millis() == 0);
        whole.and_then(|duration| timeout(duration.as_secs())).ok_or_else(|| timeout_message(text))
    }
}

/// The longest timeout, in seconds: a year. Longer ones are mistakes.
const MAX_TIMEOUT_SECONDS: u64 = 365 * 86_400;

fn timeout(seconds: u64) -> Option<Timeout> {
    u32::try_from(seconds).ok().filter(|_| (1..=MAX_TIMEOUT_SECONDS).contains(&seconds)).map(Timeout)
}

fn timeout_message(found: impl fmt::Display) -> String {
    format!(
        "`{found}` is not a timeout (expected 1 s to 365 d, such as \"3h\", \"1h30m\", \"90s\", or seconds as a number)"
    )
}

/// Numbers with a unit of `d`, `h`, `m`, `s` or `ms` each, the largest unit first.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0_u64;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let name = &after[..after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len())];
        let unit = match name {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        if unit >= last_unit {
            return None;
        }
        last_unit = unit;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = &after[name.len()..];
    }
    Some(Duration::from_millis(total))
}

impl Setting for Timeout {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(integer) = value.get_ref().as_integer() else {
            return read_text(value, "a duration such as \"3h\"", mismatches);
        };
        let read = u64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(timeout);
        if read.is_none() {
            mismatches.push((value.span(), timeout_message(integer)));
        }
        read
    }
}

impl Setting for Weight {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(integer) = value.get_ref().as_integer() else {
            return wrong_type(value, "an integer", mismatches);
        };
        let read = u16::from_str_radix(integer.as_str(), integer.radix());
        let in_range = |_out_of_range| mismatches.push((value.span(), format!("{integer} is not in 0..=65535")));
        read.map(Self).map_err(in_range).ok()
    }
}

impl Setting for TrafficPolicy {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let text = String::read(value, mismatches)?;
        match text.as_str() {
            "cluster" => Some(Self::Cluster),
            "local" => Some(Self::Local),
            _ => {
                let message = format!("`{text}` is not a traffic policy (expected \"cluster\" or \"local\")");
                mismatches.push((value.span(), message));
                None
            }
        }
    }
}

macro_rules! read_as_text {
    ($($type:ty, $expected:literal;)+) => {
        $( impl Setting for $type {
            fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
                read_text(value, $expected, mismatches)
            }
        } )+
    };
}

read_as_text! {
    ServiceName, "a string such as \"shop/web\"";
    FrontendEntry, "a string such as \"198.51.100.10:80/TCP\"";
    BackendAddress, "a string such as \"192.0.2.11:8080\"";
    Affinity, "a string";
    State, "a string";
}

impl Setting for BackendEntry {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        if let Some(table) = value.get_ref().as_table() {
            return read_backend_table(table, value, mismatches);
        }
        if !value.get_ref().is_str() {
            return wrong_type(value, "a string such as \"192.0.2.11:8080\", or a table", mismatches);
        }
        let BackendAddress(addr, port) = BackendAddress::read(value, mismatches)?;
        Some(Self(Backend::new(addr, port)))
    }
}

fn read_backend_table(table: &DeTable<'_>, value: &Value<'_>, mismatches: &mut Mismatches) -> Option<BackendEntry> {
    let before = mismatches.len();
    let mut fields = Fields::of(table, "");
    if !table.contains_key("address") {
        mismatches.push((value.span(), "has no address; add address = \"ADDRESS:PORT\"".into()));
    }
    let address = fields.setting("address", mismatches);
    let weight = fields.setting("weight", mismatches).map_or(1, |Weight(weight)| weight);
    let state = fields.setting("state", mismatches).map_or(BackendState::Active, |State(state)| state);
    let [node, zone] = ["node", "zone"].map(|key| {
        let name: Option<String> = fields.setting(key, mismatches);
        let name = if key == "node" { name.map(|name| node_name(&name)) } else { name };
        name.filter(|name| !name.is_empty()).map(Arc::<str>::from)
    });
    mismatches.extend(fields.unknown());
    let BackendAddress(addr, port) = address.filter(|_| mismatches.len() == before)?;
    Some(BackendEntry(Backend { state, weight, node, zone, ..Backend::new(addr, port) }))
}

#[cfg(test)]
#[path = "tests/values.rs"]
mod tests;

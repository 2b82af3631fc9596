//! Addresses on the command line, in every form that people, tables and other tools write: with brackets, and with the
//! zone of a link-local address, which no service has.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use nodelb_core::model::addr::{Addr, AddrError};
use nodelb_core::model::drain::Drained;

/// Returns the text without the zone of a link-local address: `[fe80::1%eth0]:80` is `[fe80::1]:80`.
pub(super) fn without_zone(text: &str) -> Cow<'_, str> {
    let Some((address, rest)) = text.split_once('%') else { return text.into() };
    let is_link_local = |text: &str| text.parse::<Ipv6Addr>().is_ok_and(|v6| v6.is_unicast_link_local());
    let (zone, rest) = rest.split_at(rest.find([']', '/']).unwrap_or(rest.len()));
    let bare = address.strip_prefix('[').unwrap_or(address);
    if zone.is_empty() || !is_link_local(bare) { text.into() } else { format!("{address}{rest}").into() }
}

/// Parses an address without a port.
pub(super) fn address(text: &str) -> Result<Addr, AddrError> {
    let plain = without_zone(text);
    let bare = plain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bare.filter(|bare| bare.contains(':')) {
        Some(bare) => bare.parse().map_err(|_not_an_address| AddrError::Address(text.into())),
        None => plain.parse(),
    }
}

/// Parses an address with or without a port.
pub(super) fn backend(text: &str) -> Result<Drained, String> {
    match address(text) {
        Ok(addr) => Ok(Drained { addr, port: None }),
        Err(_) => without_zone(text).parse(),
    }
}

#[cfg(test)]
#[path = "tests/addresses.rs"]
mod tests;

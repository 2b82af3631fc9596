//! Names of services on the command line: complete ones, ones without a namespace, and suggestions for names that do not
//! exist.

use std::collections::BTreeSet;

use nodelb_core::history::What;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::service::{ServiceName, is_name_part};
use nodelb_report::rows::{HistoryAnswer, HistoryRow};
use serde::Deserialize;

use super::addresses;
use super::answer::{decode, now};
use super::asking::{Asking, Parameter};
use super::client::At;
use super::similar::similar_names;
use super::without_daemon::{Fallback, OpenStoredState, Shown};
use crate::exit::{Code, Failure};

/// The maximum number of names in a message.
const SHOWN: usize = 3;

/// Parses the name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    if is_name_part(text) { Ok(text.to_owned()) } else { Err("not the name of a namespace".into()) }
}

/// What a command is about, where it accepts a service or an address.
pub(super) enum Place {
    Service(ServiceName),
    Address(Addr),
}

/// Returns the address if the text is one without a port, otherwise the service.
///
/// # Errors
/// As [`resolve`].
pub(super) fn place(asking: &Asking, text: &str, namespace: Option<&str>) -> Result<Place, Failure> {
    match addresses::address(text) {
        Ok(addr) => Ok(Place::Address(addr)),
        Err(_) => resolve(asking, text, namespace).map(Place::Service),
    }
}

/// As [`resolve`] for commands with a configuration: it queries the daemon at the first of these addresses that answers,
/// otherwise what is stored; only the address of the option `--admin` if there is one.
pub(super) fn resolve_at(
    (option, others): (Option<&At>, &[At]),
    open: OpenStoredState,
    text: &str,
) -> Result<ServiceName, Failure> {
    if let Some(name) = full_name(text) {
        return name;
    }
    for at in others.iter().filter(|_| option.is_none()) {
        match resolve(&Asking::at(Some(at.clone()), Fallback::default()), text, None) {
            Err(failure) if failure.code == Code::Unavailable => {}
            answer => return answer,
        }
    }
    let last = Asking::at(option.cloned(), Fallback::new(open, Shown::Kernel));
    resolve(&last, text, None).map_err(|failure| match failure.code {
        Code::Unavailable => {
            Failure::message(failure.code, format!("{failure}\nOr name the service in full: NAMESPACE/NAME"))
        }
        _ => failure,
    })
}

/// Returns the name if the text has a namespace. An address may have a protocol after a slash.
fn full_name(text: &str) -> Option<Result<ServiceName, Failure>> {
    let is_name = text.contains('/') && addresses::without_zone(text).parse::<L4Addr>().is_err();
    is_name.then(|| text.parse().map_err(|error| Failure::new(Code::Usage, error)))
}

/// Returns the service with this name, or with this address. A name without a namespace belongs to the only service of
/// this name, in any namespace or in this one.
///
/// # Errors
/// [`Code::Usage`] if the text is not a name, or several services have it; [`Code::NotFound`] if none has.
pub(super) fn resolve(asking: &Asking, text: &str, namespace: Option<&str>) -> Result<ServiceName, Failure> {
    if let Some(name) = full_name(text) {
        return name;
    }
    if let Ok(at) = addresses::without_zone(text).parse::<L4Addr>() {
        return at_address(asking, at.addr, Some(at));
    }
    if let Ok(addr) = addresses::address(text) {
        return at_address(asking, addr, None);
    }
    if !is_name_part(text) {
        return Err(Failure::message(Code::Usage, format!("`{text}` is not the name of a service")));
    }
    if let Some(namespace) = namespace {
        return Ok(ServiceName::new(namespace, text));
    }
    let known = known(asking, &[])?;
    let named: Vec<&String> =
        known.iter().filter(|name| name.split_once('/').is_some_and(|(_, it)| it == text)).collect();
    match named[..] {
        [one] => one.parse().map_err(|error| Failure::new(Code::Data, error)),
        [] => former(asking, text).ok_or_else(|| missing(text, &known)),
        _ => Err(several(&format!("have the name {text}"), named.iter().map(|name| name.as_str()))),
    }
}

/// Returns the only service that connections to the address reach; without a port, or if there is none, the only one that
/// claims the address or has it as a backend.
fn at_address(asking: &Asking, addr: Addr, at: Option<L4Addr>) -> Result<ServiceName, Failure> {
    if let Some(at) = at {
        let traced: Traced = decode(&asking.get("/trace", &[("to", at.to_string())])?)?;
        if let Some(service) = traced.verdict.service {
            return service.parse().map_err(|error| Failure::new(Code::Data, error));
        }
    }
    let shown = at.map_or_else(|| addr.to_string(), |at| at.to_string());
    for route in ["/frontends", "/backends"] {
        let found: Placed = decode(&asking.get(route, &[("address", addr.to_string())])?)?;
        let rows = found.rows.into_iter().filter(|row| at.is_none_or(|at| at == row.address));
        let services: BTreeSet<String> = rows.filter_map(|row| row.service).collect();
        let mut names = services.iter();
        match (names.next(), names.next()) {
            (None, _) => {}
            (Some(one), None) => return one.parse().map_err(|error| Failure::new(Code::Data, error)),
            _ => return Err(several(&format!("use {shown}"), services.iter().map(String::as_str))),
        }
    }
    Err(Failure::message(Code::NotFound, format!("no service uses {shown}; see `nodelb frontends`")))
}

fn several<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Failure {
    let shown: Vec<&str> = names.take(SHOWN).collect();
    Failure::message(Code::Usage, format!("several services {what}: name one of {}", shown.join(", ")))
}

/// Checks that a service claims the address or has it as a backend, or that it is one of the node at which NodePorts are
/// served.
pub(super) fn must_be_known(asking: &Asking, addr: Addr) -> Result<(), Failure> {
    let parameters = [("address", addr.to_string())];
    for route in ["/frontends", "/backends", "/maps"] {
        let found: Placed = decode(&asking.get(route, &parameters)?)?;
        if !found.rows.is_empty() || !found.node_addresses.is_empty() {
            return Ok(());
        }
    }
    Err(Failure::message(Code::NotFound, format!("no service uses {addr}; see `nodelb frontends`")))
}

/// The part of the answers of `/frontends`, `/backends` and `/maps` that is known without the daemon, too.
#[derive(Deserialize)]
struct Placed {
    #[serde(alias = "frontends", alias = "backends")]
    rows: Vec<PlacedRow>,
    #[serde(default)]
    node_addresses: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct PlacedRow {
    address: L4Addr,
    service: Option<String>,
}

#[derive(Deserialize)]
struct Traced {
    verdict: Named,
}

/// Returns the service of this name that was removed last.
fn former(asking: &Asking, text: &str) -> Option<ServiceName> {
    let rows = history(asking, &[]).into_iter().rev().filter(|row| row.what == What::Removed);
    let mut names = rows.filter_map(|row| row.service?.parse::<ServiceName>().ok());
    names.find(|name| *name.name == *text)
}

/// Checks that the service exists. The failure has suggestions.
pub(super) fn must_exist(asking: &Asking, name: &ServiceName) -> Result<(), Failure> {
    if !known(asking, &[("service", name.to_string())])?.is_empty() {
        return Ok(());
    }
    if let Some(row) = removals(asking, name).first() {
        let message = format!("{}; see `nodelb history {name}`", row.gone(now()));
        return Err(Failure::message(Code::NotFound, message));
    }
    Err(missing(&name.to_string(), &known(asking, &[])?))
}

/// The part of the answer of `/services` that is known without the daemon, too.
#[derive(Deserialize)]
struct Known {
    services: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    service: Option<String>,
}

fn known(asking: &Asking, parameters: &[Parameter]) -> Result<Vec<String>, Failure> {
    let answer: Known = decode(&asking.get("/services", parameters)?)?;
    let mut names: Vec<String> = answer.services.into_iter().filter_map(|row| row.service).collect();
    names.dedup();
    Ok(names)
}

/// Returns the recorded changes of services, the oldest first; none if they cannot be read, because they only add to what
/// is known.
pub(super) fn history(asking: &Asking, parameters: &[Parameter]) -> Vec<HistoryRow> {
    let answer = asking.get("/history", parameters).and_then(|body| decode::<HistoryAnswer>(&body));
    answer.map(|answer| answer.history).unwrap_or_default()
}

/// Returns the last changes of the service that removed its ports, the latest first; empty if there was another change
/// since.
pub(super) fn removals(asking: &Asking, name: &ServiceName) -> Vec<HistoryRow> {
    let rows = history(asking, &[("service", name.to_string())]);
    rows.into_iter().rev().take_while(|row| row.what == What::Removed).collect()
}

fn missing(text: &str, known: &[String]) -> Failure {
    let similar: Vec<&str> = similar_names(text, known.iter().map(String::as_str)).take(SHOWN).collect();
    let hint = match similar[..] {
        [] => "see `nodelb services`".to_owned(),
        _ => format!("did you mean {}?", similar.join(" or ")),
    };
    Failure::message(Code::NotFound, format!("there is no service {text}; {hint}"))
}

//! Names of services on the command line: complete ones, ones without a namespace, and suggestions for names that do not
//! exist.

use nodelb_core::history::What;
use nodelb_core::model::service::{ServiceName, is_name_part};
use nodelb_report::rows::{HistoryAnswer, HistoryRow};
use serde::Deserialize;

use super::answer::{decode, now};
use super::asking::{Asking, Parameter};
use super::similar::similar_names;
use crate::exit::{Code, Failure};

/// The maximum number of names in a message.
const SHOWN: usize = 3;

/// Returns the service with this name. A name without a namespace belongs to the only service of this name, in any
/// namespace or in this one.
///
/// # Errors
/// [`Code::Usage`] if the text is not a name, or several services have it; [`Code::NotFound`] if none has.
pub(super) fn resolve(asking: &Asking, text: &str, namespace: Option<&str>) -> Result<ServiceName, Failure> {
    if text.contains('/') {
        return text.parse().map_err(|error| Failure::new(Code::Usage, error));
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
        _ => {
            let shown: Vec<&str> = named.iter().take(SHOWN).map(|name| name.as_str()).collect();
            let message = format!("several services have the name {text}: use one of {}", shown.join(", "));
            Err(Failure::message(Code::Usage, message))
        }
    }
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

//! Names of services on the command line: complete ones, ones without a namespace, and suggestions for names that do not
//! exist.

use nodelb_core::model::service::{ServiceName, is_name_part};
use nodelb_core::rows::Services;

use super::ask::{Asking, Parameter, decode};
use super::diagnose::suggest::similar_names;
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
        [] => Err(missing(text, &known)),
        _ => {
            let shown: Vec<&str> = named.iter().take(SHOWN).map(|name| name.as_str()).collect();
            let message = format!("several services have the name {text}: use one of {}", shown.join(", "));
            Err(Failure::message(Code::Usage, message))
        }
    }
}

/// Checks that the service exists.
///
/// # Errors
/// [`Code::NotFound`] if it does not, with suggestions.
pub(super) fn must_exist(asking: &Asking, name: &ServiceName) -> Result<(), Failure> {
    if !known(asking, &[("service", name.to_string())])?.is_empty() {
        return Ok(());
    }
    Err(missing(&name.to_string(), &known(asking, &[])?))
}

fn known(asking: &Asking, parameters: &[Parameter]) -> Result<Vec<String>, Failure> {
    let answer: Services = decode(&asking.get("/services", parameters)?)?;
    let mut names: Vec<String> = answer.services.into_iter().map(|row| row.service).collect();
    names.dedup();
    Ok(names)
}

fn missing(text: &str, known: &[String]) -> Failure {
    let similar: Vec<&str> = similar_names(text, known.iter().map(String::as_str)).take(SHOWN).collect();
    let hint = match similar[..] {
        [] => "see `nodelb services`".to_owned(),
        _ => format!("did you mean {}?", similar.join(" or ")),
    };
    Failure::message(Code::NotFound, format!("there is no service {text}; {hint}"))
}

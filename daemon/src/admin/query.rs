//! What a request asks for: the parameters of the query string and the wanted form, checked. Owns the names of the
//! parameters; which route takes which is said in the route table.

use std::fmt;

use axum::extract::Query as RawQuery;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode, Uri};
use nodelb_core::report::Filter;

/// A parameter of the query string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// Only this service.
    Service,
    /// Only this address, whatever the port.
    Address,
    /// The form of the answer.
    Output,
}

impl Parameter {
    fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Address => "address",
            Self::Output => "output",
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "service=NAMESPACE/NAME",
            Self::Address => "address=ADDRESS",
            Self::Output => "output=text|json",
        })
    }
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Output {
    /// Tables for people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Output {
    /// What the `Accept` header asks for, unless the query string says otherwise: JSON if it is named, else text.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let names_json = |value: &str| {
            value.split(',').any(|range| {
                let media = range.split(';').next().unwrap_or_default().trim();
                media.eq_ignore_ascii_case("application/json")
            })
        };
        let named = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(names_json);
        if named { Self::Json } else { Self::Text }
    }
}

/// Why a request is not answered with tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// What HTTP calls it.
    pub(super) status: StatusCode,
    /// What is wrong and what to do, one line.
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// A checked request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Which rows.
    pub(super) filter: Filter,
    /// In which form, if the query string says so.
    pub(super) output: Option<Output>,
}

impl Query {
    /// Reads the query string of a route that takes these parameters. An unknown, repeated or wrong parameter is
    /// refused: a filter that is silently ignored would show an operator the wrong rows.
    pub(super) fn parse(uri: &Uri, allowed: &[Parameter]) -> Result<Self, Problem> {
        let bad = |message: String| Problem::new(StatusCode::BAD_REQUEST, message);
        let RawQuery(pairs) = RawQuery::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| bad(format!("the query string cannot be read: {error}")))?;
        let mut query = Self::default();
        let mut seen = Vec::new();
        for (name, value) in pairs {
            let Some(parameter) = allowed.iter().copied().find(|parameter| parameter.name() == name) else {
                return Err(bad(format!("unknown parameter `{name}`: {} takes {}", uri.path(), list(allowed))));
            };
            if seen.contains(&parameter) {
                return Err(bad(format!("parameter `{name}` is given twice: give it once")));
            }
            seen.push(parameter);
            query.set(parameter, &value).map_err(|reason| {
                bad(format!("parameter `{name}`: {reason}; {} takes {}", uri.path(), list(allowed)))
            })?;
        }
        Ok(query)
    }

    fn set(&mut self, parameter: Parameter, value: &str) -> Result<(), String> {
        match parameter {
            Parameter::Service => {
                self.filter.service = Some(value.parse().map_err(|error| format!("{error}"))?);
            }
            Parameter::Address => {
                self.filter.address = Some(value.parse().map_err(|error| format!("{error}"))?);
            }
            Parameter::Output => {
                self.output = Some(match value {
                    "text" => Output::Text,
                    "json" => Output::Json,
                    _ => return Err(format!("`{value}` is not a form (expected text or json)")),
                });
            }
        }
        Ok(())
    }
}

/// `service=NAMESPACE/NAME, address=ADDRESS, output=text|json`, or `none`.
pub(super) fn list(parameters: &[Parameter]) -> String {
    if parameters.is_empty() {
        return "none".into();
    }
    parameters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;

//! nodelb's own health checks as users write them: in the `[service.health-check]` table of a service file, and in
//! annotations of a Service. Both are validated here. Pure.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::durations;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::health_check::{HealthCheck, Method};
use nodelb_core::model::service::ServicePort;
use nodelb_core::text;
use serde::Deserialize;

/// The annotation that requests health checks. The names of the further settings begin with it.
pub const ANNOTATION: &str = "nodelb.io/health-check";

/// The permitted intervals in milliseconds: shorter ones cause load, longer ones detect nothing in time.
pub const INTERVAL: (u64, u64) = (100, 3_600_000);
/// The permitted time limits in milliseconds.
pub const TIMEOUT: (u64, u64) = (10, 60_000);

/// The maximum length of a path and of a Host header, in bytes.
const MAX_TEXT: usize = 1_024;
/// The maximum length of an annotation's value, in bytes: a kind, a port and the longest path.
const MAX_VALUE: usize = MAX_TEXT + 16;
/// The maximum number of characters of a value that a message quotes.
const MAX_QUOTED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, strum::EnumString)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    Tcp,
    /// An HTTP GET request.
    Http,
}

/// Whether a backend is used before its first check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, strum::EnumString)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Start {
    Healthy,
    Unhealthy,
}

/// The settings of the checks of one service. Each has been validated on its own, except `rise` and `fall`; what is
/// missing has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The kind of request; without it, there is no check.
    pub kind: Option<Kind>,
    /// The port to check instead of the backend's own.
    pub port: Option<NonZeroU16>,
    pub path: Option<Arc<str>>,
    pub host: Option<Arc<str>>,
    pub expected_status: Option<RangeInclusive<u16>>,
    pub interval: Option<Duration>,
    pub timeout: Option<Duration>,
    pub rise: Option<u32>,
    pub fall: Option<u32>,
    pub start: Option<Start>,
    pub last_resort: Option<bool>,
}

impl Settings {
    /// The health check; `None` without a kind. `problem` receives each setting that does not fit the others, by its
    /// key in service files, with the reason.
    pub fn check(self, mut problem: impl FnMut(&'static str, String)) -> Option<HealthCheck> {
        let default = HealthCheck::default();
        let interval = self.interval.unwrap_or(default.interval);
        let timeout = self.timeout.unwrap_or(default.timeout.min(interval));
        if timeout > interval {
            let [timeout, interval] = [timeout, interval].map(durations::exact);
            let message = format!(
                "{timeout} is longer than the interval of {interval}; a check ends before the next begins: shorten the \
                 timeout"
            );
            problem("timeout", message);
        }
        let mut count = |key, value: Option<u32>, default: u8| match value {
            Some(value) if !(1..=100).contains(&value) => {
                problem(key, format!("{value} is not in 1..=100"));
                default
            }
            Some(value) => u8::try_from(value).unwrap_or(default),
            None => default,
        };
        let (rise, fall) = (count("rise", self.rise, default.rise), count("fall", self.fall, default.fall));
        let method = self.method(&mut problem)?;
        Some(HealthCheck {
            method,
            port: self.port.map(NonZeroU16::get),
            interval,
            timeout,
            rise,
            fall,
            starts_healthy: self.start != Some(Start::Unhealthy),
            last_resort: self.last_resort.unwrap_or(default.last_resort),
        })
    }

    fn method(&self, problem: &mut impl FnMut(&'static str, String)) -> Option<Method> {
        if self.kind? == Kind::Http {
            return Some(Method::Http {
                path: self.path.clone().unwrap_or_else(|| "/".into()),
                host: self.host.clone(),
                status: self.expected_status.clone().unwrap_or(200..=399),
            });
        }
        let http = [
            ("path", self.path.is_some()),
            ("host", self.host.is_some()),
            ("expected-status", self.expected_status.is_some()),
        ];
        for (key, _) in http.into_iter().filter(|(_, is_set)| *is_set) {
            problem(key, "has no effect on a check over TCP; change the type to http, or remove it".to_owned());
        }
        Some(Method::Tcp)
    }
}

/// Why a service port cannot be checked at the backend's own port: checks use TCP. The caller adds the remedy.
pub fn without_tcp(name: &str, protocols: &[Protocol]) -> Option<String> {
    if protocols.is_empty() || protocols.contains(&Protocol::Tcp) {
        return None;
    }
    let protocols = protocols.iter().map(ToString::to_string).collect::<Vec<_>>().join("/");
    let named = if name.is_empty() { String::new() } else { format!(" of port {name}") };
    Some(format!("the backends{named} are served over {protocols} only, and a check connects over TCP"))
}

/// Parses the path of a request, with its query if there is one. Refuses characters that would end the request line
/// early.
pub fn path(text: &str) -> Result<Arc<str>, String> {
    let is_uri = || text.parse::<hyper::http::uri::PathAndQuery>().is_ok_and(|parsed| parsed.as_str() == text);
    if !text.starts_with('/') {
        Err(format!("`{text}` must begin with a slash, such as \"/healthz\""))
    } else if text.len() > MAX_TEXT || !text.is_ascii() || !is_uri() {
        Err(format!(
            "not a path: it has at most {MAX_TEXT} bytes, and characters that a URL cannot contain are written like %20"
        ))
    } else {
        Ok(text.into())
    }
}

/// Parses the value of the Host header: a name or an address, optionally with a port.
pub fn host(text: &str) -> Result<Arc<str>, String> {
    let is_host = text.parse::<hyper::http::uri::Authority>().is_ok() && !text.contains('@');
    if is_host && text.len() <= MAX_TEXT {
        Ok(text.into())
    } else {
        Err(format!("`{}` is not a host (expected like \"shop.example\" or \"192.0.2.1:80\")", text.escape_debug()))
    }
}

/// Parses a status code, or a range such as `200-399`.
pub fn status(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let code = |text: &str| text.trim().parse::<u16>().ok().filter(|code| (100..=599).contains(code));
    let range = code(first).zip(code(last)).filter(|(first, last)| first <= last);
    let refused = || format!("`{text}` is not a status (expected one like 200 or a range like \"200-399\")");
    range.map(|(first, last)| first..=last).ok_or_else(refused)
}

/// Parses a duration such as `1h30m` within these limits, in multiples of `unit`, all in milliseconds.
pub fn duration(text: &str, (min, max): (u64, u64), unit: u64) -> Result<Duration, String> {
    let is_accepted =
        |millis: u128| (u128::from(min)..=max.into()).contains(&millis) && millis.is_multiple_of(u128::from(unit));
    let duration = durations::parse(text).filter(|duration| is_accepted(duration.as_millis()));
    let [first, last, unit] = [min, max, unit].map(|millis| durations::exact(Duration::from_millis(millis)));
    duration.ok_or_else(|| {
        format!(
            "`{text}` is not a duration from {first} to {last}, in multiples of {unit} (such as \"10s\", \"1h30m\", or \
             seconds as a number)"
        )
    })
}

/// Reads the health check that the annotations of a Service request: each value under its name without [`ANNOTATION`],
/// thus `""` or `-interval`. `None` without such annotations.
///
/// # Errors
/// Every annotation that cannot be used, with its value and the remedy, in one text.
pub fn from_annotations(
    annotations: &BTreeMap<String, String>,
    ports: &[ServicePort],
) -> Result<Option<HealthCheck>, String> {
    if annotations.is_empty() {
        return Ok(None);
    }
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    for (name, value) in annotations {
        if let Err(problem) = settings.set(name, value) {
            problems.push(format!("annotation {ANNOTATION}{}: {problem}", text::limited(name, MAX_QUOTED)));
        }
    }
    if !annotations.contains_key("") {
        problems.push(format!("annotation {ANNOTATION} is missing, so the others have no effect; add it, such as tcp"));
    }
    let is_unreachable = |port: &ServicePort| without_tcp(&port.name, &[port.protocol]);
    if settings.port.is_none()
        && let Some(problem) = ports.iter().find_map(is_unreachable)
    {
        problems.push(format!(
            "annotation {ANNOTATION}: {problem}; add a port at which each backend accepts TCP connections, such as \
             tcp:8080"
        ));
    }
    let mut add = |key, message| problems.push(format!("annotation {ANNOTATION}{}: {message}", annotation(key)));
    let check = settings.check(&mut add);
    if problems.is_empty() { Ok(check) } else { Err(problems.join("; ")) }
}

/// The annotation's name without [`ANNOTATION`] for a key of service files: type, port and path are in one annotation.
fn annotation(key: &str) -> String {
    if matches!(key, "type" | "port" | "path") { String::new() } else { format!("-{key}") }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if value.len() > MAX_VALUE {
            return Err(format!("the value has more than {MAX_VALUE} bytes; shorten it"));
        }
        let quoted = || text::limited(value, MAX_QUOTED);
        let number = || value.parse::<u32>().map_err(|_error| format!("`{}` is not a number in 1..=100", quoted()));
        match name {
            "" => self.set_request(value)?,
            "-host" => self.host = Some(host(value)?),
            "-expected-status" => self.expected_status = Some(status(value)?),
            "-interval" => self.interval = Some(duration(&in_seconds(value), INTERVAL, 1)?),
            "-timeout" => self.timeout = Some(duration(&in_seconds(value), TIMEOUT, 1)?),
            "-rise" => self.rise = Some(number()?),
            "-fall" => self.fall = Some(number()?),
            "-start" => {
                let refused = |_| format!("`{}` is neither healthy nor unhealthy", quoted());
                self.start = Some(value.parse().map_err(refused)?);
            }
            "-last-resort" => {
                let is_bool = |_| format!("`{}` is neither true nor false", quoted());
                self.last_resort = Some(value.parse().map_err(is_bool)?);
            }
            _ => {
                return Err("is unknown; expected no suffix, or -interval, -timeout, -host, -expected-status, -rise, \
                            -fall, -start or -last-resort: correct the name, or remove it"
                    .into());
            }
        }
        Ok(())
    }

    /// Takes `tcp`, `tcp:8080`, `http`, `http:/healthz` or `http:8080/healthz`.
    fn set_request(&mut self, value: &str) -> Result<(), String> {
        let refused = || {
            format!(
                "`{}` is not a check (expected tcp, tcp:PORT, http:/PATH or http:PORT/PATH, such as http:/healthz)",
                text::limited(value, MAX_QUOTED)
            )
        };
        let (kind, rest) = value.split_once(':').map_or((value, None), |(kind, rest)| (kind, Some(rest)));
        let kind = kind.parse().map_err(|_not_a_kind| refused())?;
        let rest = rest.unwrap_or_default();
        let (port, at) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if value.ends_with(':') || kind == Kind::Tcp && !at.is_empty() {
            return Err(refused());
        }
        self.kind = Some(kind);
        self.port = if port.is_empty() { None } else { Some(port.parse().map_err(|_not_a_port| refused())?) };
        self.path = if at.is_empty() { None } else { Some(path(at)?) };
        Ok(())
    }
}

/// A number without a unit means seconds, as in service files.
fn in_seconds(value: &str) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("{value}s") } else { value.to_owned() }
}

#[cfg(test)]
#[path = "tests/health_check.rs"]
mod tests;

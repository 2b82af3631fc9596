//! The `[service.health-check]` table of a service entry.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::Protocol;
use nodelb_core::model::health_check::{HealthCheck, Method};
use toml::de::{DeTable, DeValue};

use super::PortEntry;
use super::values::duration;
use crate::document::{Fields, Mismatches, Problems, Setting, Value, read_text, wrong_type};

/// The range of the interval between two checks of a backend: shorter intervals cause load, longer ones detect nothing
/// in time.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
/// The range of the timeout of an answer.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
/// The maximum length of a path and of a Host header, in bytes.
const MAX_TEXT: usize = 1_024;

/// The keys that apply only to HTTP.
const HTTP_KEYS: [&str; 3] = ["path", "host", "expected-status"];

/// Reads the table. `None` if the service has none, or one with problems, which are reported.
pub(super) fn read(service: &mut Fields<'_, '_>, ports: &[PortEntry], problems: &mut Problems) -> Option<HealthCheck> {
    let at = service.value("health-check")?.span();
    let table = service.table("health-check", problems)?;
    let mut fields = service.nested(table, "health-check.");
    let kind: Option<Kind> = fields.read("type", problems);
    if !table.contains_key("type") {
        fields.problem(&at, "health-check has no type; add type = \"tcp\" or type = \"http\"", problems);
    }
    let method = read_method(kind, &mut fields, table, problems);
    let port = fields.read("port", problems).map(|Port(port)| port);
    if !table.contains_key("port") {
        refuse_unreachable(&at, ports, &fields, problems);
    }
    let default = HealthCheck::default();
    let interval = fields.read("interval", problems).map_or(default.interval, |Interval(interval)| interval);
    let timeout = fields.read("timeout", problems).map_or(default.timeout.min(interval), |Timeout(timeout)| timeout);
    let is_short = || {
        let (timeout, interval) = (Text(timeout), Text(interval));
        format!("{timeout} is longer than the interval of {interval}; a check ends before the next begins: shorten it")
    };
    fields.check("timeout", if timeout <= interval { Ok(()) } else { Err(is_short()) }, problems);
    let [rise, fall] = [("rise", default.rise), ("fall", default.fall)]
        .map(|(key, default)| fields.read(key, problems).map_or(default, |Count(count)| count));
    let starts_healthy = fields.read("start", problems).is_none_or(|Start(is_healthy)| is_healthy);
    let last_resort = fields.read("last-resort", problems).map_or(default.last_resort, |Switch(is_on)| is_on);
    fields.refuse_others(problems);
    Some(HealthCheck { method: method?, port, interval, timeout, rise, fall, starts_healthy, last_resort })
}

fn read_method(
    kind: Option<Kind>,
    fields: &mut Fields<'_, '_>,
    table: &DeTable<'_>,
    problems: &mut Problems,
) -> Option<Method> {
    let path = fields.read("path", problems).map_or_else(|| "/".into(), |Path(path)| path);
    let host = fields.read("host", problems).map(|HostName(host)| host);
    let status = fields.read("expected-status", problems).map_or(200..=399, |Status(status)| status);
    match kind? {
        Kind::Http => Some(Method::Http { path, host, status }),
        Kind::Tcp => {
            for key in HTTP_KEYS.into_iter().filter(|key| table.contains_key(*key)) {
                let message = "means nothing without type = \"http\"; change the type, or remove this";
                fields.check(key, Err(message.into()), problems);
            }
            Some(Method::Tcp)
        }
    }
}

/// Rejects a check that cannot be answered: checks use TCP, so the backend's own port does not answer them if the
/// service has no TCP port.
fn refuse_unreachable(at: &Range<usize>, ports: &[PortEntry], fields: &Fields<'_, '_>, problems: &mut Problems) {
    let is_unreachable = |port: &&PortEntry| !port.protocols().is_empty() && !port.protocols().contains(&Protocol::Tcp);
    if let Some(port) = ports.iter().find(is_unreachable) {
        let protocol = port.protocols().into_iter().map(|protocol| protocol.to_string()).collect::<Vec<_>>().join("/");
        let named = if port.name.is_empty() { String::new() } else { format!(" of port {}", port.name) };
        let message = format_args!(
            "health-check: the backends{named} are served over {protocol} only, and a check connects over TCP; add \
             port = NUMBER, where something on each backend's address answers over TCP"
        );
        fields.problem(at, message, problems);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Tcp,
    Http,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "http" => Ok(Self::Http),
            _ => Err(format!("`{text}` is not a kind of check (expected \"tcp\" or \"http\")")),
        }
    }
}

/// Whether a backend starts healthy.
struct Start(bool);

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "healthy" => Ok(Self(true)),
            "unhealthy" => Ok(Self(false)),
            _ => Err(format!("`{text}` is not a state to start in (expected \"healthy\" or \"unhealthy\")")),
        }
    }
}

/// A path, with its query if there is one. Characters that would end the request line early are rejected.
struct Path(Arc<str>);

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_uri = || text.parse::<hyper::http::uri::PathAndQuery>().is_ok_and(|parsed| parsed.as_str() == text);
        if !text.starts_with('/') {
            Err(format!("`{text}` must begin with a slash, such as \"/healthz\""))
        } else if text.len() > MAX_TEXT || !is_uri() {
            Err(format!("not a path: at most {MAX_TEXT} bytes, and what is no URL character written like %20"))
        } else {
            Ok(Self(text.into()))
        }
    }
}

/// The value of the Host header: a name or an address, optionally with a port.
struct HostName(Arc<str>);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_host = text.parse::<hyper::http::uri::Authority>().is_ok() && !text.contains('@');
        if is_host && text.len() <= MAX_TEXT {
            Ok(Self(text.into()))
        } else {
            Err(format!("`{}` is not a host (expected like \"shop.example\" or \"192.0.2.1:80\")", text.escape_debug()))
        }
    }
}

struct Status(RangeInclusive<u16>);

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let code = |text: &str| text.trim().parse::<u16>().ok().filter(|code| (100..=599).contains(code));
        let range = code(first).zip(code(last)).filter(|(first, last)| first <= last);
        let refused = || format!("`{text}` is not a status (expected one like 200 or a range like \"200-399\")");
        range.map(|(first, last)| Self(first..=last)).ok_or_else(refused)
    }
}

impl Setting for Status {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(integer) = value.get_ref().as_integer() else {
            return read_text(value, "a status such as 200 or \"200-399\"", mismatches);
        };
        integer.to_string().parse().map_err(|error| mismatches.push((value.span(), error))).ok()
    }
}

struct Interval(Duration);
struct Timeout(Duration);

/// A duration in its written form.
struct Text(Duration);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_millis()) {
            (0, millis) => write!(f, "{millis} ms"),
            (seconds, 0) => write!(f, "{seconds} s"),
            (seconds, millis) => write!(f, "{seconds} s {millis} ms"),
        }
    }
}

/// A duration within the range: seconds as a number, or a text such as `"1500ms"`.
fn read_duration(value: &Value<'_>, range: &RangeInclusive<Duration>, mismatches: &mut Mismatches) -> Option<Duration> {
    let (read, written) = match value.get_ref() {
        DeValue::String(text) => (duration(text), text.to_string()),
        DeValue::Integer(integer) => {
            let seconds = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
            (seconds.map(Duration::from_secs), integer.to_string())
        }
        _ => return wrong_type(value, "a duration such as \"10s\"", mismatches),
    };
    let read = read.filter(|read| range.contains(read));
    if read.is_none() {
        let (first, last) = (Text(*range.start()), Text(*range.end()));
        let message = format!(
            "`{written}` is not a duration from {first} to {last} (such as \"10s\", \"500ms\", or seconds as a number)"
        );
        mismatches.push((value.span(), message));
    }
    read
}

impl Setting for Interval {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_duration(value, &INTERVALS, mismatches).map(Self)
    }
}

impl Setting for Timeout {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_duration(value, &TIMEOUTS, mismatches).map(Self)
    }
}

/// A whole number within the range.
fn read_number<T: TryFrom<u64>>(
    value: &Value<'_>,
    range: RangeInclusive<u64>,
    mismatches: &mut Mismatches,
) -> Option<T> {
    let Some(integer) = value.get_ref().as_integer() else {
        return wrong_type(value, "an integer", mismatches);
    };
    let read = u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|number| range.contains(number));
    if read.is_none() {
        mismatches.push((value.span(), format!("{integer} is not in {}..={}", range.start(), range.end())));
    }
    read.and_then(|number| T::try_from(number).ok())
}

struct Port(u16);

impl Setting for Port {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_number(value, 1..=65_535, mismatches).map(Self)
    }
}

/// A number of consecutive answers.
struct Count(u8);

impl Setting for Count {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        read_number(value, 1..=100, mismatches).map(Self)
    }
}

struct Switch(bool);

impl Setting for Switch {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        match value.get_ref().as_bool() {
            Some(is_on) => Some(Self(is_on)),
            None => wrong_type(value, "true or false", mismatches),
        }
    }
}

macro_rules! read_as_text {
    ($($type:ty),+) => {
        $( impl Setting for $type {
            fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
                read_text(value, "a string", mismatches)
            }
        } )+
    };
}

read_as_text!(Kind, Start, Path, HostName);

#[cfg(test)]
#[path = "tests/health_check.rs"]
mod tests;

//! The content of a request: the parameters of the query string and the requested format, both checked. A parameter is
//! one entry here and one field of [`Query`]; the route table defines which route accepts which parameter.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::Query as RawQuery;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode, Uri};
use nodelb_core::durations;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::drain::Drained;
use nodelb_core::model::service::{FrontendKind, is_name_part};
use nodelb_core::state::status::Status;
use nodelb_report::explain::explanation::Client;
use nodelb_report::filter::Filter;
use nodelb_sources::document::nearest;
use strum::{IntoEnumIterator, VariantNames};

use super::pattern;

/// A parameter of the query string. The route table defines which routes accept it; `/openapi.json` describes it.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) values: Values,
    pub(super) about: &'static str,
    /// Why a request with a value of this form may be refused nevertheless, each reason with the status.
    pub(super) refusals: &'static [(&'static str, &'static str)],
    /// Sets the value in the query, or returns what is wrong with it.
    set: fn(&mut Query, &str) -> Result<(), String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// Text of this form, and the regular expression for it, as [`pattern`] has it.
    Text(&'static str, &'static str),
    /// As `Text`, for a required parameter.
    Needed(&'static str, &'static str),
    OneOf(&'static [&'static str]),
    /// A whole number between these two, inclusive.
    Number(u64, u64),
    /// Nothing, `true` or `false`.
    Flag,
}

/// Defines parameters: the name, the values, the description, how a value is set, and when it can be refused.
macro_rules! parameters {
    ($($(#[$meta:meta])* $place:ident = $name:literal, $values:expr, $about:literal, $set:expr
        $(, refused $status:literal $why:literal)*;)+) => {
        $($(#[$meta])*
        pub(super) static $place: Parameter = Parameter {
            name: $name,
            values: $values,
            about: $about,
            refusals: &[$(($status, $why)),*],
            set: $set,
        };)+
    };
}

parameters! {
    SERVICE = "service", Values::Text("NAMESPACE/NAME", pattern::NAME),
        "Filter by service: the full name, NAMESPACE/NAME.",
        |query, value| put(&mut query.filter.service, value);

    ADDRESS = "address", Values::Text("ADDRESS", pattern::ADDRESS),
        "Filter by IPv4 or IPv6 address, with any port.",
        |query, value| put(&mut query.filter.address, value);

    NAMESPACE = "namespace", Values::Text("NAMESPACE", pattern::NAMESPACE),
        "Filter by the namespace of the service.",
        |query, value| {
            let is_valid = is_name_part(value);
            query.filter.namespace = Some(value.into());
            is_valid.then_some(()).ok_or_else(|| format!("`{value}` is not the name of a namespace"))
        };

    TYPE = "type", Values::OneOf(FrontendKind::VARIANTS),
        "Filter by address type: addresses of this type, and services that have one.",
        |query, value| put_named(&mut query.filter.kind, (&TYPE, value), "type");

    STATUS = "status", Values::OneOf(Status::VARIANTS),
        "Filter by status.",
        |query, value| put_named(&mut query.filter.status, (&STATUS, value), "status");

    OUTPUT = "output", Values::OneOf(&["text", "json"]),
        "The output format; takes precedence over the Accept header.",
        |query, value| put_named(&mut query.output, (&OUTPUT, value), "form");

    /// The format of a route that can be watched.
    FOLLOWED_OUTPUT = "output", Values::OneOf(Output::VARIANTS),
        "The output format; takes precedence over the Accept header. With sse, the response continues as with watch.",
        |query, value| put_named(&mut query.output, (&FOLLOWED_OUTPUT, value), "form");

    LIVE = "live", Values::Flag,
        "Also compare with the present state of an API server.",
        |query, value| flag(value).map(|live| query.live = live),
        refused "409" "Kubernetes is not configured.",
        refused "429" "All services were compared less than 10 seconds ago, or another comparison is in progress.";

    TO = "to", Values::Needed("ADDRESS:PORT[/PROTOCOL]", pattern::DESTINATION),
        "The destination; TCP if no protocol is given.",
        |query, value| put(&mut query.to, value);

    FROM = "from", Values::Text("host|pod|outside|ADDRESS[:PORT]|INODE", pattern::CLIENT),
        "The client: a process in the network namespace of the node (host) or in another one (pod), another host \
             (outside), the client with this address, or with this address and port, or a process in the network namespace \
             with this inode number.",
        |query, value| put(&mut query.from, value),
        refused "409" "The client has an address of the other IP family.";

    LIMIT = "limit", Values::Number(1, 1_000_000),
        "Maximum number of rows [default: 1000].",
        |query, value| number(&LIMIT, value).map(|limit| query.limit = Some(limit));

    WATCH = "watch", Values::Flag,
        "Keep the response open and send each change.",
        |query, value| flag(value).map(|watch| query.watch = watch);

    KIOSK = "kiosk", Values::Flag,
        "For a browser: show the web page as a display on a wall.",
        |_, value| flag(value).map(drop);

    VERBOSE = "verbose", Values::Flag,
        "Show the checks in text also if all have passed.",
        |query, value| flag(value).map(|verbose| query.verbose = verbose);

    DROPPED = "dropped", Values::Flag,
        "Only packets that were dropped, answered, or counted as if they were.",
        |query, value| flag(value).map(|dropped| query.dropped = dropped);

    /// The service of a drain.
    DRAINED_SERVICE = "service", Values::Text("NAMESPACE/NAME", pattern::NAME),
        "The service: the full name, NAMESPACE/NAME; without it, every service that has the backend.",
        |query, value| put(&mut query.filter.service, value);

    BACKEND = "backend", Values::Needed("ADDRESS[:PORT]", pattern::BACKEND),
        "The backend; without a port, all backends with this address.",
        |query, value| put(&mut query.backend, value);

    FOR = "for", Values::Text("DURATION", pattern::DURATION),
        "The length of the drain, such as 30m or 1h; without it, the drain lasts until it is removed.",
        |query, value| {
            let is_short = value.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.len() <= pattern::DIGITS);
            let length = durations::parse(value).filter(|_| is_short && !value.is_empty());
            query.length = Some(length.ok_or_else(|| format!("`{value}` is not a duration, such as 90s, 10m or 1h30m"))?);
            Ok(())
        };

    FORCE = "force", Values::Flag,
        "Drain the backend even if the service has no other healthy one.",
        |query, value| flag(value).map(|force| query.force = force);
}

/// Parses a flag. A flag without a value is set.
pub(super) fn flag(value: &str) -> Result<bool, String> {
    match value {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("`{value}` is not a valid flag (expected true, false or no value)")),
    }
}

/// Parses a number within the bounds of its parameter.
pub(super) fn number<T: TryFrom<u64>>(parameter: &Parameter, value: &str) -> Result<T, String> {
    let Values::Number(least, most) = parameter.values else { return Err("no number is accepted here".into()) };
    let read = value.parse().ok().filter(|number| (least..=most).contains(number));
    // As JSON has it: without a sign and leading zeros.
    let read = read.filter(|number: &u64| number.to_string() == value);
    read.and_then(|number| number.try_into().ok())
        .ok_or_else(|| format!("`{value}` is not a number from {least} to {most}"))
}

/// Parses a value of a type with errors of its own.
fn put<T: FromStr<Err: fmt::Display>>(place: &mut Option<T>, value: &str) -> Result<(), String> {
    *place = Some(value.parse().map_err(|error: T::Err| error.to_string())?);
    Ok(())
}

/// Parses one of the names of a type that the parameter has. Unlike the command line, exactly as it is written.
fn put_named<T: IntoEnumIterator + VariantNames>(
    place: &mut Option<T>,
    (parameter, value): (&Parameter, &str),
    what: &str,
) -> Result<(), String> {
    let Values::OneOf(names) = parameter.values else { return Err("no name is accepted here".into()) };
    let mut named = T::iter().zip(T::VARIANTS).filter(|(_, name)| names.contains(name));
    let found = named.find(|(_, name)| **name == value);
    *place = Some(found.ok_or_else(|| format!("`{value}` is not a {what} (expected {})", names.join(", ")))?.0);
    Ok(())
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.values {
            Values::Text(form, _) | Values::Needed(form, _) => write!(f, "={form}"),
            Values::OneOf(names) => write!(f, "={}", names.join("|")),
            Values::Number(least, most) => write!(f, "={least}..{most}"),
            Values::Flag => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumIter, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Output {
    #[default]
    Text,
    Json,
    /// For programs that follow changes: Server-Sent Events.
    Sse,
}

impl Output {
    /// Returns the format in the `Accept` header, for requests without one in the query string: JSON or events if the
    /// header names them, otherwise text.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        match () {
            () if accepts(headers, "text/event-stream") => Self::Sse,
            () if accepts(headers, "application/json") => Self::Json,
            () => Self::Text,
        }
    }
}

/// Whether the `Accept` header names this media type.
pub(super) fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let media = range.split(';').next().unwrap_or_default().trim();
        media.eq_ignore_ascii_case(wanted)
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    /// The problem and its remedy in one line.
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// Returns the refusal for an answer that could not be rendered.
pub(super) fn internal(path: &str, reason: &str) -> Problem {
    let message = format!("{path} could not be rendered: {reason}; this is a bug in nodelb, please report it");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// Returns the refusal for maps of the packet path that cannot be read.
pub(super) fn unreadable(error: impl fmt::Display) -> Problem {
    let message = format!("cannot read the kernel maps: {error}; connections keep working");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// The client of the connection in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TraceFrom {
    Client(Client),
    /// The client with this address, and with this port, if it is given.
    At(Addr, Option<u16>),
    /// A client in the network namespace with this inode number.
    Namespace(u64),
}

impl FromStr for TraceFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let clients = [Client::Host, Client::Pod, Client::Outside];
        if let Some(client) = clients.into_iter().find(|client| client.to_string() == text) {
            return Ok(Self::Client(client));
        }
        let is_inode = text.len() <= pattern::INODE_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(inode) = text.parse().ok().filter(|_| is_inode) {
            return Ok(Self::Namespace(inode));
        }
        // The zone of an address is of this host, and that of a client may be another one.
        if let Some(socket) = text.parse::<SocketAddr>().ok().filter(|_| !text.contains('%')) {
            return Ok(Self::At(socket.ip().into(), Some(socket.port())));
        }
        text.parse().map(|addr| Self::At(addr, None)).map_err(|_no_address| {
            format!(
                "unknown client `{text}` (expected host, pod, outside, an IP address with or without a port, or the inode \
                 number of a network namespace)"
            )
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) filter: Filter,
    /// The format, if the query string names one.
    pub(super) output: Option<Output>,
    /// The address that the client connects to.
    pub(super) to: Option<L4Addr>,
    pub(super) from: Option<TraceFrom>,
    /// Whether the answer continues with changes.
    pub(super) watch: bool,
    /// Whether an apiserver is queried, too.
    pub(super) live: bool,
    /// Whether only packets that were dropped or answered are requested.
    pub(super) dropped: bool,
    /// Whether the checks are requested also if all have passed.
    pub(super) verbose: bool,
    /// Whether the Accept header names OpenMetrics.
    pub(super) openmetrics: bool,
    pub(super) limit: Option<usize>,
    pub(super) backend: Option<Drained>,
    pub(super) length: Option<Duration>,
    /// Whether a service may lose its last healthy backend.
    pub(super) force: bool,
}

impl Query {
    /// Parses the query string of a route that accepts these parameters. Refuses an unknown, repeated or invalid
    /// parameter, because a silently ignored filter would show an operator the wrong rows.
    pub(super) fn parse(uri: &Uri, allowed: &[&'static Parameter]) -> Result<Self, Problem> {
        let bad = |message: String| Problem::new(StatusCode::BAD_REQUEST, message);
        let RawQuery(pairs) = RawQuery::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| bad(format!("the query string cannot be read: {error}")))?;
        let mut query = Self::default();
        let mut seen = BTreeSet::new();
        for (name, value) in pairs {
            let Some(parameter) = allowed.iter().find(|parameter| parameter.name == name) else {
                let remedy = match nearest(allowed.iter().map(|parameter| parameter.name), &name) {
                    Some(similar) => format!("did you mean `{similar}`?"),
                    None => format!("{} takes {}", uri.path(), list(allowed)),
                };
                return Err(bad(format!("unknown parameter `{name}`: {remedy}")));
            };
            if !seen.insert(parameter.name) {
                return Err(bad(format!("parameter `{name}` is given more than once")));
            }
            (parameter.set)(&mut query, &value).map_err(|reason| {
                bad(format!("parameter `{name}`: {reason}; {} takes {}", uri.path(), list(allowed)))
            })?;
        }
        let needed = allowed.iter().filter(|parameter| matches!(parameter.values, Values::Needed(..)));
        match needed.into_iter().find(|parameter| !seen.contains(parameter.name)) {
            Some(missing) => {
                Err(bad(format!("parameter `{}` is missing: {} needs {missing}", missing.name, uri.path())))
            }
            None => Ok(query),
        }
    }
}

/// Returns the parameters as text: `service=NAMESPACE/NAME, address=ADDRESS, output=text|json`, or `none`.
pub(super) fn list(parameters: &[&Parameter]) -> String {
    if parameters.is_empty() {
        return "none".into();
    }
    parameters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "tests/query.rs"]
mod tests;

//! Options of the commands that query a running daemon, how their requests are built, and how the answers are printed.
//! The rows are those of the core, which also renders them; this module decides on format, width and colour.

use std::io::IsTerminal;
use std::time::SystemTime;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::model::time::Time;
use nodelb_core::state::status::Status;
use nodelb_report::output::table::Style;
use nodelb_report::rows::{
    Answer, Backends, Connections as ConnectionsAnswer, Drops as DropsAnswer, Frontends as FrontendsAnswer, Services,
};

use super::client::{self, At};
use super::follow::{self, Followed};
use super::print::print;
use super::without_daemon::Fallback;
use super::{completions, names, yaml};
use crate::exit::{Code, Failure};

/// One query parameter. The value is percent-encoded when the request is built.
pub(crate) type Parameter = (&'static str, String);

/// The maximum width of text, unless everything is requested.
const MAX_WIDTH: usize = 100;
/// The width of text on a terminal that does not know its size, such as a serial console.
const UNKNOWN_WIDTH: usize = 80;

/// Filters for rows that belong to a service and have an address.
#[derive(Debug, Args)]
pub(super) struct DaemonAddresses {
    /// Only this service; without a namespace, the service with this name
    #[arg(value_name = "[NAMESPACE/]NAME", conflicts_with = "service", add = ArgValueCompleter::new(completions::services))]
    pub(super) name: Option<String>,
    /// The same as NAMESPACE/NAME
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Filters", add = ArgValueCompleter::new(completions::services))]
    pub(super) service: Option<ServiceName>,
    /// Filter by namespace
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Filters")]
    pub(super) namespace: Option<String>,
    /// All namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace", help_heading = "Filters")]
    pub(super) all_namespaces: bool,
    /// Filter by address, with any port
    #[arg(long, value_name = "ADDRESS", help_heading = "Filters")]
    pub(super) address: Option<Addr>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

/// Filters for rows that also have a type and a status.
#[derive(Debug, Args)]
pub(super) struct Rows {
    /// Filter by type: ClusterIP, NodePort, ExternalIP, LoadBalancer or Static
    #[arg(long = "type", value_name = "TYPE", value_parser = kinds(), ignore_case = true, hide_possible_values = true, help_heading = "Filters")]
    pub(super) kind: Option<FrontendKind>,
    /// Filter by status: OK, NoBackends, LastResort, Held, Conflict, Refused or Pending
    #[arg(long, value_name = "STATUS", value_parser = statuses(), ignore_case = true, hide_possible_values = true, help_heading = "Filters")]
    pub(super) status: Option<Status>,
    #[command(flatten)]
    pub(super) addresses: DaemonAddresses,
}

/// The daemon to query, and the format of its answer.
#[derive(Debug, Args)]
pub(super) struct Asking {
    /// Output format: text, wide (every column, complete lists, times of day), json or yaml
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        help_heading = "Output"
    )]
    pub(super) output: Format,
    /// Colorize output: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = "Output")]
    pub(super) color: Colour,
    /// Address of the daemon's admin API [default: its socket, then 127.0.0.1:9890 and [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT|PATH", help_heading = "Connection")]
    pub(super) admin: Option<At>,
    /// Where answers come from without the daemon.
    #[arg(skip)]
    pub(super) fallback: Fallback,
}

/// When output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    Auto,
    Always,
    Never,
}

/// The format of an answer of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The most important columns, fitted to the terminal.
    Text,
    /// Every column, complete lists, times of day.
    Wide,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// The format of an answer of a command that queries more than the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Parses one of the names, and completes them in a shell.
fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(Status::NAMES).try_map(|name| name.parse::<Status>())
}

fn kinds() -> impl TypedValueParser<Value = FrontendKind> {
    PossibleValuesParser::new(FrontendKind::NAMES).try_map(|name| name.parse::<FrontendKind>())
}

/// An answer that is one list.
pub(super) trait List {
    /// Whether the list has no rows.
    fn is_empty(&self) -> bool;
}

impl List for FrontendsAnswer {
    fn is_empty(&self) -> bool {
        self.frontends.is_empty()
    }
}

impl List for Services {
    fn is_empty(&self) -> bool {
        self.services.is_empty()
    }
}

impl List for Backends {
    fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }
}

impl DaemonAddresses {
    /// Returns the service that is asked for.
    ///
    /// # Errors
    /// When the name is not one, or belongs to no service or to several.
    pub(super) fn service(&self) -> Result<Option<ServiceName>, Failure> {
        match (&self.service, &self.name) {
            (Some(service), _) => Ok(Some(service.clone())),
            (None, Some(name)) => names::resolve(&self.asking, name, self.namespace.as_deref()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Queries the daemon for a list and prints it.
    ///
    /// # Errors
    /// As [`Asking::ask`]; [`Code::NotFound`] when the service does not exist.
    pub(super) fn list<A: Answer + List>(&self, route: &str, more: &[Parameter]) -> Result<(), Failure> {
        let service = self.service()?;
        let parameters = [&self.parameters_of(service.as_ref()), more].concat();
        let body = self.asking.get(route, &parameters)?;
        let answer: A = decode(&body)?;
        if let Some(name) = service.filter(|_| answer.is_empty()) {
            names::must_exist(&self.asking, &name)?;
        }
        self.asking.show(&body, &answer)
    }

    pub(super) fn ask<A: Answer>(&self, route: &str) -> Result<(), Failure> {
        self.asking.ask::<A>(route, &self.parameters()?)
    }

    /// Returns the parameters of a request.
    ///
    /// # Errors
    /// As [`Self::service`].
    pub(super) fn parameters(&self) -> Result<Vec<Parameter>, Failure> {
        Ok(self.parameters_of(self.service()?.as_ref()))
    }

    fn parameters_of(&self, service: Option<&ServiceName>) -> Vec<Parameter> {
        let service_parameter = service.map(|service| ("service", service.to_string()));
        let namespace = self.namespace.as_ref().filter(|_| service.is_none());
        let namespace = namespace.map(|namespace| ("namespace", namespace.clone()));
        let address = self.address.map(|address| ("address", address.to_string()));
        service_parameter.into_iter().chain(namespace).chain(address).collect()
    }
}

impl Rows {
    pub(super) fn list<A: Answer + List>(&self, route: &str) -> Result<(), Failure> {
        self.addresses.list::<A>(route, &self.own_parameters())
    }

    fn own_parameters(&self) -> Vec<Parameter> {
        let kind = self.kind.map(|kind| ("type", kind.to_string()));
        kind.into_iter().chain(self.status.map(|status| ("status", status.to_string()))).collect()
    }
}

/// Options of `nodelb frontends`.
#[derive(Debug, Args)]
pub(super) struct Frontends {
    /// Keep running and print each change
    #[arg(short, long, help_heading = "Output")]
    pub(super) watch: bool,
    #[command(flatten)]
    pub(super) rows: Rows,
}

impl Frontends {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        if !self.watch {
            return self.rows.list::<FrontendsAnswer>("/frontends");
        }
        let parameters = [self.rows.addresses.parameters()?, self.rows.own_parameters()].concat();
        self.rows.addresses.asking.follow::<FrontendsAnswer>("/frontends", &parameters)
    }
}

/// Options of `nodelb connections`.
#[derive(Debug, Args)]
pub(super) struct Connections {
    /// Only connections to this service
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    /// Filter by address of the client, the service or the backend
    #[arg(long, value_name = "ADDRESS", help_heading = "Filters")]
    address: Option<Addr>,
    /// Maximum number of connections [default: 1000]
    #[arg(long, value_name = "NUMBER", help_heading = "Filters")]
    limit: Option<u32>,
    #[command(flatten)]
    asking: Asking,
}

impl Connections {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = self.service.as_deref().map(|name| names::resolve(&self.asking, name, None)).transpose()?;
        let service = service.map(|service| ("service", service.to_string()));
        let address = self.address.map(|address| ("address", address.to_string()));
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        let parameters: Vec<Parameter> = [service, address, limit].into_iter().flatten().collect();
        self.asking.ask::<ConnectionsAnswer>("/connections", &parameters)
    }
}

/// Options of `nodelb drops`.
#[derive(Debug, Args)]
pub(super) struct Drops {
    /// Only packets to this service
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

impl Drops {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = self.service.as_deref().map(|name| names::resolve(&self.asking, name, None)).transpose()?;
        let service = service.map(|service| ("service", service.to_string()));
        self.asking.ask::<DropsAnswer>("/drops", &service.into_iter().collect::<Vec<_>>())
    }
}

/// Reads an answer.
///
/// # Errors
/// [`Code::Data`] when the daemon has another version, so that its answers have another form.
pub(super) fn decode<A: serde::de::DeserializeOwned>(body: &[u8]) -> Result<A, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("cannot read the response: {error}; the daemon may have another version");
        Failure::message(Code::Data, message)
    })
}

/// Returns the current time.
pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Asking {
    /// Queries the daemon and prints the answer.
    ///
    /// # Errors
    /// When no daemon answers, or the daemon refuses the request.
    pub(super) fn ask<A: Answer>(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        let body = self.get(route, parameters)?;
        self.show(&body, &decode::<A>(&body)?)
    }

    /// Prints an answer in the requested format.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn show(&self, body: &[u8], answer: &impl Answer) -> Result<(), Failure> {
        match self.output {
            Format::Text | Format::Wide => print(answer.text(now(), &self.style()).as_bytes()),
            Format::Json => print(body),
            Format::Yaml => print(yaml::text(&decode(body)?).as_bytes()),
        }
    }

    /// Queries the daemon and prints the answer as it arrives: first all rows, then the changes.
    ///
    /// # Errors
    /// As [`Self::ask`], and when the daemon ends.
    pub(super) fn follow<F: Followed>(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        let mut parameters = [&[("output", "json".to_owned())], parameters].concat();
        parameters.push(("watch", "true".into()));
        let style = Style { is_stream: true, ..self.style() };
        let mut printer = follow::Printer::<F>::new(self.output, style);
        client::follow(&self.addresses(), &target(route, &parameters), |piece| printer.print(piece))
    }

    /// Returns the body of the answer, in JSON where the route has data.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn get(&self, route: &str, parameters: &[Parameter]) -> Result<hyper::body::Bytes, Failure> {
        let parameters = [&[("output", "json".to_owned())], parameters].concat();
        let target = target(route, &parameters);
        if let Some(answer) = self.fallback.answer_again(&target) {
            return Ok(answer?.into());
        }
        match client::get(&self.addresses(), &target) {
            Err(failure) if self.admin.is_none() => Ok(self.fallback.answer(&target, failure)?.into()),
            answer => answer,
        }
    }

    /// Queries a route that has a format of its own, and prints the answer.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn ask_as_is(&self, route: &str) -> Result<(), Failure> {
        print(&client::get(&self.addresses(), route)?)
    }

    /// Returns the style of text output, which depends on where stdout leads.
    pub(super) fn style(&self) -> Style {
        style(self.color, self.output == Format::Wide)
    }

    fn addresses(&self) -> Vec<At> {
        self.admin.clone().map_or_else(client::default_addresses, |at| vec![at])
    }
}

/// Returns the style of text output, which depends on where stdout leads.
pub(super) fn style(colour: Colour, wide: bool) -> Style {
    let is_terminal = std::io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => is_terminal && !no_colour,
    };
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = || columns.or_else(|| Some(usize::from(terminal_size::terminal_size()?.0.0))).unwrap_or(UNKNOWN_WIDTH);
    let width = (is_terminal && !wide).then(width);
    Style { width: width.map(|width| width.clamp(40, MAX_WIDTH)), wide, is_stream: false, colour }
}

/// Returns the path with its query string. Characters that a query string may contain are not escaped, so that names
/// and addresses stay readable.
pub(crate) fn target(route: &str, parameters: &[Parameter]) -> String {
    let mut target = route.to_owned();
    for (position, (name, value)) in parameters.iter().enumerate() {
        target.push(if position == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                    target.push(char::from(byte));
                }
                _ => target.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    target
}

#[cfg(test)]
#[path = "tests/ask.rs"]
mod tests;

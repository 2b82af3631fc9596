//! Options of the commands that query a running daemon, and how their requests are built. Owns the filters and the
//! output options; the daemon owns every table and its rendering.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::output::table::Style;
use nodelb_core::state::status::Status;

use super::client::{self, At};
use super::print::{Sanitizer, print, print_on};
use crate::exit::Failure;

/// One query parameter. The value is percent-encoded when the request is built.
pub(crate) type Parameter = (&'static str, String);

/// Filters for rows that have an address.
#[derive(Debug, Args)]
pub(super) struct DaemonAddresses {
    /// Only this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(super) service: Option<ServiceName>,
    /// Filter by address, with any port
    #[arg(long, value_name = "ADDRESS")]
    pub(super) address: Option<Addr>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

/// Filters for rows that also have a type and a status.
#[derive(Debug, Args)]
pub(super) struct Rows {
    /// Filter by type: ClusterIP, NodePort, ExternalIP, LoadBalancer or Static
    #[arg(long = "type", value_name = "TYPE")]
    pub(super) kind: Option<FrontendKind>,
    /// Filter by status: Pending, Done, Held or Error
    #[arg(long, value_name = "STATUS")]
    pub(super) status: Option<Status>,
    #[command(flatten)]
    pub(super) addresses: DaemonAddresses,
}

/// The daemon to query, and the format of its answer.
#[derive(Debug, Args)]
pub(super) struct Asking {
    /// Output format
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(super) output: Output,
    /// Show all columns and full lists
    #[arg(long)]
    pub(super) wide: bool,
    /// Colorize output: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(super) color: Colour,
    /// Address of the daemon's admin API [default: its socket, then 127.0.0.1:9890 and [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT|PATH")]
    pub(super) admin: Option<At>,
}

/// When output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    Auto,
    Always,
    Never,
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl DaemonAddresses {
    pub(super) fn ask(&self, route: &str) -> Result<(), Failure> {
        self.asking.ask(route, &self.parameters())
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let service = self.service.as_ref().map(|service| ("service", service.to_string()));
        let address = self.address.map(|address| ("address", address.to_string()));
        service.into_iter().chain(address).collect()
    }
}

impl Rows {
    pub(super) fn ask(&self, route: &str) -> Result<(), Failure> {
        self.addresses.asking.ask(route, &self.parameters())
    }

    fn parameters(&self) -> Vec<Parameter> {
        let mut parameters = self.addresses.parameters();
        parameters.extend(self.kind.map(|kind| ("type", kind.to_string())));
        parameters.extend(self.status.map(|status| ("status", status.to_string())));
        parameters
    }
}

/// Options of `nodelb frontends`.
#[derive(Debug, Args)]
pub(super) struct Frontends {
    /// Keep running and print each change
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    pub(super) rows: Rows,
}

impl Frontends {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        match self.watch {
            true => self.rows.addresses.asking.follow("/frontends", &self.rows.parameters()),
            false => self.rows.ask("/frontends"),
        }
    }
}

/// Options of `nodelb connections`.
#[derive(Debug, Args)]
pub(super) struct Connections {
    /// Only connections to this service
    #[arg(value_name = "NAMESPACE/NAME")]
    service: Option<ServiceName>,
    /// Filter by address of the client, the service or the backend
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Addr>,
    /// Maximum number of connections [default: 1000]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    #[command(flatten)]
    asking: Asking,
}

impl Connections {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = self.service.as_ref().map(|service| ("service", service.to_string()));
        let address = self.address.map(|address| ("address", address.to_string()));
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        self.asking.ask("/connections", &[service, address, limit].into_iter().flatten().collect::<Vec<_>>())
    }
}

/// Options of `nodelb drops`.
#[derive(Debug, Args)]
pub(super) struct Drops {
    /// Only packets to this service
    #[arg(value_name = "NAMESPACE/NAME")]
    service: Option<ServiceName>,
    #[command(flatten)]
    asking: Asking,
}

impl Drops {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let service = self.service.as_ref().map(|service| ("service", service.to_string()));
        self.asking.ask("/drops", &service.into_iter().collect::<Vec<_>>())
    }
}

/// Options of `nodelb history`.
#[derive(Debug, Args)]
pub(super) struct History {
    /// Keep running and print each change
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    addresses: DaemonAddresses,
}

impl History {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        match self.watch {
            true => self.addresses.asking.follow("/history", &self.addresses.parameters()),
            false => self.addresses.ask("/history"),
        }
    }
}

impl Asking {
    /// Queries the daemon and prints the answer.
    ///
    /// # Errors
    /// When no daemon answers, or the daemon refuses the request.
    pub(super) fn ask(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        print(&self.get(route, &self.with_form(parameters))?)
    }

    /// Queries the daemon and prints the answer as it arrives: first all rows, then the changes.
    ///
    /// # Errors
    /// As [`Self::ask`], and when the daemon ends.
    pub(super) fn follow(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        let mut parameters = self.with_form(parameters);
        parameters.push(("watch", "true".into()));
        let mut text = Sanitizer::default();
        client::follow(&self.addresses(), &target(route, &parameters), |piece| print_on(&mut text, piece))
    }

    /// Returns the body of the answer.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn get(&self, route: &str, parameters: &[Parameter]) -> Result<hyper::body::Bytes, Failure> {
        client::get(&self.addresses(), &target(route, parameters))
    }

    /// Returns the style of text output, which depends on where stdout leads.
    pub(super) fn style(&self) -> Style {
        let stdout = std::io::stdout();
        let is_terminal = stdout.is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match self.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => is_terminal && !no_colour,
        };
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = || columns.or_else(|| Some(usize::from(terminal_size::terminal_size()?.0.0)));
        let width = if is_terminal && !self.wide { width() } else { None };
        Style { width: width.map(|width| width.clamp(40, 10_000)), wide: self.wide, colour }
    }

    fn with_form(&self, parameters: &[Parameter]) -> Vec<Parameter> {
        let output = match self.output {
            Output::Text => "text",
            Output::Json => "json",
        };
        let mut all = vec![("output", output.to_owned())];
        all.extend_from_slice(parameters);
        if self.output == Output::Text {
            let Style { width, wide, colour } = self.style();
            all.extend(width.map(|width| ("width", width.to_string())));
            all.extend(wide.then(|| ("wide", "true".into())));
            all.extend(colour.then(|| ("color", "true".into())));
        }
        all
    }

    fn addresses(&self) -> Vec<At> {
        self.admin.clone().map_or_else(client::default_addresses, |at| vec![at])
    }
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

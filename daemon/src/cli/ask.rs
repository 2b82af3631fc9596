//! What the commands take that ask a running daemon, and how a question is put. Owns the filters and the form; the
//! daemon owns every table and its rendering.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use nodelb_core::addr::Addr;
use nodelb_core::report::Status;
use nodelb_core::service::{FrontendKind, ServiceName};

use super::client;
use super::print::print;
use crate::exit::Failure;

/// One parameter of a question; what may not stand in a query string is escaped when it is put.
pub(super) type Parameter = (&'static str, String);

/// Narrows what has an address.
#[derive(Debug, Args)]
pub(super) struct Places {
    /// Only this service
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(super) service: Option<ServiceName>,
    /// Only this address, whatever the port
    #[arg(long, value_name = "ADDRESS")]
    pub(super) address: Option<Addr>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

/// Narrows what has a type and a status as well.
#[derive(Debug, Args)]
pub(super) struct Rows {
    /// Only addresses of this type: ClusterIP, NodePort, ExternalIP, LoadBalancer or Static
    #[arg(long = "type", value_name = "TYPE")]
    pub(super) kind: Option<FrontendKind>,
    /// Only what stands so: Pending, Done, Held or Error
    #[arg(long, value_name = "STATUS")]
    pub(super) status: Option<Status>,
    #[command(flatten)]
    pub(super) places: Places,
}

/// Whom to ask, and in which form the answer is wanted.
#[derive(Debug, Args)]
pub(super) struct Asking {
    /// Tables for people, or JSON for programs
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(super) output: Output,
    /// Where the daemon's admin API listens [default: 127.0.0.1:9890, then [::1]:9890]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) admin: Option<SocketAddr>,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Places {
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
        let mut parameters = self.places.parameters();
        parameters.extend(self.kind.map(|kind| ("type", kind.to_string())));
        parameters.extend(self.status.map(|status| ("status", status.to_string())));
        self.places.asking.ask(route, &parameters)
    }
}

impl Asking {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// When nobody answers, or the answer is a refusal.
    pub(super) fn ask(&self, route: &str, parameters: &[Parameter]) -> Result<(), Failure> {
        let output = match self.output {
            Output::Text => "text",
            Output::Json => "json",
        };
        print(&self.get(route, &[&[("output", output.into())], parameters].concat())?)
    }

    /// The body of the answer.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn get(&self, route: &str, parameters: &[Parameter]) -> Result<hyper::body::Bytes, Failure> {
        let addresses = self.admin.map_or_else(client::default_addresses, |address| vec![address]);
        client::get(&addresses, &target(route, parameters))
    }
}

/// A path with its query string. Names and addresses stay readable: what stands for itself there is left alone.
fn target(route: &str, parameters: &[Parameter]) -> String {
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
mod tests;

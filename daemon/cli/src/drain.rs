//! `nodelb drain` and `nodelb undrain`: asks the daemon, over its socket, to keep new connections away from a backend. The
//! daemon decides who may do that.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use hyper::Method;
use nodelb_core::durations;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::drain::Drained;
use nodelb_core::model::service::ServiceName;
use nodelb_core::text::counted;
use nodelb_report::rows::{ConnectionRow, Connections};
use nodelb_report::time::Time;
use serde::Deserialize;

use super::answer::{Format, decode, now};
use super::asking::{Asking, Parameter, target};
use super::client::{self, At, DEFAULT_SOCKET};
use super::{addresses, completions, history, names, print, yaml};
use crate::exit::{self, Code, Failure};

/// The interval at which connections are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The maximum number of connections that are counted.
const COUNTED: u32 = 100_000;

/// How long a connection that one side has closed has no packet until it counts as ended, in milliseconds. The programs
/// keep it for a minute.
const ENDED_MILLIS: u64 = 5_000;

#[derive(Debug, Args)]
pub(super) struct Undrain {
    /// The service [default: every service that has the backend]
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: Option<String>,
    /// The backend; without a port, all backends with this address
    #[arg(value_name = "ADDRESS[:PORT]", required = true, value_parser = addresses::backend, add = ArgValueCompleter::new(completions::backends))]
    backend: Drained,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Debug, Args)]
pub(super) struct Drain {
    #[command(flatten)]
    what: Undrain,
    /// Length of the drain, such as 30m or 1h [default: until nodelb undrain]
    #[arg(long = "for", value_name = "DURATION", value_parser = history::duration)]
    length: Option<Duration>,
    /// Drain the backend even if a service has no other healthy one
    #[arg(long)]
    force: bool,
    /// Wait until no client outside this node is connected to the backend
    #[arg(long)]
    wait: bool,
}

#[derive(Deserialize)]
struct Answer {
    done: String,
}

impl Drain {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let length = self.length.map(|length| ("for", durations::exact(length)));
        let force = self.force.then(|| ("force", "true".to_owned()));
        let begun = Instant::now();
        let service = self.what.send(&Method::POST, length.into_iter().chain(force))?;
        if !self.wait {
            return Ok(());
        }
        let is_over = || self.length.is_some_and(|length| begun.elapsed() >= length);
        let mut last = None;
        loop {
            let (left, is_complete) = self.what.connections(service.as_ref())?;
            if left == 0 {
                exit::eprint(&format!("No client outside this node is connected to {}.", self.what.backend));
                return Ok(());
            }
            let number = format!("{}{} left", if is_complete { "" } else { "at least " }, counted(left, "connection"));
            if last.replace(left) != Some(left) {
                exit::eprint(&number);
            }
            if is_over() {
                return Err(Failure::message(Code::Refused, format!("the drain is over, with {number}")));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Undrain {
    pub(super) fn run(&self) -> Result<(), Failure> {
        self.send(&Method::DELETE, std::iter::empty()).map(drop)
    }

    /// Sends the request, prints the answer, and returns the service.
    fn send(&self, method: &Method, more: impl Iterator<Item = Parameter>) -> Result<Option<ServiceName>, Failure> {
        let service = self.service.as_ref().map(|name| names::resolve(&self.asking, name, None)).transpose()?;
        if let Some(service) = service.as_ref().filter(|_| *method == Method::POST) {
            names::must_exist(&self.asking, service)?;
        }
        let named = service.iter().map(|service| ("service", service.to_string()));
        let backend = ("backend", self.backend.to_string());
        let parameters: Vec<Parameter> = named.chain([backend]).chain(more).collect();
        change(&self.asking, method, &target("/drains", &parameters))?;
        Ok(service)
    }

    /// The number of open connections of clients outside this node to the backend, and whether all were counted.
    fn connections(&self, service: Option<&ServiceName>) -> Result<(usize, bool), Failure> {
        let service = service.map(|service| ("service", service.to_string()));
        let address = [("address", self.backend.addr.to_string()), ("limit", COUNTED.to_string())];
        let parameters: Vec<Parameter> = service.into_iter().chain(address).collect();
        let answer: Connections = decode(&self.asking.get("/connections", &parameters)?)?;
        let open = answer.connections.iter().filter(|row| !has_ended(row, now()));
        let backends = open.filter_map(|row| row.backend.parse::<L4Addr>().ok());
        Ok((backends.filter(|at| self.backend.includes((at.addr, at.port))).count(), answer.listed.complete))
    }
}

fn has_ended(row: &ConnectionRow, now: Time) -> bool {
    row.state == "closing" && row.last_packet.0.saturating_add(ENDED_MILLIS) <= now.0
}

/// Lets the daemon change something, and prints its answer.
pub(super) fn change(asking: &Asking, method: &Method, target: &str) -> Result<(), Failure> {
    // Only the socket accepts changes.
    let at = asking.admin.clone().unwrap_or_else(|| At::Unix(PathBuf::from(DEFAULT_SOCKET)));
    let body = client::change(&at, method, target)?;
    match asking.output {
        Format::Text | Format::Wide => {
            print::print_lines(&format!("{}\n", decode::<Answer>(&body)?.done), asking.style().width)
        }
        Format::Json => print::print(&body),
        Format::Yaml => print::print(yaml::text(&decode(&body)?).as_bytes()),
    }
}

#[cfg(test)]
#[path = "tests/drain.rs"]
mod tests;

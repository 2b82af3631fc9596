//! `nodelb drain` and `nodelb undrain`: asks the daemon, over its socket, to keep new connections away from a backend. The
//! daemon decides who may do that.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use hyper::Method;
use nodelb_core::durations;
use nodelb_core::model::drain::Drained;
use serde::Deserialize;

use super::answer::{Format, decode};
use super::asking::{Asking, Parameter, target};
use super::client::{self, At, DEFAULT_SOCKET};
use super::{addresses, completions, history, names, print, yaml};
use crate::exit::Failure;

#[derive(Debug, Args)]
pub(super) struct Undrain {
    /// The service
    #[arg(value_name = "[NAMESPACE/]NAME", add = ArgValueCompleter::new(completions::services))]
    service: String,
    /// The backend; without a port, all backends with this address
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = addresses::backend, add = ArgValueCompleter::new(completions::backends))]
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
    /// Drain the backend even if the service has no other healthy one
    #[arg(long)]
    force: bool,
}

#[derive(Deserialize)]
struct Answer {
    done: String,
}

impl Drain {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let length = self.length.map(|length| ("for", durations::exact(length)));
        let force = self.force.then(|| ("force", "true".to_owned()));
        self.what.send(&Method::POST, length.into_iter().chain(force))
    }
}

impl Undrain {
    pub(super) fn run(&self) -> Result<(), Failure> {
        self.send(&Method::DELETE, std::iter::empty())
    }

    fn send(&self, method: &Method, more: impl Iterator<Item = Parameter>) -> Result<(), Failure> {
        let service = names::resolve(&self.asking, &self.service, None)?;
        if *method == Method::POST {
            names::must_exist(&self.asking, &service)?;
        }
        let named = [("service", service.to_string()), ("backend", self.backend.to_string())];
        let parameters: Vec<Parameter> = named.into_iter().chain(more).collect();
        change(&self.asking, method, &target("/drains", &parameters))
    }
}

/// Lets the daemon change something, and prints its answer.
pub(super) fn change(asking: &Asking, method: &Method, target: &str) -> Result<(), Failure> {
    // Only the socket accepts changes.
    let at = asking.admin.clone().unwrap_or_else(|| At::Unix(PathBuf::from(DEFAULT_SOCKET)));
    let body = client::change(&at, method, target)?;
    match asking.output {
        Format::Text | Format::Wide => print::print(format!("{}\n", decode::<Answer>(&body)?.done).as_bytes()),
        Format::Json => print::print(&body),
        Format::Yaml => print::print(yaml::text(&decode(&body)?).as_bytes()),
    }
}

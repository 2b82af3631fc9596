//! `nodelb trace`: prints what happens to a connection.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};

use clap::Args;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_report::rows::{Frontends, HistoryRow, TraceAnswer};

use super::addresses::{address, without_zone};
use super::answer::{Format, decode};
use super::asking::{Asking, Parameter};
use super::print::print;
use super::{completions, names};
use crate::exit::{Code, Failure};

const MAX_DESTINATIONS: usize = 16;

#[derive(Debug, Args)]
pub(super) struct Trace {
    /// Destination: ADDRESS:PORT[/PROTOCOL], an address, a service, or HOST:PORT
    ///
    /// An address without a port stands for every port that a service has there, and a service for every address that
    /// it claims. A host name is resolved here.
    #[arg(value_name = "DESTINATION", add = ArgValueCompleter::new(completions::services))]
    to: String,
    /// Client: host, pod or outside, ADDRESS or ADDRESS:PORT, or the inode number of a network namespace [default: host]
    #[arg(long, value_name = "WHO", value_parser = client, add = ArgValueCandidates::new(clients))]
    from: Option<String>,
    #[command(flatten)]
    pub(super) asking: Asking,
}

const CLIENTS: [&str; 3] = ["host", "pod", "outside"];

fn clients() -> Vec<CompletionCandidate> {
    CLIENTS.map(CompletionCandidate::new).into()
}

fn client(text: &str) -> Result<String, String> {
    if let Ok(addr) = address(text) {
        return Ok(addr.to_string());
    }
    let plain = without_zone(text);
    let is_known = CLIENTS.contains(&text) || text.parse::<u64>().is_ok() || plain.parse::<SocketAddr>().is_ok();
    let expected = "expected host, pod, outside, an address with or without a port, or the inode number of a network \
                    namespace";
    is_known.then(|| plain.into_owned()).ok_or_else(|| expected.into())
}

impl Trace {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let destinations = self.destinations()?;
        for (position, to) in destinations.iter().take(MAX_DESTINATIONS).enumerate() {
            if position > 0 && matches!(self.asking.output, Format::Text | Format::Wide) {
                print(b"\n")?;
            }
            let from = self.from.clone().map(|from| ("from", from));
            let parameters: Vec<Parameter> = [("to", to.clone())].into_iter().chain(from).collect();
            self.asking.ask::<TraceAnswer>("/trace", &parameters)?;
        }
        match destinations.len().saturating_sub(MAX_DESTINATIONS) {
            0 => Ok(()),
            more => print(format!("\nand {more} more addresses: see `nodelb frontends`\n").as_bytes()),
        }
    }

    fn destinations(&self) -> Result<Vec<String>, Failure> {
        let to = &*without_zone(&self.to);
        if to.parse::<L4Addr>().is_ok() {
            return Ok(vec![to.to_owned()]);
        }
        if let Ok(addr) = address(to) {
            let mut found = self.frontends(&[("address", addr.to_string())])?;
            if found.is_empty() {
                let rows = names::history(&self.asking, &[("address", addr.to_string())]);
                found = withdrawn(&rows, |at| at.addr == addr);
            }
            let message = format!("no service uses {to}; name a port to trace a connection to it, such as {to}:80");
            return if found.is_empty() { Err(Failure::message(Code::NotFound, message)) } else { Ok(found) };
        }
        if to.contains(':') {
            return resolve_host(to);
        }
        let name = names::resolve(&self.asking, to, None)?;
        let found = self.frontends(&[("service", name.to_string())])?;
        if found.is_empty() {
            let former = withdrawn(&names::removals(&self.asking, &name), |_| true);
            if !former.is_empty() {
                return Ok(former);
            }
            names::must_exist(&self.asking, &name)?;
            return Err(Failure::message(Code::NotFound, format!("{name} has no addresses")));
        }
        Ok(found)
    }

    /// Returns the addresses of these frontends, each once.
    fn frontends(&self, parameters: &[Parameter]) -> Result<Vec<String>, Failure> {
        let answer: Frontends = decode(&self.asking.get("/frontends", parameters)?)?;
        let mut found: Vec<String> = answer.frontends.iter().map(|row| row.address.to_string()).collect();
        found.dedup();
        Ok(found)
    }
}

/// Returns the addresses that services gave up with these changes, each once.
fn withdrawn(rows: &[HistoryRow], is_meant: impl Fn(&L4Addr) -> bool) -> Vec<String> {
    let addresses: BTreeSet<L4Addr> = rows.iter().flat_map(|row| &row.withdrawn).copied().collect();
    addresses.iter().filter(|address| is_meant(address)).map(L4Addr::to_string).collect()
}

/// Resolves `HOST:PORT[/PROTOCOL]` as the programs of this host do.
fn resolve_host(text: &str) -> Result<Vec<String>, Failure> {
    let (host, protocol) = text.split_once('/').unwrap_or((text, ""));
    let protocol: Protocol = match protocol {
        "" => Protocol::Tcp,
        name => name.parse().map_err(|error| Failure::message(Code::Usage, format!("{text}: {error}")))?,
    };
    let found = host.to_socket_addrs().map_err(|error| {
        let message =
            format!("`{text}` is not a destination: no ADDRESS:PORT, and the name cannot be resolved ({error})");
        Failure::message(Code::Usage, message)
    })?;
    let mut found: Vec<String> = found.map(|at| L4Addr::new(at.ip().into(), at.port(), protocol).to_string()).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

//! `nodelb diff`: prints the differences between source, memory and kernel, and exits with a code of its own if there
//! are any.

use clap::Args;
use nodelb_core::explain::rows::Difference;
use nodelb_core::output::diff::{self, COMPARED, DIFFERENCES, agreement};
use nodelb_core::output::table::{Cell, Page, Table};
use serde::Deserialize;

use super::ask::{DaemonAddresses, Output};
use super::print::print;
use crate::exit::{Code, Failure};

pub(super) mod probe;

use probe::ReadPeer;

/// Options of `nodelb diff`.
#[derive(Debug, Args)]
pub(super) struct DiffOptions {
    #[command(flatten)]
    addresses: DaemonAddresses,
    /// Also compare with the present state of an apiserver
    #[arg(long)]
    live: bool,
    /// Connect to each address (64 at most) and show the backend that is reached
    ///
    /// Connects as this process, in its network namespace and cgroup. Sends no data to the backend.
    #[arg(long)]
    probe: bool,
}

/// The rows of the daemon's answer.
#[derive(Deserialize)]
struct Answer {
    differences: Vec<serde_json::Map<String, serde_json::Value>>,
    compared: [Compared; 1],
}

#[derive(Clone, Copy, Deserialize)]
struct Compared {
    services: u64,
    frontends: u64,
}

/// Queries the daemon and prints the answer.
///
/// # Errors
/// [`Code::Differences`] when there are differences.
pub(super) fn diff(options: &DiffOptions, read_peer: ReadPeer) -> Result<(), Failure> {
    let mut parameters = vec![("output", "json".to_owned())];
    parameters.extend(options.addresses.parameters());
    if options.live {
        parameters.push(("live", "true".to_owned()));
    }
    let answer = options.addresses.asking.get("/diff", &parameters)?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| Failure::new(Code::Data, error))?;
    let met = if options.probe { probe::differences(&options.addresses, read_peer)? } else { Vec::new() };
    let count = answer.differences.len() + met.len();
    let page = page(&answer, met, options.addresses.service.is_none() && options.addresses.address.is_none());
    let text = match options.addresses.asking.output {
        Output::Text => page.to_styled_text(&options.addresses.asking.style()),
        Output::Json => page.to_json().map_err(|error| Failure::new(Code::Internal, error))?,
    };
    print(text.as_bytes())?;
    match count {
        0 => Ok(()),
        1 => Err(Failure::message(Code::Differences, "1 difference")),
        count => Err(Failure::message(Code::Differences, format!("{count} differences"))),
    }
}

fn page(answer: &Answer, met: Vec<Difference>, is_whole: bool) -> Page {
    let cell = |row: &serde_json::Map<String, serde_json::Value>, key: &str| match row.get(key) {
        Some(serde_json::Value::String(text)) => Cell::text(text),
        _ => Cell::None,
    };
    let cells = |row| DIFFERENCES.columns.each_ref().map(|column| cell(row, &column.key()));
    let [Compared { services, frontends }] = answer.compared;
    let reported = answer.differences.iter().map(cells);
    let differences = Table::new(&DIFFERENCES, reported.chain(met.into_iter().map(diff::cells)));
    let compared = Table::new(&COMPARED, [[Cell::Number(services), Cell::Number(frontends)]]);
    Page(vec![differences.or_text(agreement(is_whole, services, frontends)), compared.for_programs()])
}

#[cfg(test)]
#[path = "tests/diff.rs"]
mod tests;

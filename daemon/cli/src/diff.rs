//! `nodelb diff`: prints the differences between source, memory and kernel, and exits with a code of its own if there
//! are any.

use clap::Args;
use nodelb_report::rows::{DiffAnswer, DifferenceRow};

use super::answer::decode;
use super::ask::DaemonAddresses;
use crate::exit::{Code, Failure};

pub(super) mod probe;

use probe::ReadPeer;

#[derive(Debug, Args)]
pub(super) struct DiffOptions {
    #[command(flatten)]
    addresses: DaemonAddresses,
    /// Also compare with the present state of an API server
    #[arg(long)]
    live: bool,
    /// Connect to each address (64 at most) and show the backend that is reached
    ///
    /// Connects as this process, in its network namespace and cgroup. Sends no data to the backend.
    #[arg(long)]
    probe: bool,
}

/// Queries the daemon and prints the answer. Differences are a failure.
pub(super) fn diff(options: &DiffOptions, read_peer: ReadPeer) -> Result<(), Failure> {
    let (asking, wanted) = (&options.addresses.asking, options.addresses.wanted()?);
    let mut parameters = options.addresses.parameters_of(&wanted);
    if options.live {
        parameters.push(("live", "true".to_owned()));
    }
    let mut answer: DiffAnswer = decode(&asking.get("/diff", &parameters)?)?;
    if options.probe {
        let met = probe::differences(&options.addresses, read_peer)?;
        answer.differences.extend(met.into_iter().map(DifferenceRow::from));
    }
    if answer.differences.is_empty() {
        wanted.must_exist(asking)?;
    }
    asking.show_changed(&answer)?;
    match answer.differences.len() {
        0 => Ok(()),
        1 => Err(Failure::message(Code::Differences, "1 difference")),
        count => Err(Failure::message(Code::Differences, format!("{count} differences"))),
    }
}

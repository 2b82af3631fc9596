//! `nodelb trace`: prints what happens to a connection.

use clap::Args;
use nodelb_core::model::addr::L4Addr;

use super::ask::Asking;
use crate::exit::Failure;

/// Options of `nodelb trace`.
#[derive(Debug, Args)]
pub(super) struct Trace {
    /// Destination, such as 10.96.7.7:80 or [2001:db8::7]:53/UDP
    #[arg(value_name = "ADDRESS:PORT[/PROTOCOL]")]
    to: L4Addr,
    /// Client: host, pod or outside, ADDRESS or ADDRESS:PORT, or the inode number of a network namespace [default: host]
    #[arg(long, value_name = "WHO")]
    from: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

impl Trace {
    pub(super) fn ask(&self) -> Result<(), Failure> {
        let from = self.from.clone().map(|from| ("from", from));
        self.asking.ask("/trace", &[("to", self.to.to_string())].into_iter().chain(from).collect::<Vec<_>>())
    }
}

//! Backends that have a DNS name: the resolver asks for the names in service files, and sends what is known about each to the
//! owner task, whose table makes slices of it ([`nodelb_core::model::named`]).
//!
//! The resolver learns from the snapshots what to ask, and nothing passes through it. It sends the answers of the previous run
//! before the files are read.
//!
//! ```text
//!  owner --Arc<Snapshot>--> [names] --Change::Answer--> owner
//!                            │  ▲
//!      which, when: names   answers: ask (UDP, TCP; sockets of nodelb's own)
//! ```
//!
//! [`answer`] (what a message says), [`names`] (what is asked when, and what is known), [`servers`] (which server is
//! asked), [`assemble`] (the addresses that follow) and [`report`] are pure; [`ask`] communicates with servers, [`state_file`]
//! with the state directory, [`system`] with the settings of the host, and [`run`] is the task.

mod answer;
mod ask;
mod ask_all;
mod assemble;
mod entry;
mod journal;
mod names;
mod report;
mod run;
mod server_address;
mod servers;
mod state_file;
mod system;

pub use names::Bounds;
pub use report::{DnsReport, NameReport, NameState, QueryResult};
pub use run::{load, start};
pub use server_address::DnsServer;
pub use state_file::Stored;

#[cfg(test)]
#[path = "dns/tests/interference.rs"]
mod interference;
#[cfg(test)]
#[path = "dns/tests/server.rs"]
mod server;

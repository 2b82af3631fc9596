//! Backends that have a DNS name: the resolver asks for the names in service files, and sends the answers to the owner
//! task as slices, like every other source of backends.
//!
//! The resolver stands between the file source and the owner task. The changes of the files pass through it,
//! and slices that follow from known answers join the same batch, so that a service is never without backends that it
//! has before and after. At a start, the slice of a name without any answer says that its backends are not known: the owner
//! task then holds those of a previous run that are in the maps.
//!
//! ```text
//!  file source --Batch--> [names] --Vec<Change>--> owner
//!                          │  ▲
//!    which, when: names   answers: ask (UDP, TCP; sockets of nodelb's own)
//! ```
//!
//! [`answer`] (what a message says), [`names`] (what is asked when, and what is known), [`servers`] (which server is
//! asked), [`slices`] (the backends that follow), [`in_use`] (the last usable ones) and [`report`] are pure; [`ask`]
//! communicates with servers, [`state_file`] with the state directory, [`system`] with the settings of the host, and [`run`] is the task.

mod answer;
mod ask;
mod ask_all;
mod due;
mod entry;
mod frontends;
mod in_use;
mod journal;
mod names;
mod report;
mod run;
mod servers;
mod slices;
mod state_file;
mod system;

pub use report::{DnsReport, NameReport, NameState, QueryResult};
pub use run::{Started, start};

#[cfg(test)]
#[path = "dns/tests/interference.rs"]
mod interference;
#[cfg(test)]
#[path = "dns/tests/server.rs"]
mod server;

//! Active health checks of services from files, and of Kubernetes Services if configured: the checker tests whether
//! every backend serves, and sends the results to the owner task. Owns the targets, the times and the evaluation of the
//! answers; the table judges backends without a result, and selection decides what follows for connections
//! ([`nodelb_core::compile::select`]).
//!
//! The checker learns from the snapshots what to check, and nothing passes through it. It sends the results of the previous
//! run before any source reports, so that a backend that was quarantined when nodelb ended is never used in between.
//!
//! ```text
//!  owner --Arc<Snapshot>--> [board] --Change::Quarantine, Change::Passed--> owner
//!                             │  ▲
//!          which, when: schedule  answers: ask (TCP connect, HTTP GET; sockets of nodelb's own)
//! ```
//!
//! [`board`] (what is checked, and its state), [`state`] (rise and fall), [`routes`] (which targets this host has a
//! route to) and [`schedule`] (which target is checked when) are pure; [`ask`] communicates with backends,
//! [`state_file`] with the state directory, and [`run`] is the task.

mod ask;
mod board;
mod journal;
mod routes;
mod run;
mod schedule;
mod state;
mod state_file;

pub use ask::Prepare;
pub use run::{load, start};
pub use state::{CheckOutcome, CheckReport, Condition, LastCheck, Unsent};
pub use state_file::Stored;

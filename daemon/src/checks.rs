//! Active health checks of services from files, and of Kubernetes Services if configured: the checker tests whether
//! every backend serves, and sends the backends that do not serve to the owner task. Owns the targets, the times and
//! the evaluation of the answers; selection decides what follows for connections ([`nodelb_core::compile::select`]).
//!
//! The checker stands between these sources and the owner task: the changes of the sources pass through it unmodified,
//! and it adds the health of their backends to the same batch. Therefore a backend that may not be used before its
//! first answer, or that was quarantined when nodelb ended, is never used for a moment in between. And there is only
//! one way for the checker to learn what to check.
//!
//! ```text
//!  a source ----Vec<Change>--> [board] --the same, and Change::Quarantine--> owner
//!                                 │  ▲
//!              which, when: schedule  answers: ask (TCP connect, HTTP GET; sockets of nodelb's own)
//! ```
//!
//! [`board`] (what is checked, and its state), [`before`] (what the previous run knew), [`state`] (rise and fall), [`routes`] (which targets this host has a
//! route to) and [`schedule`] (which target is checked when) are pure; [`ask`] communicates with backends,
//! [`state_file`] with the state directory, and [`run`] is the task.

mod ask;
mod before;
mod board;
mod journal;
mod routes;
mod run;
mod schedule;
mod state;
mod state_file;

pub use ask::Asker;
pub use run::{KubernetesChanges, Sources, start};
pub use state::{CheckOutcome, CheckReport, Condition};

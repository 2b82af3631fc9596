//! Active health checks of file-defined services: asks every backend whether it serves, and tells the owner which ones do
//! not. Owns who is asked, when, and what the answers amount to; what follows for connections is selection's business
//! ([`nodelb_core::compile::select`]).
//!
//! The checker stands between the file source and the owner: what the source says passes through it unchanged, with what
//! is known of the backends added to the same batch. So a backend that is not to be used before it has answered, or that
//! was quarantined when nodelb ended, is never used for a moment in between; and there is no second way to learn what is to
//! be checked.
//!
//! ```text
//!  file source --Vec<Change>--> [board] --the same, and Change::Quarantine--> owner
//!                                 │  ▲
//!              which, when: schedule  answers: ask (TCP connect, HTTP GET; sockets of nodelb's own)
//! ```
//!
//! [`board`] (what is checked and how it stands), [`state`] (rise and fall), [`routes`] (which targets this host has a route
//! to) and [`schedule`] (who is asked when) are pure;
//! [`ask`] talks to backends, [`remember`] to the state directory, [`run`] is the task.

mod ask;
mod board;
mod journal;
mod remember;
mod report;
mod routes;
mod run;
mod schedule;
mod state;

pub use report::{CheckReport, Condition, Outcome};
pub use run::{Checker, Timing, room_for_sockets, run};

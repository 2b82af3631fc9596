//! What nodelb reports but does not decide: the rows of all answers, their form as text and JSON, the explanation of a
//! connection, what differs, and the problems of the node. Built from snapshots of the core and from the data of other
//! parts. As pure as the core: no I/O, clock, environment or threads.
//!
//! ```text
//!  output <── rows <── diagnosis_text        explain <── rows, problems <── status_report <── status_text
//! ```

#![forbid(unsafe_code)]

pub mod check;
mod diagnosis_text;
pub mod durations;
pub mod explain;
pub mod filter;
pub mod output;
pub mod problems;
pub mod rows;
pub mod status_report;
pub mod status_text;
pub mod time;

#[cfg(test)]
#[path = "tests/engine.rs"]
mod engine_tests;
#[cfg(test)]
#[path = "tests/snapshot.rs"]
mod snapshot_tests;

//! The pure part of nodelb, which computes the desired content of the maps from services and endpoint slices.
//!
//! It has no I/O, clock, environment or threads: every input is an argument and every output a value, so that all of it
//! can be tested with properties and scenarios. The `clippy.toml` of this package checks this.
//!
//! ```text
//! Change --> table --dirty--> select + compile --> Desired --diff(Realised)--> MapOp --> Datapath
//!                                  `------------------- engine ------------------'
//! ```

#![forbid(unsafe_code)]

pub mod change;
pub mod check;
mod claims;
pub mod compile;
pub mod config;
pub mod datapath;
pub mod degraded;
mod diagnosis_text;
pub mod engine;
pub mod explain;
pub mod filter;
pub mod history;
pub mod holds;
pub mod memory;
pub mod model;
pub mod output;
pub mod packets;
pub mod problems;
pub mod rows;
pub mod snapshot;
pub mod source_report;
pub mod stale;
pub mod state;
pub mod status_report;
pub mod status_text;
pub mod table;
pub mod text;

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

pub mod awaited;
pub mod before;
pub mod change;
pub mod claims;
pub mod compile;
pub mod config;
pub mod datapath;
pub mod degraded;
pub mod difference;
pub mod durations;
pub mod engine;
pub mod hash;
pub mod history;
pub mod holds;
pub mod map_diff;
pub mod memory;
pub mod model;
pub mod packets;
pub mod snapshot;
pub mod source_report;
pub mod stale;
pub mod state;
pub mod statuses;
pub mod table;
pub mod text;
pub mod trace;

/// The name that tests which other packages include, too, have for this one.
#[cfg(test)]
extern crate self as nodelb_core;

#[cfg(test)]
#[path = "tests/claimed.rs"]
mod claimed;

//! The pure part of nodelb: from services and endpoint slices to the state the kernel should hold.
//!
//! No I/O, no clock, no environment, no threads: everything comes in as an argument and goes out as a value, so that
//! all of it can be tested by properties and scenarios. `clippy.toml` beside this package checks it.
//!
//! ```text
//! Change --> table --dirty--> select + compile --> Desired --diff(Realised)--> MapOp --> Datapath
//!                                  `------------------- engine ------------------'
//! ```

#![forbid(unsafe_code)]

pub mod change;
mod claims;
pub mod compile;
pub mod config;
pub mod datapath;
pub mod engine;
pub mod explain;
pub mod filter;
pub mod history;
pub mod holds;
pub mod memory;
pub mod messages;
pub mod model;
pub mod output;
pub mod snapshot;
pub mod source_report;
pub mod stale;
pub mod state;
pub mod table;

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

pub mod addr;
pub mod apiservers;
pub mod calendar;
pub mod cause;
pub mod change;
mod claims;
pub mod compare;
pub mod compile;
pub mod datapath;
pub mod diff;
pub mod differences;
pub mod dump;
pub mod engine;
pub mod health_check;
pub mod history;
pub mod hold;
pub mod ids;
pub mod local_entry;
pub mod memory;
pub mod names;
pub mod nodeport;
pub mod owner;
pub mod rendezvous;
pub mod report;
pub mod runs;
pub mod select;
pub mod service;
mod snapshot;
pub mod stale;
pub mod state;
pub mod story;

pub mod table;
pub mod trace;
mod weight;

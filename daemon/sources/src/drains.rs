//! Backends that the operator drains: owns the drains over restarts, and ends those that are over. Selection decides
//! what follows for connections ([`nodelb_core::compile::select`]).
//!
//! The admin API passes requests on. A drain is written to the state directory before it takes effect
//! and before the request is answered, and is sent to the owner task before any source reports, so that no restart sends
//! a connection to a drained backend.

mod author;
mod journal;
mod request;
mod run;
mod state_file;

pub use author::{Peer, author};
pub use request::{Action, Refusal, Request, Wish};
pub use run::start;
pub use state_file::{begin, stored};

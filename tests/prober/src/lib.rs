//! Backends that say their name, and clients that dial, check what they see and count it. Owns nothing of nodelb: it
//! knows addresses and sockets only, so that what it counts is what any program on the node would meet.

#![forbid(unsafe_code)]

pub mod backend;
pub mod exchange;
pub mod probe;
pub mod tally;

pub use backend::Backend;
pub use exchange::{Failure, Transport, exchange};
pub use probe::{Plan, Probe};
pub use tally::Tally;

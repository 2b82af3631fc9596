//! Backends that answer with their names, and clients that connect, check the result and count.
//! Independent of nodelb: the clients use only addresses and sockets and thus observe what every
//! program on the node observes.

#![forbid(unsafe_code)]

pub mod backend;
pub mod end;
pub mod exchange;
pub mod kept;
pub mod probe;
pub mod tally;

pub use backend::Backend;
pub use end::SetAtEnd;
pub use exchange::{Failure, Transport, exchange};
pub use kept::Kept;
pub use probe::{Plan, Probe};
pub use tally::Tally;

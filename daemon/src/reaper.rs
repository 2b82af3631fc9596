//! The reaper: a small process beside the daemon that ends sockets in any network namespace, and can do nothing else.
//! Ending a socket takes CAP_NET_ADMIN where it is, going there CAP_SYS_ADMIN, and finding the way CAP_SYS_PTRACE; the
//! daemon gives up all of them at start and has the reaper keep these three.
//!
//! ```text
//! daemon: client ── socketpair: wire ──> reaper: child ── namespaces, destroy ──> the kernel
//! ```
//!
//! It takes orders of fixed size from the one socket that is its standard input ([`wire`]) and ends with it. An order
//! names a socket by its cookie and addresses, which the kernel compares: none can hit another one. What to end is
//! decided by the daemon.

mod child;
pub mod client;
mod destroy;
mod namespaces;
pub mod wire;

pub use child::run;
pub(crate) use child::try_out;
pub use client::{Line, Reaper};

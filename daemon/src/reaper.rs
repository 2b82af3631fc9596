//! The reaper: a small process that ends sockets in any network namespace for the daemon, and can do nothing else.
//! Ending a socket takes CAP_NET_ADMIN where it is, going there CAP_SYS_ADMIN, and finding the way CAP_SYS_PTRACE. The
//! daemon has none of them while it runs: systemd starts the reaper when the daemon connects to its socket
//! (`contrib/systemd/nodelb-reaper.socket`), or else the daemon does, before it gives its own up.
//!
//! ```text
//! daemon: client ── unix socket: wire ──> reaper: child ── namespaces, destroy ──> the kernel
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
pub use client::{Line, Lost, Reaper};

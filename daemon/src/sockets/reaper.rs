//! The reaper: a small process that does for the daemon what takes capabilities after the start: it ends sockets in any
//! network namespace, and executes orders for the packet path. Ending a socket takes CAP_NET_ADMIN in its namespace, entering the namespace takes CAP_SYS_ADMIN, and finding
//! it takes CAP_SYS_PTRACE. The daemon has none of them while it runs: either systemd starts the reaper when the daemon
//! connects to its socket (`contrib/systemd/nodelb-reaper.socket`), or the daemon starts it before it drops its own
//! capabilities.
//!
//! ```text
//! daemon: client ── unix socket: wire ──> reaper: child ── namespaces, destroy ──> the kernel
//! ```
//!
//! The reaper receives orders of limited size over the one socket that is its standard input ([`wire`]), and ends with
//! it. An order identifies a socket by its cookie and addresses, which the kernel compares, so it cannot end a
//! different socket. The daemon decides which sockets to end.
//!
//! More orders are for the packet path, because they take CAP_NET_ADMIN: the reaper answers whether kube-proxy has rules in
//! nftables, lists masqueraded connections and the policies of IPsec, and changes nodelb's filters at network devices on
//! kernels without tcx links. The daemon sends
//! the descriptor of the program that a filter is to run; the reaper cannot load one.

mod child;
pub mod client;
mod destroy;
mod namespaces;
pub mod wire;

pub use child::run;
pub use client::{Lost, Reaper, ReaperLine};

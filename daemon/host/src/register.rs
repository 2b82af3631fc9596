//! nodelb's own sockets: each is registered before it connects or listens, so that BPF never translates it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Registers a socket as nodelb's own before it connects: `nodelb_datapath::OwnSockets::register`, or a no-op without
/// BPF.
pub type Register = Arc<dyn Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync>;

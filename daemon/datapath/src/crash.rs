//! The injected crash: every operation that changes something outside this process passes here, and the process can be
//! told to die right after the n-th. That is how "kill -9 at any moment" becomes a test that runs to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Counts down physical operations: a map write, a pin, a rename, a link update. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct CrashPoint {
    left: Option<Arc<AtomicU64>>,
}

impl CrashPoint {
    /// Dies by SIGKILL right after operation number `after`, counted from 1; `None` never dies.
    pub fn new(after: Option<u64>) -> Self {
        Self { left: after.map(|after| Arc::new(AtomicU64::new(after))) }
    }

    /// To be called after each operation.
    pub(crate) fn pass(&self) {
        let Some(left) = &self.left else { return };
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Nothing may run after this point, so a failure to die is waited out rather than reported.
            while kill(Pid::this(), Signal::SIGKILL).is_err() {}
        }
    }
}

//! An injected crash: every operation that changes something outside this process calls this module, which can kill the
//! process right after the n-th operation. This turns "kill -9 at any moment" into a test with an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Counts physical operations down: a map write, a pin, a rename, a link update. All clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct CrashPoint {
    left: Option<Arc<AtomicU64>>,
}

impl CrashPoint {
    /// Kills the process with SIGKILL right after operation number `after`, counted from 1; `None` never does.
    pub fn new(after: Option<u64>) -> Self {
        Self { left: after.map(|after| Arc::new(AtomicU64::new(after))) }
    }

    /// Counts one operation. Must be called after each.
    pub(crate) fn pass(&self) {
        let Some(left) = &self.left else { return };
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Nothing may run after this point, so a failed kill is repeated and not reported.
            while kill(Pid::this(), Signal::SIGKILL).is_err() {}
        }
    }
}

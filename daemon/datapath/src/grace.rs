//! Grace periods: when can no BPF program still read what a round took out of use? The hooks run under the RCU read
//! lock, so one RCU grace period after the round is proof, even if a process was off its CPU for long; a fixed rest
//! alone is not. Waiting for a grace period takes milliseconds, which the owner of the maps must not spend: a separate
//! thread waits.
//!
//! `MEMBARRIER_CMD_GLOBAL` waits for a grace period and needs no capability. It does not exist on a kernel with
//! `nohz_full=` CPUs, and returns at once on a single CPU: there only the rest protects readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use nodelb_core::state::runs::REST_MILLIS;

use crate::sys;

/// How long rounds are collected before one wait for all of them: a fraction of the rest, which follows in any case.
const COLLECT: Duration = Duration::from_millis(REST_MILLIS / 4);

/// The waiting thread. It starts when it is first needed, which is after the capabilities were dropped, and ends when
/// this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of rounds that have ended.
    requested: AtomicU64,
    /// Number of rounds that no program can be reading from any more.
    completed: AtomicU64,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

impl Grace {
    pub(crate) fn is_available(&self) -> bool {
        let commands = sys::membarrier_commands();
        let has_global = commands > 0 && commands & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) != 0;
        has_global && !self.shared.has_failed.load(Ordering::Relaxed)
    }

    /// Reports that this many rounds have ended. [`Self::completed`] returns the number some time later.
    pub(crate) fn request(&mut self, rounds: u64) {
        self.shared.requested.store(rounds, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("grace".into()).spawn(move || wait(&shared));
        match started {
            Ok(handle) => self.thread = Some(handle.thread().clone()),
            Err(_no_thread) => self.shared.has_failed.store(true, Ordering::Relaxed),
        }
    }

    /// The number of rounds that no program can be reading from any more; `None` if it cannot be known.
    pub(crate) fn completed(&self) -> Option<u64> {
        let has_failed = self.shared.has_failed.load(Ordering::Relaxed);
        (!has_failed).then(|| self.shared.completed.load(Ordering::Acquire))
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

fn wait(shared: &Shared) {
    while !shared.is_over.load(Ordering::Relaxed) {
        if shared.requested.load(Ordering::Acquire) == shared.completed.load(Ordering::Relaxed) {
            thread::park();
            continue;
        }
        thread::sleep(COLLECT);
        // Everything up to this number has been unpublished before.
        let requested = shared.requested.load(Ordering::Acquire);
        match sys::membarrier_global() {
            Ok(()) => shared.completed.store(requested, Ordering::Release),
            Err(_refused) => {
                shared.has_failed.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/grace.rs"]
mod tests;

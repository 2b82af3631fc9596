//! Grace periods: when no BPF program can still be reading what a round took out of use. The hooks run under the RCU read
//! lock, so one RCU grace period after the round is proof, however long a process was off its CPU; a fixed rest alone is
//! not. To wait for one takes milliseconds, which the owner of the maps must not spend: a thread of its own does.
//!
//! `MEMBARRIER_CMD_GLOBAL` is such a wait, and needs no capability. A kernel with `nohz_full=` CPUs does not have it, and
//! with a single CPU it returns at once: there the rest alone has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use nodelb_core::state::runs::REST_MILLIS;

use crate::sys;

/// How long rounds are collected before one wait for all of them: a fraction of the rest that follows them anyway.
const COLLECT: Duration = Duration::from_millis(REST_MILLIS / 4);

/// The thread that waits. It is started when it is first needed, which is after capabilities were dropped, and ends when
/// this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many rounds are over.
    asked: AtomicU64,
    /// How many of them no program can be reading from any more.
    passed: AtomicU64,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

impl Grace {
    /// Whether this kernel has what it takes.
    pub(crate) fn is_available(&self) -> bool {
        let commands = sys::membarrier_commands();
        let has_global = commands > 0 && commands & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) != 0;
        has_global && !self.shared.has_failed.load(Ordering::Relaxed)
    }

    /// So many rounds are over. [`Self::passed`] says so some time later.
    pub(crate) fn ask(&mut self, rounds: u64) {
        self.shared.asked.store(rounds, Ordering::Release);
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

    /// How many rounds no program can be reading from any more; `None` if that cannot be known.
    pub(crate) fn passed(&self) -> Option<u64> {
        let has_failed = self.shared.has_failed.load(Ordering::Relaxed);
        (!has_failed).then(|| self.shared.passed.load(Ordering::Acquire))
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
        if shared.asked.load(Ordering::Acquire) == shared.passed.load(Ordering::Relaxed) {
            thread::park();
            continue;
        }
        thread::sleep(COLLECT);
        // Whatever is asked for by now has been unpublished before.
        let asked = shared.asked.load(Ordering::Acquire);
        match sys::membarrier_global() {
            Ok(()) => shared.passed.store(asked, Ordering::Release),
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

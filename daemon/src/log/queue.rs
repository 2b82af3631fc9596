//! The queue of log lines. The program puts a line into a bounded queue and continues; one thread takes the lines out
//! and writes them. Only this thread waits for journald, a pipe or a disk. A line that does not fit is dropped and
//! counted.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of waiting lines, and of bytes of text in them: about a minute of everything that the limiter
/// permits.
const LINES: usize = 4096;
const BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Queue<T>(Arc<SharedQueue<T>>);

#[derive(Debug)]
struct SharedQueue<T> {
    state: Mutex<State<T>>,
    /// Signals that a line was added.
    filled: Condvar,
    /// Signals that the last line was written.
    emptied: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<(T, usize)>,
    bytes: usize,
    is_writing: bool,
    dropped: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State { waiting: VecDeque::new(), bytes: 0, is_writing: false, dropped: 0 };
        Self(Arc::new(SharedQueue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }))
    }
}

impl<T> Queue<T> {
    /// Appends a line with this number of bytes; drops and counts it if the queue is full. Never waits for the writer.
    pub(super) fn push(&self, line: T, bytes: usize) {
        let mut state = self.lock();
        if state.waiting.len() >= LINES || state.bytes.saturating_add(bytes) > BYTES {
            state.dropped += 1;
            return;
        }
        state.bytes += bytes;
        state.waiting.push_back((line, bytes));
        drop(state);
        self.0.filled.notify_one();
    }

    /// The number of lines dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Whether at least half of the queue is free, so that a line about dropped lines is not dropped too.
    pub(super) fn has_room(&self) -> bool {
        let state = self.lock();
        state.waiting.len() <= LINES / 2 && state.bytes <= BYTES / 2
    }

    /// Waits until every line is written, at most for this time; returns whether all are.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let by = Instant::now() + timeout;
        let mut state = self.lock();
        while state.is_writing || !state.waiting.is_empty() {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.emptied.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn take(&self) -> T {
        let mut state = self.lock();
        state.is_writing = false;
        loop {
            if let Some((line, bytes)) = state.waiting.pop_front() {
                state.bytes -= bytes;
                state.is_writing = true;
                return line;
            }
            self.0.emptied.notify_all();
            state = self.0.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Every change under the lock is complete, so poisoning does no harm.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Queue<T> {
    /// Starts the thread that writes the lines, for the lifetime of the process. `write` may block.
    pub(super) fn start(&self, mut write: impl FnMut(T) + Send + 'static) -> io::Result<()> {
        let queue = Self(Arc::clone(&self.0));
        let work = move || {
            loop {
                write(queue.take());
            }
        };
        thread::Builder::new().name("log".into()).spawn(work)?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/queue.rs"]
mod tests;

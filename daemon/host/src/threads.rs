//! Threads for work that may block forever, for example a program on a file system that is unreachable. Each piece of
//! work has its own thread. No task has to wait for a thread, no thread prevents the process from ending, and their
//! number is limited.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::by;

/// The maximum number of threads for the work of the start. Each file is read once.
const AT_START: usize = 64;

/// The threads for one kind of work. Clones share one limit.
#[derive(Clone, Debug)]
pub struct Threads {
    name: &'static str,
    most: usize,
    running: Arc<AtomicUsize>,
}

/// One of the running threads, until it is dropped.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Threads {
    /// A group of at most `most` simultaneous threads with this name.
    pub fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, running: Arc::default() }
    }

    /// Starts the work in a new thread. If the receiver is dropped, the thread runs to its end.
    ///
    /// # Errors
    /// The limit is reached, or the thread could not be started.
    pub fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<oneshot::Receiver<T>> {
        let running = Running(Arc::clone(&self.running));
        if running.0.fetch_add(1, Ordering::AcqRel) >= self.most {
            return Err(io::Error::other(format!("{} earlier attempts are still blocked", self.most)));
        }
        let (done, result) = oneshot::channel();
        let run = move || {
            let outcome = work();
            drop(running);
            // The receiver may have been dropped.
            _ = done.send(outcome);
        };
        thread::Builder::new().name(self.name.into()).spawn(run)?;
        Ok(result)
    }

    /// Runs the work in a new thread, and waits for it within the time limit.
    pub async fn run_within<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        by(Instant::now() + limit, self.run(work)).await.unwrap_or_else(|_late| Err(timed_out(limit)))
    }

    /// Begins the work at once.
    pub(crate) fn run<T: Send + 'static, W: FnOnce() -> io::Result<T> + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = io::Result<T>> + use<T, W> {
        let begun = self.begin(work);
        async move { begun?.await.map_err(io::Error::other)? }
    }
}

/// Runs work of the start, on files, in a thread, and waits for it within the time limit. Unlike a blocking task of the
/// runtime, such a thread does not prevent the process from ending. For work that is repeated, see
/// [`Threads::run_within`].
pub async fn run_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    static OF_START: LazyLock<Threads> = LazyLock::new(|| Threads::new("state", AT_START));
    OF_START.run_within(limit, work).await
}

/// The error of work that took longer than the limit.
pub fn timed_out(limit: Duration) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("timed out after {limit:?}"))
}

#[cfg(test)]
#[path = "tests/threads.rs"]
mod tests;

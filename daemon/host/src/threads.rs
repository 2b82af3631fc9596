//! Threads for work that may block forever, for example a program on a file system that is unreachable. Each piece of
//! work has its own thread. No task has to wait for a thread, no thread prevents the process from ending, and their
//! number is limited.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// The threads for one kind of work. Clones share one limit.
#[derive(Clone, Debug)]
pub struct Threads {
    name: &'static str,
    most: usize,
    /// A reference count: one more than the number of running threads.
    running: Arc<()>,
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
        let count = Arc::strong_count(&self.running);
        let running = Arc::clone(&self.running);
        if count > self.most {
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
}

/// Runs work on files in a thread, and waits for it within the time limit. Unlike a blocking task of the
/// runtime, such a thread does not prevent the process from ending.
///
/// # Errors
/// The error of `work`, no thread could be started, or the time limit has passed.
pub async fn run_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    timeout(limit, run(work)).await.unwrap_or_else(|_elapsed| Err(timed_out(limit)))
}

pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    Threads::new("state", 1).begin(work)?.await.map_err(io::Error::other)?
}

pub(crate) fn timed_out(limit: Duration) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("timed out after {limit:?}"))
}

#[cfg(test)]
#[path = "tests/threads.rs"]
mod tests;

//! Work that may block for ever: a file system that is away, a program on it. Each piece has a thread of its own, which no
//! task has to wait for and which does not keep the process from ending; and there are only so many of them.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

/// Threads for one kind of work. Clones count together.
#[derive(Clone, Debug)]
pub struct Threads {
    name: &'static str,
    most: usize,
    /// One more reference than there are threads.
    running: Arc<()>,
}

impl Threads {
    /// At most so many at a time.
    pub fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, running: Arc::default() }
    }

    /// Begins the work. The receiver may be dropped: the thread goes on alone.
    ///
    /// # Errors
    /// When there are as many threads as there may be, or there can be no thread.
    pub fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<oneshot::Receiver<T>> {
        let count = Arc::strong_count(&self.running);
        let running = Arc::clone(&self.running);
        if count > self.most {
            return Err(io::Error::other(format!("{} earlier attempts have not come back", self.most)));
        }
        let (done, result) = oneshot::channel();
        let run = move || {
            let outcome = work();
            drop(running);
            // A task that does not wait any more needs no result.
            _ = done.send(outcome);
        };
        thread::Builder::new().name(self.name.into()).spawn(run)?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests;

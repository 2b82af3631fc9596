//! Writes the file of the drains. There is one write at a time, also while one does not end: a second one could be
//! overtaken by the first, which would bring back what was refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodelb_host::threads::{Threads, timed_out};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::state_file::{self, All};

/// Replaces the file unless the flag says, before that takes effect, that the contents are no longer wanted. May block.
type Write = dyn Fn(&Path, &All, &AtomicBool) -> io::Result<()> + Send + Sync;

pub(super) struct Writer {
    path: PathBuf,
    limit: Duration,
    write: Arc<Write>,
    threads: Threads,
    under_way: Option<UnderWay>,
    /// What the file contains; `None` if that is not known.
    written: Option<All>,
}

struct UnderWay {
    contents: All,
    is_withdrawn: Arc<AtomicBool>,
    result: oneshot::Receiver<io::Result<()>>,
}

impl Writer {
    pub(super) fn new(path: PathBuf) -> Self {
        Self::with(path, state_file::TIMEOUT, state_file::write)
    }

    pub(super) fn with(
        path: PathBuf,
        limit: Duration,
        write: impl Fn(&Path, &All, &AtomicBool) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let threads = Threads::new("drains", 1);
        Self { path, limit, write: Arc::new(write), threads, under_way: None, written: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file has been read, and contains this.
    pub(super) fn note_read(&mut self, all: &All) {
        self.written = Some(all.clone());
    }

    pub(super) fn has_written(&self, all: &All) -> bool {
        self.written.as_ref() == Some(all)
    }

    /// Replaces the contents of the file, within the time limit. Only waits while an earlier write is under way.
    ///
    /// # Errors
    /// The file could not be written, or not in time. It may still get these contents, unless they are withdrawn.
    pub(super) async fn save(&mut self, all: &All) -> io::Result<()> {
        let deadline = Instant::now() + self.limit;
        // Its result does not matter: these contents replace it.
        let _ = self.ends_by(deadline).await;
        if self.is_busy() {
            return Err(timed_out(self.limit));
        }
        let is_withdrawn = Arc::new(AtomicBool::new(false));
        let (write, path, contents) = (Arc::clone(&self.write), self.path.clone(), all.clone());
        let flag = Arc::clone(&is_withdrawn);
        self.written = None;
        let result = self.threads.begin(move || write(&path, &contents, &flag))?;
        self.under_way = Some(UnderWay { contents: all.clone(), is_withdrawn, result });
        self.ends_by(deadline).await.unwrap_or(Ok(()))
    }

    /// The contents of the latest save are no longer wanted: if its write is still under way, it is not to take effect.
    /// Where that is too late, the next save has to replace them.
    pub(super) fn withdraw(&mut self) {
        if let Some(under_way) = &self.under_way {
            under_way.is_withdrawn.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Waits until the write that is under way has ended, and returns its result; `None` if there is none.
    pub(super) async fn ends_by(&mut self, deadline: Instant) -> Option<io::Result<()>> {
        let result = &mut self.under_way.as_mut()?.result;
        let Ok(ended) = timeout_at(deadline, result).await else { return Some(Err(timed_out(self.limit))) };
        let UnderWay { contents, .. } = self.under_way.take()?;
        let ended = ended.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        self.written = ended.is_ok().then_some(contents);
        Some(ended)
    }
}

#[cfg(test)]
#[path = "tests/writer.rs"]
pub(in crate::drains) mod tests;

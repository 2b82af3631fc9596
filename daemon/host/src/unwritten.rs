//! The files of the state directory that this process cannot write or read at present, by path: the tasks that write and
//! read files report here, and the admin API reads it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tracing::{info, warn};

use crate::messages;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The time of the first failure after the last success.
    pub since: SystemTime,
    /// The path, the last error, and what follows.
    pub text: String,
}

/// The files that cannot be written, or those that have not been read.
pub struct Files(Mutex<BTreeMap<PathBuf, Failing>>);

pub static UNWRITTEN: Files = Files(Mutex::new(BTreeMap::new()));

pub static UNREAD: Files = Files(Mutex::new(BTreeMap::new()));

impl Files {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Failing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the text about a failure. Returns whether it is the first one.
    fn failed(&self, path: &Path, text: &str) -> bool {
        let mut files = self.all();
        let known = files.get(path).map(|known| known.since);
        let since = known.unwrap_or_else(SystemTime::now);
        files.insert(path.to_owned(), Failing { since, text: text.to_owned() });
        known.is_none()
    }

    /// Those below this directory, by path.
    pub fn below(&self, directory: &Path) -> Vec<Failing> {
        self.all().iter().filter(|(path, _)| path.starts_with(directory)).map(|(_, file)| file.clone()).collect()
    }
}

/// Records and logs a failed write.
pub fn warn(path: &Path, error: &io::Error, consequence: &str) {
    let text = format!("{} cannot be written: {error}; {consequence}", path.display());
    UNWRITTEN.failed(path, &text);
    warn!(message_id = %messages::STATE_UNWRITTEN, "{text}");
}

/// Records that a file has not been read. Logs the first of several failures.
pub(crate) fn unread(path: &Path, error: &io::Error, consequence: &str) {
    let text = format!("{} cannot be read: {error}; {consequence}", path.display());
    if UNREAD.failed(path, &text) {
        warn!(message_id = %messages::STATE_UNREADABLE, "{text}");
    }
}

/// Records that a file has been read, and logs that if it could not be read before.
pub(crate) fn read(path: &Path) {
    if UNREAD.all().remove(path).is_some() {
        info!(message_id = %messages::STATE_LOADED, "{} has been read now", path.display());
    }
}

/// Records the result of a write. Logs the first of several failures, and their end.
pub fn note(path: &Path, result: &io::Result<()>, consequence: &str, has_failed: &mut bool) {
    let had_failed = mem::replace(has_failed, result.is_err());
    match result {
        Ok(()) => {
            UNWRITTEN.all().remove(path);
            if had_failed {
                info!(message_id = %messages::STATE_WRITTEN, "{} has been written again", path.display());
            }
        }
        Err(error) if !had_failed => warn(path, error, consequence),
        Err(_) => {}
    }
}

#[cfg(test)]
#[path = "tests/unwritten.rs"]
mod tests;

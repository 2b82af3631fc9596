//! The files of this process that cannot be written at present, by path: the tasks that write files report here, and the
//! admin API reads it.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tracing::{info, warn};

use crate::messages;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// The time of the first failure after the last success.
    pub since: SystemTime,
    /// The path, the last error, and what follows.
    pub text: String,
}

static FILES: Mutex<BTreeMap<PathBuf, Unwritten>> = Mutex::new(BTreeMap::new());

fn files() -> MutexGuard<'static, BTreeMap<PathBuf, Unwritten>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that a write has failed, and returns the text about it.
fn failed(path: &Path, error: &io::Error, consequence: &str) -> String {
    let text = format!("{} cannot be written: {error}; {consequence}", path.display());
    let mut files = files();
    let since = files.get(path).map_or_else(SystemTime::now, |known| known.since);
    files.insert(path.to_owned(), Unwritten { since, text: text.clone() });
    text
}

/// Records and logs a failed write.
pub fn warn(path: &Path, error: &io::Error, consequence: &str) {
    let text = failed(path, error, consequence);
    warn!(message_id = %messages::STATE_UNWRITTEN, "{text}");
}

/// Records the result of a write. Logs the first of several failures, and their end.
pub fn note(path: &Path, result: &io::Result<()>, consequence: &str, has_failed: &mut bool) {
    let had_failed = mem::replace(has_failed, result.is_err());
    match result {
        Ok(()) => {
            files().remove(path);
            if had_failed {
                info!(message_id = %messages::STATE_WRITTEN, "{} has been written again", path.display());
            }
        }
        Err(error) if !had_failed => warn(path, error, consequence),
        Err(_) => {}
    }
}

/// The files below this directory that cannot be written, by path.
pub fn below(directory: &Path) -> Vec<Unwritten> {
    files().iter().filter(|(path, _)| path.starts_with(directory)).map(|(_, file)| file.clone()).collect()
}

#[cfg(test)]
#[path = "tests/unwritten.rs"]
mod tests;

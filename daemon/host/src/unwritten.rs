//! The files of this process that cannot be written at present, by path: the tasks that write files report here, and the
//! admin API reads it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A file that cannot be written.
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
pub fn failed(path: &Path, error: &io::Error, consequence: &str) -> String {
    let text = format!("{} cannot be written: {error}; {consequence}", path.display());
    let mut files = files();
    let since = files.get(path).map_or_else(SystemTime::now, |known| known.since);
    files.insert(path.to_owned(), Unwritten { since, text: text.clone() });
    text
}

/// Records that a write has succeeded.
pub fn succeeded(path: &Path) {
    files().remove(path);
}

/// The files below this directory that cannot be written, by path.
pub fn below(directory: &Path) -> Vec<Unwritten> {
    files().iter().filter(|(path, _)| path.starts_with(directory)).map(|(_, file)| file.clone()).collect()
}

#[cfg(test)]
#[path = "tests/unwritten.rs"]
mod tests;

//! The last valid version of each service file, kept in the state directory over a restart: a file that is invalid, or
//! a directory that cannot be read, when nodelb starts takes nothing from a service, as if nodelb had never stopped.
//! Owns the format of the state file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodelb_host::clock::boot_id;
use nodelb_host::state_file::{self, Limits, SavedState, StateFile};
use serde::{Deserialize, Serialize};

const NAME: &str = "services.json";

const VERSION: u32 = 1;

/// The maximum size in bytes of all versions together. A larger directory is not stored.
const MAX_TEXT: usize = 32 << 20;

/// The maximum size of the state file in bytes: most characters take one byte in JSON.
const MAX_BYTES: usize = 2 * MAX_TEXT;

const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_secs(10), timeout: Duration::from_secs(5) };

/// The directory when it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LastValid {
    pub(super) directory: PathBuf,
    /// Device and inode of the directory.
    pub(super) identity: Option<(u64, u64)>,
    /// The last valid version of each service file; `None` if it has had none.
    pub(super) texts: BTreeMap<PathBuf, Option<Arc<str>>>,
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    boot: String,
    directory: PathBuf,
    identity: Option<(u64, u64)>,
    files: BTreeMap<PathBuf, Option<Arc<str>>>,
}

/// What the previous run has stored of this directory: nothing, with a warning, if the file cannot be read in time.
pub(super) async fn load(state_directory: &Path, directory: &Path) -> Option<LastValid> {
    let consequence = "services of files that are invalid now stay as they are in the kernel";
    let read = state_file::load(&state_directory.join(NAME), LIMITS.timeout, consequence, read).await;
    read.flatten().filter(|last| last.directory == directory)
}

/// The state file; it is not read.
pub(super) fn store(state_directory: &Path) -> SavedState<LastValid> {
    let consequence = "after a restart, services of files that are invalid then would stay as they are in the kernel";
    let write = |path: &Path, last: Arc<LastValid>| {
        let written = write(path, &last);
        if written.is_err() {
            // An older version must not come back.
            _ = fs::remove_file(path);
        }
        written
    };
    SavedState::new(LastValid::default(), StateFile::start(state_directory.join(NAME), consequence, LIMITS, write))
}

fn read(path: &Path) -> io::Result<Option<LastValid>> {
    let Some(form) = state_file::read_json::<Form>(path, MAX_BYTES, VERSION)? else { return Ok(None) };
    // In this boot, the kernel may have a newer version.
    if boot_id().is_ok_and(|boot| boot == form.boot) {
        state_file::replaceable(path)?;
    }
    Ok(Some(LastValid { directory: form.directory, identity: form.identity, texts: form.files }))
}

fn write(path: &Path, last: &LastValid) -> io::Result<()> {
    let bytes: usize = last.texts.values().flatten().map(|text| text.len()).sum();
    if bytes > MAX_TEXT {
        return Err(io::Error::other(format!("the service files have more than {MAX_TEXT} bytes together")));
    }
    // JSON has no paths that are not UTF-8.
    let files = last.texts.iter().filter(|(path, _)| path.to_str().is_some());
    let form = Form {
        version: VERSION,
        boot: boot_id()?,
        directory: last.directory.clone(),
        identity: last.identity,
        files: files.map(|(path, text)| (path.clone(), text.clone())).collect(),
    };
    state_file::write_json(path, &form)
}

#[cfg(test)]
#[path = "tests/last_valid.rs"]
mod tests;

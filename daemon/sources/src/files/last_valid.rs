//! The last valid version of each service file, kept in the state directory over a restart: a file that is invalid, or
//! a directory that cannot be read, when nodelb starts takes nothing from a service, as if nodelb had never stopped.
//! Owns the format of the state file: one JSON object per line, a header and then the files. A line that follows replaces
//! an earlier one of the same file, so that a change of one file costs one line.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use imbl::OrdMap;
use nodelb_core::map_diff::{key_of, sides};
use nodelb_host::clock::boot_id;
use nodelb_host::lines::{self, Lines};
use nodelb_host::state_file::{self, Limits, Reading, SavedState, StateFile};
use serde::{Deserialize, Serialize};

const NAME: &str = "services.jsonl";

/// The file of earlier versions: one JSON object, and read only if there is no other.
const FORMER: &str = "services.json";
const FORMER_VERSION: u32 = 1;

const VERSION: u32 = 2;

/// The maximum size in bytes of all versions together. A larger directory is not stored.
const MAX_TEXT: usize = 32 << 20;

/// The maximum size of the state file in bytes: most characters take one byte in JSON, and the file is rewritten when it is
/// twice as long as it could be.
const MAX_BYTES: usize = 4 * MAX_TEXT;

pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

const LIMITS: Limits = Limits { every: Duration::ZERO, retry: Duration::from_secs(10), timeout: TIMEOUT };

/// The directory when it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LastValid {
    pub(super) directory: PathBuf,
    /// Device and inode of the directory.
    pub(super) identity: Option<(u64, u64)>,
    /// The last valid version of each service file; `None` if it has had none.
    pub(super) files: OrdMap<PathBuf, Option<Version>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) text: Arc<str>,
    /// The inode that it was read from; `None` for a version that an earlier nodelb has stored.
    pub(super) inode: Option<u64>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    version: u32,
    boot: String,
    directory: PathBuf,
    identity: Option<(u64, u64)>,
}

/// What follows the header.
#[derive(Serialize, Deserialize)]
enum Line {
    File(PathBuf, Option<Version>),
    Gone(PathBuf),
}

/// The contents of [`FORMER`].
#[derive(Deserialize)]
struct Form {
    boot: String,
    directory: PathBuf,
    identity: Option<(u64, u64)>,
    files: BTreeMap<PathBuf, Option<Arc<str>>>,
}

/// Begins to read what the previous run has stored.
pub(super) fn begin(state_directory: &Path) -> Reading<Option<LastValid>> {
    let consequence = "services of files that are invalid now stay as they are in the kernel";
    Reading::begin(state_directory.join(NAME), consequence, read)
}

/// The state file; it is not read.
pub(super) fn store(state_directory: &Path) -> SavedState<LastValid> {
    let consequence = "after a restart, services of files that are invalid then would stay as they are in the kernel";
    let written = Mutex::new(None);
    let write = move |path: &Path, last: Arc<LastValid>| {
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        *written = write(path, last, written.take()).map(Some).inspect_err(|_| {
            // An older version must not come back.
            _ = fs::remove_file(path);
        })?;
        Ok(())
    };
    SavedState::empty(StateFile::start(state_directory.join(NAME), consequence, LIMITS, write))
}

pub(super) fn read(path: &Path) -> io::Result<Option<LastValid>> {
    let (boot, last) = match state_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let former = state_file::read_json(&path.with_file_name(FORMER), 2 * MAX_TEXT, FORMER_VERSION)?;
            let Some(Form { boot, directory, identity, files }) = former else { return Ok(None) };
            let version = |text: Option<Arc<str>>| text.map(|text| Version { text, inode: None });
            let files = files.into_iter().map(|(path, text)| (path, version(text))).collect();
            (boot, LastValid { directory, identity, files })
        }
        file => read_lines(path, BufReader::new(file?.take(MAX_BYTES as u64)))?,
    };
    // In this boot, the kernel may have a newer version.
    if boot_id().is_ok_and(|this| this == boot) {
        state_file::replaceable(path)?;
    }
    Ok(Some(last))
}

/// Reads a file with its boot. The last line has no end if a write did not finish, and is ignored like others that are
/// damaged.
fn read_lines(path: &Path, mut file: impl BufRead) -> io::Result<(String, LastValid)> {
    let mut line = Vec::new();
    file.read_until(b'\n', &mut line)?;
    let Some(header) = serde_json::from_slice::<Header>(&line).ok().filter(|header| header.version == VERSION) else {
        fs::rename(path, state_file::corrupt_path(path))?;
        let problem = "this nodelb does not support its format; it has been put aside";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    };
    let mut files = OrdMap::new();
    while !line.is_empty() {
        line.clear();
        file.read_until(b'\n', &mut line)?;
        match serde_json::from_slice(line.strip_suffix(b"\n").unwrap_or_default()) {
            Ok(Line::File(path, version)) => drop(files.insert(path, version)),
            Ok(Line::Gone(path)) => drop(files.remove(&path)),
            Err(_) => {}
        }
    }
    Ok((header.boot, LastValid { directory: header.directory, identity: header.identity, files }))
}

/// What the state file contains.
struct Written {
    header: Header,
    last: Arc<LastValid>,
    /// The size in bytes of all versions together.
    bytes: usize,
    lines: Lines,
}

/// Appends what has changed, or writes everything if the file is not the one of `before`, or has become too long.
fn write(path: &Path, last: Arc<LastValid>, before: Option<Written>) -> io::Result<Written> {
    let LastValid { directory, identity, .. } = &*last;
    let header = Header { version: VERSION, boot: boot_id()?, directory: directory.clone(), identity: *identity };
    let (is_same, before, stored, mut lines) = match before.filter(|before| before.header == header) {
        Some(Written { last, bytes, lines, .. }) => (true, last, bytes, lines),
        None => (false, Arc::default(), 0, Lines::default()),
    };
    let (changed, bytes) = changes(&before, &last, stored)?;
    if bytes > MAX_TEXT {
        return Err(io::Error::other(format!("the service files have more than {MAX_TEXT} bytes together")));
    }
    lines.write(path, is_same.then_some(&changed), |to| {
        lines::push(to, &header)?;
        let everything = if is_same { &changes(&LastValid::default(), &last, 0)?.0 } else { &changed };
        to.write_all(everything)
    })?;
    if !is_same {
        state_file::remove(&path.with_file_name(FORMER))?;
    }
    Ok(Written { header, last, bytes, lines })
}

/// The lines that make `after` from `before`, and the size in bytes of all versions of `after`, if that of `before` is
/// `bytes`. JSON has no paths that are not UTF-8.
fn changes(before: &LastValid, after: &LastValid, mut bytes: usize) -> io::Result<(Vec<u8>, usize)> {
    let mut lines = Vec::new();
    let size = |version: &Option<Version>| version.as_ref().map_or(0, |version| version.text.len());
    for item in before.files.diff(&after.files) {
        let (path, [old, new]) = (key_of(&item), sides(&item));
        bytes = (bytes + new.map_or(0, size)).saturating_sub(old.map_or(0, size));
        if path.to_str().is_some() {
            let gone = || Line::Gone(path.clone());
            lines::push(&mut lines, &new.map_or_else(gone, |new| Line::File(path.clone(), new.clone())))?;
        }
    }
    Ok((lines, bytes))
}

#[cfg(test)]
#[path = "tests/last_valid.rs"]
mod tests;

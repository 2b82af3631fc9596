//! The records in the state directory: one JSON object per line, append-only. When the file has grown large, it
//! replaces the previous file, so there are at most two. All readable lines are used: a line that a crash has cut off,
//! or that is invalid, loses only its own record.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodelb_core::history::Record;
use nodelb_kube::state_file;

/// The size in bytes above which a file is replaced by a new one.
const MAX_FILE: u64 = 4 << 20;

/// The maximum number of bytes that are read from the end of a file: more than one batch beyond [`MAX_FILE`].
const MAX_READ: u64 = 16 << 20;

/// The maximum length of a line in bytes; ten times the longest record.
const MAX_LINE: usize = 128 << 10;

/// Path of the file with the latest records.
pub(super) fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("history.jsonl")
}

fn old_path(state_directory: &Path) -> PathBuf {
    state_directory.join("history.old.jsonl")
}

/// The result of a read.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The records in the order of their numbers, each once.
    pub(super) records: Vec<Record>,
    /// Number of invalid lines.
    pub(super) unreadable: usize,
}

/// Reads the records. May block.
///
/// # Errors
/// If a file exists but cannot be read, or the directory cannot be created.
pub(super) fn read(directory: &Path) -> io::Result<Found> {
    fs::create_dir_all(directory)?;
    let mut found = Found::default();
    for path in [old_path(directory), path(directory)] {
        match state_file::open(&path) {
            Ok(file) => read_file(file, &mut found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.records.sort_by_key(|record| record.sequence);
    found.records.dedup_by_key(|record| record.sequence);
    Ok(found)
}

fn read_file(mut file: File, found: &mut Found) -> io::Result<()> {
    let skipped = file.metadata()?.len().saturating_sub(MAX_READ);
    file.seek(SeekFrom::Start(skipped))?;
    let mut reader = BufReader::new(file.take(MAX_READ));
    let mut line = Vec::new();
    // If the beginning of the file is skipped, the first line may be partial.
    let mut is_whole = skipped == 0;
    while reader.read_until(b'\n', &mut line)? > 0 {
        let record = (line.len() <= MAX_LINE).then(|| serde_json::from_slice(&line).ok()).flatten();
        match record {
            Some(record) => found.records.push(record),
            None if is_whole && !line.trim_ascii().is_empty() => found.unreadable += 1,
            None => {}
        }
        is_whole = true;
        line.clear();
    }
    Ok(())
}

/// Appends the records. May block.
///
/// # Errors
/// If the records cannot be written. Some may have been, the last one in part: the caller may write them again.
pub(super) fn append(directory: &Path, records: &[Arc<Record>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for record in records {
        serde_json::to_writer(&mut bytes, &**record)?;
        bytes.push(b'\n');
    }
    let path = path(directory);
    let mut file = state_file::append(&path)?;
    let mut length = file.metadata()?.len();
    if length > MAX_FILE {
        fs::rename(&path, old_path(directory))?;
        file = state_file::append(&path)?;
        length = 0;
    }
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    if last != *b"\n" {
        bytes.insert(0, b'\n');
    }
    file.write_all(&bytes)?;
    file.sync_data()
}

#[cfg(test)]
#[path = "tests/file.rs"]
mod tests;

//! Reads small files that may change at any time, such as credentials, with a size limit. Detects changes without
//! reading. Blocks.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::credstore;
use super::login::{CredentialsError, Piece};

/// The maximum size of a file in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Identifies the version of a file, after symbolic links are resolved: device, inode and size, and modification and
/// change time with nanoseconds; or the error if they are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    Version([u64; 3], [i64; 4]),
    Missing(io::ErrorKind),
}

impl Stamp {
    fn read(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(file) => Self::Version(
                [file.dev(), file.ino(), file.size()],
                [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()],
            ),
            Err(error) => Self::Missing(error.kind()),
        }
    }
}

/// Reads files, and records the metadata of each just before, so that a change during the read is detected the next
/// time.
#[derive(Debug, Default)]
pub(super) struct Reading {
    stamps: BTreeMap<PathBuf, Stamp>,
}

impl Reading {
    /// Whether one of the files has changed, or none was read yet.
    pub(super) fn is_outdated(&self) -> bool {
        self.stamps.is_empty() || self.stamps.iter().any(|(path, stamp)| Stamp::read(path) != *stamp)
    }

    /// Every file that was read or could not be read.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.stamps.keys().cloned().collect()
    }

    /// Reads a whole file.
    pub(super) fn read(&mut self, path: &Path) -> Result<Piece<Vec<u8>>, CredentialsError> {
        self.stamps.insert(path.to_owned(), Stamp::read(path));
        let origin = path.display().to_string();
        match read(path) {
            Ok(content) => Ok(Piece { content, origin }),
            Err(error) => {
                let remedy = credstore::remedy(path, &error).map(|remedy| format!("; {remedy}")).unwrap_or_default();
                Err(CredentialsError(format!("{origin} cannot be read: {error}{remedy}")))
            }
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
#[path = "tests/files.rs"]
mod tests;

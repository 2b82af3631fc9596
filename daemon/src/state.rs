//! Files of the state directory: how each of them is opened and replaced. What is in them is their owners' business.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file for reading; neither a link nor a pipe that nobody writes to. May block.
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Replaces the file at `path`, whole or not at all: `write` fills `new`, which then takes its place. May block.
///
/// # Errors
/// What `write` or the file system says; the file is as it was then.
pub(crate) fn replace(path: &Path, new: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    // What an earlier run left half written may belong to somebody else, or be a link or a pipe.
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    write(&file)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

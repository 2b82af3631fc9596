//! The file of the Unix socket: it is created, replaced if it is left over from a previous daemon, and removed at the
//! end. Files that are not nodelb's are never touched: a file that is not a socket, or a socket with a listening
//! process.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Type};

/// Access for root and for the group of the daemon.
const MODE: u32 = 0o660;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("its directory does not exist: create it, or start nodelb with its systemd unit")]
    NoDirectory,
    #[error("the path exists and is not a socket: move it away, or choose another path")]
    Foreign,
    #[error("another process listens on it, perhaps a second nodelb")]
    InUse,
    #[error(transparent)]
    Other(#[from] io::Error),
}

/// A listening socket. Dropping it removes its file, unless the path has another file by then.
#[derive(Debug)]
pub struct Socket {
    /// `None` once it is served.
    pub(crate) listener: Option<UnixListener>,
    path: PathBuf,
    file: (u64, u64),
}

impl Socket {
    pub fn open(path: &Path) -> Result<Self, Error> {
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NoDirectory,
            ErrorKind::AddrInUse => Error::InUse,
            _ => Error::Other(error),
        })?;
        // Until this call, the mode depends on the umask. That does no harm: only root may change anything.
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        let file = identity(path)?;
        Ok(Self { listener: Some(listener), path: path.to_path_buf(), file })
    }

    /// Whether the path still leads to this socket.
    pub(crate) fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|file| file == self.file)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            // A file that cannot be removed is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of the file, without following links.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Removes a socket that no process listens on.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !file.file_type().is_socket() {
        return Err(Error::Foreign);
    }
    match try_connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(fs::remove_file(path)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Error::InUse),
    }
}

/// Connects without blocking: a process that listens but does not accept cannot delay the start of the daemon.
fn try_connect(path: &Path) -> io::Result<()> {
    let stream = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match stream.connect(&SockAddr::unix(path)?) {
        // The queue of the listening socket is full.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[path = "tests/socket.rs"]
mod tests;

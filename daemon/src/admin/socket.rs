//! The file of the unix socket: made, replaced if a daemon that is gone left it behind, removed at the end. Never touches
//! what is not its own: a file that is no socket, or one that somebody listens on.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Type};

/// Root, and the group the daemon runs as.
const MODE: u32 = 0o660;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Where it should be made.
    #[error("its directory does not exist: make it, or start nodelb by its unit, which does")]
    NoDirectory,
    /// Somebody else's.
    #[error("there is something else that is no socket: move it away, or choose another path")]
    Foreign,
    /// Another daemon's.
    #[error("another process listens on it, perhaps a second nodelb")]
    InUse,
    /// Anything else.
    #[error(transparent)]
    Other(#[from] io::Error),
}

/// A socket that is listened on. Its file is removed when this is dropped, unless it is somebody else's by then.
#[derive(Debug)]
pub struct Socket {
    listener: Option<UnixListener>,
    path: PathBuf,
    file: (u64, u64),
}

impl Socket {
    /// Listens on the path.
    ///
    /// # Errors
    /// When it cannot be made there.
    pub fn open(path: &Path) -> Result<Self, Error> {
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NoDirectory,
            ErrorKind::AddrInUse => Error::InUse,
            _ => Error::Other(error),
        })?;
        // There is nothing to be had before that: the API only reads.
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        let file = identity(path)?;
        Ok(Self { listener: Some(listener), path: path.to_path_buf(), file })
    }

    /// The listener, once.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // What cannot be removed is replaced by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of what is there, links not followed.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Removes a socket that nobody listens on.
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

/// Connects without waiting: a process that listens and does not accept keeps no daemon from starting.
fn try_connect(path: &Path) -> io::Result<()> {
    let stream = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match stream.connect(&SockAddr::unix(path)?) {
        // Its queue is full.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

#[cfg(test)]
#[path = "tests/socket.rs"]
mod tests;

//! Opens, reads and replaces the files of the state directory, and renames a file that cannot be parsed. The callers
//! define the contents of their files.
//!
//! Access to the state directory may block, for example if its file system is unreachable or the disk hangs. Therefore,
//! all access runs in dedicated threads ([`aside`]). No task waits for them without a time limit, and neither does the
//! end of the process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use tokio::sync::oneshot;

/// Opens a regular file for reading. Does not follow a symbolic link, and does not block on a named pipe that has no
/// writer. The file system may block.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Opens a file for appending and reading, and creates it if it does not exist. Like [`open`], refuses anything but a
/// regular file. The file system may block.
///
/// # Errors
/// The file cannot be opened or created, or is not a regular file.
pub fn append(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = File::options();
    let options = options.read(true).append(true).create(true).mode(0o600).custom_flags(flags.bits());
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Replaces the file at `path` atomically: `write` fills the file `new`, which is then renamed to `path`. May block.
///
/// # Errors
/// The error of `write` or of the file system. The file at `path` is unchanged unless the rename has succeeded.
pub fn replace(path: &Path, new: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    // A file that an earlier run left incomplete may belong to another user, or may be a link or a pipe.
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

/// Reads a file of at most `max_bytes` bytes and parses it with `understand`. `None` if the file does not exist. May
/// block.
///
/// # Errors
/// A sentence that states the problem and the consequence. A file that is too large or cannot be parsed has been
/// renamed.
pub fn load<T>(
    path: &Path,
    max_bytes: u64,
    understand: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match read(path, max_bytes + 1) {
        Ok(bytes) if bytes.len() as u64 > max_bytes => Err(put_aside(path, &format!("it exceeds {max_bytes} bytes"))),
        Ok(bytes) => understand(&bytes).map(Some).map_err(|why| put_aside(path, &why)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}; starting without the state in it", path.display())),
    }
}

fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Renames the file, so that it is not read again but can still be examined. Returns the text of the error.
fn put_aside(path: &Path, why: &str) -> String {
    let aside = place_aside(path);
    let done = match fs::rename(path, &aside) {
        Ok(()) => format!("renamed to {}", aside.display()),
        Err(error) => format!("it cannot be renamed either ({error})"),
    };
    format!("{} is not usable: {why}; {done}; starting without the state in it", path.display())
}

/// The name that [`load`] gives to a file that it cannot use.
pub fn place_aside(path: &Path) -> PathBuf {
    path.with_extension("json.corrupt")
}

/// Runs work that may block forever in its own thread. Unlike a blocking task of the runtime, such a thread does not
/// prevent the process from ending.
///
/// # Errors
/// The error of `work`, or the thread could not be started.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    begin(work)?.await.map_err(io::Error::other)?
}

/// Like [`aside`], for a caller that polls for the result.
///
/// # Errors
/// The thread could not be started.
pub fn begin<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<oneshot::Receiver<io::Result<T>>> {
    let (done, result) = oneshot::channel();
    let run = move || {
        // The receiver may have been dropped.
        _ = done.send(work());
    };
    std::thread::Builder::new().name("state".into()).spawn(run)?;
    Ok(result)
}

//! Files of the state directory: how each of them is opened, replaced and, if it is of no use, put aside. What is in them is
//! their owners' business.
//!
//! A state directory may block: a file system that is away, a disk that hangs. So files are touched in threads of their
//! own ([`aside`]), which nobody waits for without a limit, the end of the process included.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use tokio::sync::oneshot;

/// Opens a file for reading; neither a link nor a pipe that nobody writes to. May block.
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Opens a file to be appended to and read, or makes it; the same refusals. May block.
///
/// # Errors
/// When it cannot be opened or made, or is no regular file.
pub fn append(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = File::options();
    let options = options.read(true).append(true).create(true).mode(0o600).custom_flags(flags.bits());
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Replaces the file at `path`, whole or not at all: `write` fills `new`, which then takes its place. May block.
///
/// # Errors
/// What `write` or the file system says; the file is as it was then.
pub fn replace(path: &Path, new: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
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

/// Reads a file of at most so many bytes and understands it; `None` where there is none. May block.
///
/// # Errors
/// What is wrong with it, and what has become of it, in words. One that cannot be understood has been put aside.
pub fn load<T>(
    path: &Path,
    max_bytes: u64,
    understand: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match read(path, max_bytes + 1) {
        Ok(bytes) if bytes.len() as u64 > max_bytes => {
            Err(put_aside(path, &format!("it is larger than {max_bytes} bytes")))
        }
        Ok(bytes) => understand(&bytes).map(Some).map_err(|why| put_aside(path, &why)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}; going on without what it remembers", path.display())),
    }
}

fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Keeps the file from being read again, and for whoever wants to look into it.
fn put_aside(path: &Path, why: &str) -> String {
    let aside = place_aside(path);
    let done = match fs::rename(path, &aside) {
        Ok(()) => format!("put aside as {}", aside.display()),
        Err(error) => format!("it cannot be put aside either ({error})"),
    };
    format!("{} is of no use: {why}; {done}, going on without what it remembers", path.display())
}

/// Where a file of no use is put.
pub fn place_aside(path: &Path) -> PathBuf {
    path.with_extension("json.corrupt")
}

/// Runs what may block for ever in a thread of its own. Unlike a runtime's blocking tasks, it does not keep the process
/// from ending.
///
/// # Errors
/// Its own, and when there can be no thread.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    begin(work)?.await.map_err(io::Error::other)?
}

/// The same, for whoever looks for the result from time to time.
///
/// # Errors
/// When there can be no thread.
pub fn begin<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<oneshot::Receiver<io::Result<T>>> {
    let (done, result) = oneshot::channel();
    let run = move || {
        // Nobody may wait for it any more.
        _ = done.send(work());
    };
    std::thread::Builder::new().name("state".into()).spawn(run)?;
    Ok(result)
}

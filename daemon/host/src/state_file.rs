//! The files of the state directory: opens, reads and replaces them safely, and writes a file whenever its contents
//! change ([`StateFile`]). The users define the contents.
//!
//! Access to the state directory may block, for example if its file system is unreachable or the disk hangs. Therefore,
//! each access runs in its own thread, one at a time for each file. No task waits for a thread without a time limit, and
//! neither does the end of the process.

use std::fs::{self, File};
use std::future::pending;
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use crate::threads::{Threads, run_within, timed_out};
use crate::{clock, messages, unwritten};

/// Opens a regular file for reading. Does not follow a symbolic link, and does not block on a named pipe that has no
/// writer. The file system may block.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path)
}

/// Opens a file for appending and reading, and creates it if it does not exist. Like [`open`], refuses anything but a
/// regular file. The file system may block.
pub fn append(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true).append(true).create(true).mode(0o600), path)
}

fn open_with(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path)?;
    let is_file = file.metadata()?.is_file();
    is_file.then_some(file).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is not a file"))
}

/// Removes a file. Returns whether it existed. May block.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces the file at `path` atomically: `write` fills the file `new`, which is then renamed to `path`. Creates the
/// directory if it does not exist. May block.
///
/// # Errors
/// The error of `write` or of the file system. The file at `path` is unchanged unless the rename has succeeded.
pub fn replace(path: &Path, new: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    // A file that an earlier run left incomplete may belong to another user, or may be a link or a pipe.
    remove(new)?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    write(&file)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Replaces a JSON file atomically. May block.
///
/// # Errors
/// The contents have more than `max_bytes` bytes, which [`read_json`] would not read, or the file cannot be replaced. It is
/// unchanged.
pub fn write_json(path: &Path, max_bytes: usize, contents: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(contents)?;
    bytes.push(b'\n');
    if bytes.len() > max_bytes {
        let why = format!("it would have {} bytes, and a start reads at most {max_bytes}", bytes.len());
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    replace(path, &path.with_extension("json.new"), |mut file| file.write_all(&bytes))
}

/// Reads a JSON file of at most `max_bytes` bytes, with this value in its field `version`. `None` if the file does not
/// exist. May block.
///
/// # Errors
/// The file cannot be read or decoded. A file that cannot be decoded has been renamed ([`corrupt_path`]), so that it is
/// not read again but can still be examined.
pub fn read_json<T: DeserializeOwned>(path: &Path, max_bytes: usize, version: u32) -> io::Result<Option<T>> {
    let mut bytes = Vec::new();
    match open(path).and_then(|file| file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let decoded =
        if bytes.len() > max_bytes { Err(format!("it exceeds {max_bytes} bytes")) } else { decode(&bytes, version) };
    decoded.map(Some).map_err(|problem| {
        let corrupt = corrupt_path(path);
        let renamed = match fs::rename(path, &corrupt) {
            Ok(()) => format!("it has been renamed to {}", corrupt.display()),
            Err(error) => format!("it cannot be renamed ({error})"),
        };
        io::Error::new(ErrorKind::InvalidData, format!("{problem}; {renamed}"))
    })
}

/// Fails with [`ErrorKind::InvalidData`] if the previous run may have been unable to replace the JSON file after its last
/// change, because no file can be created or removed next to it. May block.
pub fn replaceable(path: &Path) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let created = remove(&new).and_then(|_existed| File::options().write(true).create_new(true).open(&new));
    let removed = created.and_then(|_| fs::remove_file(&new));
    removed.map_err(|error| {
        let why = format!("it may be outdated, because it cannot be replaced: {error}");
        io::Error::new(ErrorKind::InvalidData, why)
    })
}

fn decode<T: DeserializeOwned>(bytes: &[u8], version: u32) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Header {
        version: u32,
    }
    let header: Header = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if header.version != version {
        return Err(format!("it has version {}, and this nodelb supports version {version}", header.version));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// The name that [`read_json`] gives to a file that it cannot decode.
pub fn corrupt_path(path: &Path) -> PathBuf {
    path.with_extension("json.corrupt")
}

/// Reads a file at start. If this fails or takes too long, logs a warning with the `consequence` and returns `None`.
pub async fn load<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    consequence: &str,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Option<T> {
    let file = path.to_owned();
    let loaded = run_within(limit, move || read(&file)).await;
    loaded.inspect_err(|problem| warn_unreadable(path, problem, consequence)).ok()
}

fn warn_unreadable(path: &Path, problem: &io::Error, consequence: &str) {
    let path = path.display();
    warn!(message_id = %messages::STATE_UNREADABLE, "{path} cannot be read: {problem}; {consequence}");
}

/// How long a start waits for the files of the previous run, all together: a disk answers within milliseconds, and
/// connections wait for the start.
pub const START: Duration = Duration::from_secs(1);

/// The time until a file is read again after a failure.
const READ_AGAIN: Duration = Duration::from_secs(10);

type ReadFn<T> = dyn Fn(&Path) -> io::Result<T> + Send + Sync;

/// A file of the previous run, until it has been read. What the disk does not answer in time is unread, not empty: it is
/// read as soon as the disk answers. A file of no use ([`ErrorKind::InvalidData`]) is empty.
pub struct Reading<T> {
    path: PathBuf,
    consequence: &'static str,
    read: Arc<ReadFn<T>>,
    threads: Threads,
    under_way: Option<oneshot::Receiver<io::Result<T>>>,
    begun: Instant,
    /// The time of the next attempt.
    again: Instant,
}

impl<T: Default + Send + 'static> Reading<T> {
    /// Begins to read. `read` may block. `consequence` completes the sentence that the file cannot be read.
    pub fn begin(
        path: PathBuf,
        consequence: &'static str,
        read: impl Fn(&Path) -> io::Result<T> + Send + Sync + 'static,
    ) -> Self {
        let (threads, begun) = (Threads::new("state", 1), Instant::now());
        let read = Arc::new(read);
        let mut reading = Self { path, consequence, read, threads, under_way: None, begun, again: begun };
        reading.attempt();
        reading
    }

    fn attempt(&mut self) {
        let (read, path) = (Arc::clone(&self.read), self.path.clone());
        self.under_way = self.threads.begin(move || read(&path)).ok();
        self.again = Instant::now() + READ_AGAIN;
    }

    /// What is in the file; `None` if the attempt fails or exceeds the time limit, which counts from the beginning. That is a
    /// problem until [`Self::wait`] returns.
    pub async fn within(&mut self, limit: Duration) -> Option<T> {
        let read = clock::by(self.begun + limit, self.result()).await;
        read.unwrap_or_else(|_late| {
            unwritten::unread(&self.path, &timed_out(limit), self.consequence);
            None
        })
    }

    /// What is in the file, as soon as the disk answers; nothing, with a warning, if the file is damaged. May be dropped
    /// and called again.
    pub async fn wait(&mut self) -> T {
        loop {
            if let Some(read) = self.result().await {
                return read;
            }
            sleep_until(self.again).await;
            self.attempt();
        }
    }

    /// [`Self::wait`] for a file that may be unread; never returns if it is not.
    pub async fn late(unread: &mut Option<Self>) -> T {
        let Some(reading) = unread else { return pending().await };
        let read = reading.wait().await;
        *unread = None;
        read
    }

    /// The result of the attempt that is under way.
    async fn result(&mut self) -> Option<T> {
        let result = self.under_way.as_mut()?.await.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        self.under_way = None;
        match result {
            Err(error) if error.kind() != ErrorKind::InvalidData => {
                unwritten::unread(&self.path, &error, self.consequence);
                None
            }
            result => {
                unwritten::read(&self.path);
                Some(
                    result
                        .inspect_err(|error| warn_unreadable(&self.path, error, self.consequence))
                        .unwrap_or_default(),
                )
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The minimum time between the beginnings of two writes. The first write is not delayed.
    pub every: Duration,
    /// The time until the next write after a failed one.
    pub retry: Duration,
    /// A warning is logged if a write takes longer than this, and the time limit of [`StateFile::close`].
    pub timeout: Duration,
}

/// A file that a task of its own writes whenever its contents change.
pub struct StateFile<T> {
    contents: watch::Sender<Wanted<T>>,
    written: watch::Receiver<Written>,
    task: JoinHandle<()>,
    file: Arc<Described<T>>,
}

/// The contents that the file is to have; their number; and whether a task waits for them.
#[derive(Clone)]
struct Wanted<T> {
    contents: Option<T>,
    number: u64,
    is_awaited: bool,
}

/// The number of the contents that were written last, and the error if that has failed.
type Written = (u64, Option<Arc<io::Error>>);

type Write<T> = dyn Fn(&Path, T) -> io::Result<()> + Send + Sync;

struct Described<T> {
    path: PathBuf,
    consequence: &'static str,
    limits: Limits,
    write: Box<Write<T>>,
}

impl<T: Clone + Send + Sync + 'static> StateFile<T> {
    /// Starts the task. `write` writes the file and may block. `consequence` completes the warning that the file cannot
    /// be written.
    pub fn start(
        path: PathBuf,
        consequence: &'static str,
        limits: Limits,
        write: impl Fn(&Path, T) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (contents, latest) = watch::channel(Wanted { contents: None, number: 0, is_awaited: false });
        let (written_in, written) = watch::channel((0, None));
        let file = Arc::new(Described { path, consequence, limits, write: Box::new(write) });
        let threads = Threads::new("state", 1);
        let writer = Writer { file: Arc::clone(&file), latest, written: written_in, threads, has_failed: false };
        Self { contents, written, task: tokio::spawn(writer.run()), file }
    }

    /// Writes these contents soon, unless newer ones follow. Never waits.
    pub fn save(&self, contents: T) {
        self.set(contents, false);
    }

    fn set(&self, contents: T, is_awaited: bool) -> u64 {
        self.contents.send_modify(|wanted| {
            let number = wanted.number + 1;
            *wanted = Wanted { contents: Some(contents), number, is_awaited };
        });
        self.contents.borrow().number
    }

    /// Writes these contents at once, and waits until the file has them, within the time limit.
    ///
    /// # Errors
    /// The file does not have them, and gets them soon unless other contents follow.
    pub async fn store(&self, contents: T) -> io::Result<()> {
        let number = self.set(contents, true);
        let mut written = self.written.clone();
        let ended = timeout(self.file.limits.timeout, written.wait_for(|(ended, _)| *ended >= number)).await;
        match ended {
            Ok(Ok(result)) => {
                result.1.as_ref().map_or(Ok(()), |error| Err(io::Error::new(error.kind(), Arc::clone(error))))
            }
            Ok(Err(closed)) => Err(io::Error::other(closed)),
            Err(_elapsed) => Err(timed_out(self.file.limits.timeout)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Waits until the latest contents are written, within the time limit.
    pub async fn close(self) {
        drop(self.contents);
        if timeout(self.file.limits.timeout, self.task).await.is_err() {
            unwritten::warn(&self.file.path, &timed_out(self.file.limits.timeout), self.file.consequence);
        }
    }
}

/// A [`StateFile`] that continues what the previous run has stored: it is written only if its contents change, and not
/// before it has been read.
pub struct SavedState<T> {
    file: StateFile<Arc<T>>,
    /// The latest contents.
    saved: Arc<T>,
    /// What the previous run has stored, until it has been read.
    unread: Option<Reading<T>>,
}

impl<T: Clone + Default + PartialEq + Send + Sync + 'static> SavedState<T> {
    /// [`Self::load`] of this file at the start of the daemon, with what follows if it cannot be read, and if it cannot be
    /// written.
    pub async fn open(
        path: PathBuf,
        [unread, unwritten]: [&'static str; 2],
        limits: Limits,
        read: impl Fn(&Path) -> io::Result<T> + Send + Sync + 'static,
        write: impl Fn(&Path, &T) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let reading = Reading::begin(path.clone(), unread, read);
        let file = StateFile::start(path, unwritten, limits, move |path, contents: Arc<T>| write(path, &contents));
        Self::load(reading, START, file).await
    }

    /// The state in a file that is being read. What is read within the time limit, which counts from the beginning, is
    /// [`Self::saved`], and what is read later is [`Self::late`].
    pub async fn load(mut reading: Reading<T>, limit: Duration, file: StateFile<Arc<T>>) -> Self {
        match reading.within(limit).await {
            Some(saved) => Self { file, saved: Arc::new(saved), unread: None },
            None => Self { file, saved: Arc::default(), unread: Some(reading) },
        }
    }

    /// The file, which is written when there are contents, whatever it has.
    pub fn empty(file: StateFile<Arc<T>>) -> Self {
        Self { file, saved: Arc::default(), unread: None }
    }

    pub fn saved(&self) -> &T {
        &self.saved
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What the previous run has stored, when the disk answers at last; never returns otherwise. Everything that is known by
    /// then is newer, and is to be saved with it. May be dropped and called again.
    pub async fn late(&mut self) -> T {
        self.saved = Arc::new(Reading::late(&mut self.unread).await);
        T::clone(&self.saved)
    }

    /// Writes the contents soon if they differ from the latest ones, unless the file is unread. Never waits.
    pub fn save(&mut self, contents: T) {
        if self.unread.is_none() && contents != *self.saved {
            self.saved = Arc::new(contents);
            self.file.save(Arc::clone(&self.saved));
        }
    }

    /// Writes the last contents if they differ from the latest ones, within the time limit.
    pub async fn close(mut self, contents: T) {
        self.save(contents);
        self.file.close().await;
    }
}

struct Writer<T> {
    file: Arc<Described<T>>,
    latest: watch::Receiver<Wanted<T>>,
    written: watch::Sender<Written>,
    threads: Threads,
    has_failed: bool,
}

impl<T: Clone + Send + Sync + 'static> Writer<T> {
    async fn run(mut self) {
        let (mut begun, mut is_written) = (None, true);
        let mut is_outdated = false;
        loop {
            let Limits { every, retry, .. } = self.file.limits;
            let interval = if is_written { every } else { retry };
            let next = begun.map_or_else(Instant::now, |begun: Instant| begun + interval);
            tokio::select! {
                biased;
                changed = self.latest.changed() => match changed {
                    Ok(()) => {
                        is_outdated = true;
                        if self.latest.borrow_and_update().is_awaited {
                            begun = None;
                        }
                    }
                    Err(_) => break,
                },
                () = sleep_until(next), if is_outdated => {
                    begun = Some(Instant::now());
                    is_written = self.write().await;
                    is_outdated = !is_written;
                }
            }
        }
        // The file is being closed: the last contents are not delayed, and a failure is final.
        if is_outdated {
            self.write().await;
        }
    }

    /// Writes the latest contents. Returns whether the file has them.
    async fn write(&mut self) -> bool {
        let Wanted { contents: Some(contents), number, .. } = self.latest.borrow_and_update().clone() else {
            return true;
        };
        let (file, limit) = (Arc::clone(&self.file), self.file.limits.timeout);
        let mut writing = pin!(self.threads.run(move || (file.write)(&file.path, contents)));
        if let Ok(result) = timeout(limit, &mut writing).await {
            return self.note(number, result);
        }
        // While the file is being closed, `close` logs this.
        if self.latest.has_changed().is_ok() {
            unwritten::note(&self.file.path, &Err(timed_out(limit)), self.file.consequence, &mut self.has_failed);
        }
        let result = writing.await;
        self.note(number, result)
    }

    /// Reports the result of a write. Returns whether it has succeeded.
    fn note(&mut self, number: u64, result: io::Result<()>) -> bool {
        unwritten::note(&self.file.path, &result, self.file.consequence, &mut self.has_failed);
        self.written.send_replace((number, result.err().map(Arc::new)));
        !self.has_failed
    }
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
mod tests;

//! The file system as a scan of the services directory uses it. Every call blocks while it does not answer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};

/// What distinguishes versions of a file, or of the entries of a directory, without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) kind: FileType,
    /// In bytes.
    pub(super) size: u64,
    /// The time of the last modification, and that of the last change of any kind: seconds and nanoseconds.
    pub(super) times: [(i64, u64); 2],
}

impl Stat {
    /// Whether nothing has changed for this long, by the clock of the file system. False if that is ahead.
    pub(super) fn is_older(&self, than: Duration, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = |(seconds, nanoseconds): &(i64, u64)| {
            Duration::from_secs(u64::try_from(*seconds).unwrap_or_default()) + Duration::from_nanos(*nanoseconds)
        };
        self.times.iter().all(|it| now.checked_sub(time(it)).is_some_and(|age| age >= than))
    }
}

impl From<rustix::fs::Stat> for Stat {
    fn from(stat: rustix::fs::Stat) -> Self {
        Self {
            identity: (stat.st_dev, stat.st_ino),
            kind: FileType::from_raw_mode(stat.st_mode),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            times: [(stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec)],
        }
    }
}

/// The steps of a scan. Names are looked up in the directory that was opened: its path may lead to another one meanwhile.
pub(super) trait FileSystem {
    type Directory;
    type File;
    fn now(&self) -> Instant;
    fn open_directory(&self, path: &Path) -> io::Result<Self::Directory>;
    fn stat_directory(&self, directory: &Self::Directory) -> io::Result<Stat>;
    fn next_name(&self, directory: &mut Self::Directory) -> io::Result<Option<OsString>>;
    /// The file that the name leads to.
    fn stat(&self, directory: &Self::Directory, name: &OsStr) -> io::Result<Stat>;
    /// Whether the file may change without an event about the name: it is a symbolic link, or has other names.
    fn is_linked(&self, directory: &Self::Directory, name: &OsStr) -> bool;
    /// Whether there is such a name, even if it is a link to nothing.
    fn exists(&self, directory: &Self::Directory, name: &OsStr) -> bool;
    fn open(&self, directory: &Self::Directory, name: &OsStr) -> io::Result<Self::File>;
    fn stat_file(&self, file: &Self::File) -> io::Result<Stat>;
    /// At most this number of bytes, from the beginning.
    fn read(&self, file: &Self::File, at_most: u64) -> io::Result<Vec<u8>>;
    /// Whether a process has it open for writing; `None` if the kernel does not tell.
    fn is_being_written(&self, file: &Self::File) -> Option<bool>;
}

/// Whether a process has the file open for writing; `None` if the kernel does not tell.
pub type IsOpenForWriting = fn(BorrowedFd<'_>) -> Option<bool>;

pub(super) struct System(pub(super) IsOpenForWriting);

impl FileSystem for System {
    type Directory = Dir;
    type File = File;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn open_directory(&self, path: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Dir::new(openat(CWD, path, flags, Mode::empty())?)?)
    }

    fn stat_directory(&self, directory: &Dir) -> io::Result<Stat> {
        Ok(directory.stat()?.into())
    }

    fn next_name(&self, directory: &mut Dir) -> io::Result<Option<OsString>> {
        let Some(entry) = directory.read().transpose()? else { return Ok(None) };
        Ok(Some(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()))
    }

    fn stat(&self, directory: &Dir, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(directory.fd()?, name, AtFlags::empty())?.into())
    }

    fn is_linked(&self, directory: &Dir, name: &OsStr) -> bool {
        let stat = directory.fd().and_then(|fd| statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink || stat.st_nlink > 1)
    }

    fn exists(&self, directory: &Dir, name: &OsStr) -> bool {
        directory.fd().and_then(|fd| statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)).is_ok()
    }

    /// Never waits for another process, even if a FIFO has just replaced the file.
    fn open(&self, directory: &Dir, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(directory.fd()?, name, flags, Mode::empty())?.into())
    }

    fn stat_file(&self, file: &File) -> io::Result<Stat> {
        Ok(fstat(file)?.into())
    }

    fn read(&self, mut file: &File, at_most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut file).take(at_most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn is_being_written(&self, file: &File) -> Option<bool> {
        (self.0)(file.as_fd())
    }
}

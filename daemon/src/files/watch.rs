//! inotify on the services directory and on its parent. Reports that a scan is due, which files were touched, and which
//! a process is writing. A lost event does no harm: the directory is also scanned periodically.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::scan::Hints;

/// A file that was written to but not closed counts as final this long after the last write: `truncate(2)` opens
/// nothing that could be closed.
const WRITER_FORGOTTEN: Duration = Duration::from_secs(60);

pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    /// The kernel's queue of the same events.
    queue: OwnedFd,
    directory: Option<WatchDescriptor>,
    parent: Option<WatchDescriptor>,
    /// Name of the directory in its parent.
    name: OsString,
    notes: Notes,
}

/// The hints from the events since the last scan.
#[derive(Default)]
struct Notes {
    touched: BTreeSet<OsString>,
    everything: bool,
    /// Whether one of the events is a reason to scan.
    is_reason: bool,
    /// The files that a process is writing, with the time of the last write. Kept between scans.
    writing: BTreeMap<OsString, Instant>,
}

/// The events that can change the content of the directory; `MODIFY` shows that a process has begun to write.
fn in_directory() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::CLOSE_WRITE
        | WatchMask::ATTRIB
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
}

/// The events that can replace the directory.
fn in_parent() -> WatchMask {
    WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::ATTRIB | WatchMask::ONLYDIR
}

impl Watch {
    /// A watch without any path.
    ///
    /// # Errors
    /// If the kernel's limit of inotify instances is reached.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let queue = inotify.as_fd().try_clone_to_owned()?;
        let events = inotify.into_event_stream(vec![0; 16 << 10])?;
        Ok(Self { events, queue, directory: None, parent: None, name: OsString::new(), notes: Notes::default() })
    }

    /// Returns the object that adds watches for a path, for use in a thread that may block.
    pub(super) fn follower(&self) -> Follower {
        Follower(self.events.watches())
    }

    /// Replaces the watched paths by these; events of other watches are ignored from now on.
    pub(super) fn followed(&mut self, Followed { name, parent, directory }: Followed) {
        self.name = name;
        let mut watches = self.events.watches();
        let is_other = self.directory != directory;
        let mut replace = |old: &mut Option<WatchDescriptor>, new: Option<WatchDescriptor>| {
            if let Some(old) = std::mem::replace(old, new.clone()).filter(|old| Some(old) != new.as_ref()) {
                // Fails if the watched object, and with it the watch, no longer exists.
                let _gone = watches.remove(old);
            }
        };
        replace(&mut self.parent, parent);
        replace(&mut self.directory, directory);
        if is_other {
            self.notes.writing.clear();
        }
    }

    /// Waits for a reason to scan the directory. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            self.drain().await?;
            if std::mem::take(&mut self.notes.is_reason) {
                return Ok(());
            }
            self.next().await?;
        }
    }

    pub(super) async fn drain(&mut self) -> io::Result<()> {
        loop {
            match self.next().now_or_never() {
                Some(next) => next?,
                // The runtime may not have noticed yet that the queue has events.
                None if self.is_queued()? => self.next().await?,
                None => return Ok(()),
            }
        }
    }

    async fn next(&mut self) -> io::Result<()> {
        let event = self.events.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        let place = if Some(&event.wd) == self.directory.as_ref() {
            Place::Inside
        } else if Some(&event.wd) == self.parent.as_ref() && event.name.as_ref() == Some(&self.name) {
            Place::Itself
        } else {
            Place::Elsewhere
        };
        self.notes.is_reason |= self.notes.take(event, place);
        Ok(())
    }

    fn is_queued(&self) -> io::Result<bool> {
        let mut queue = [PollFd::new(self.queue.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut queue, PollTimeout::ZERO)? > 0)
    }

    pub(super) fn take_hints(&mut self) -> Hints {
        self.notes.writing.retain(|_, last| last.elapsed() < WRITER_FORGOTTEN);
        Hints {
            touched: std::mem::take(&mut self.notes.touched),
            everything: std::mem::take(&mut self.notes.everything),
            writing: self.writing(),
            believe_empty: false,
        }
    }

    pub(super) fn writing(&self) -> BTreeSet<OsString> {
        self.notes.writing.keys().cloned().collect()
    }
}

/// See [`Watch::follower`].
pub(super) struct Follower(Watches);

pub(super) struct Followed {
    name: OsString,
    parent: Option<WatchDescriptor>,
    directory: Option<WatchDescriptor>,
}

impl Follower {
    /// Watches the directory that is at this path now. Must be called before every scan, because the path names another
    /// directory after a replacement. Blocks while the file system does not answer.
    pub(super) fn follow(mut self, directory: &Path) -> Followed {
        let name = directory.file_name().unwrap_or_default().to_owned();
        let parent = directory.parent().and_then(|parent| self.0.add(parent, in_parent()).ok());
        let directory = self.0.add(directory, in_directory()).ok();
        Followed { name, parent, directory }
    }
}

enum Place {
    Inside,
    /// The directory's name in its parent.
    Itself,
    Elsewhere,
}

impl Notes {
    /// Processes an event; returns whether it is a reason to scan.
    fn take(&mut self, event: EventOwned, place: Place) -> bool {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            self.everything = true;
            self.writing.clear();
            return true;
        }
        match (place, event.name) {
            (Place::Elsewhere, _) => false,
            (Place::Itself, _) | (Place::Inside, None) => true,
            (Place::Inside, Some(name)) if event.mask.contains(EventMask::MODIFY) => {
                self.writing.insert(name, Instant::now());
                false
            }
            (Place::Inside, Some(name)) => {
                let ends = EventMask::CLOSE_WRITE | EventMask::MOVED_FROM | EventMask::MOVED_TO | EventMask::DELETE;
                if event.mask.intersects(ends) {
                    self.writing.remove(&name);
                }
                self.touched.insert(name);
                true
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;

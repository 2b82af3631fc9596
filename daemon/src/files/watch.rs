//! inotify on the services directory and on its parent. Tells that it is time to look, which files were touched, and
//! which are being written to at the moment. Losing an event is no harm: the directory is also looked at now and then.

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

/// A file that was written to without being closed is left alone no longer than this after the last write: `truncate(2)`
/// opens nothing that could be closed.
const WRITER_FORGOTTEN: Duration = Duration::from_secs(60);

pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    /// The kernel's queue of the same events.
    queue: OwnedFd,
    directory: Option<WatchDescriptor>,
    parent: Option<WatchDescriptor>,
    /// The directory's own name in its parent.
    name: OsString,
    notes: Notes,
}

/// What the events since the last look say.
#[derive(Default)]
struct Notes {
    touched: BTreeSet<OsString>,
    everything: bool,
    /// Whether one of them is a reason to look.
    is_reason: bool,
    /// Who is being written to, and when last. Stays noted.
    writing: BTreeMap<OsString, Instant>,
}

/// What can change the meaning of the directory's files; `MODIFY` tells that somebody has begun to write.
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

/// What can put another directory in its place.
fn in_parent() -> WatchMask {
    WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::ATTRIB | WatchMask::ONLYDIR
}

impl Watch {
    /// A watch of nothing yet.
    ///
    /// # Errors
    /// When the kernel gives out no more of them.
    pub(super) fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let queue = inotify.as_fd().try_clone_to_owned()?;
        let events = inotify.into_event_stream(vec![0; 16 << 10])?;
        Ok(Self { events, queue, directory: None, parent: None, name: OsString::new(), notes: Notes::default() })
    }

    /// What puts watches on a path, in whichever thread may block.
    pub(super) fn follower(&self) -> Follower {
        Follower(self.events.watches())
    }

    /// Counts what happens to what was followed, and to nothing else.
    pub(super) fn followed(&mut self, Followed { name, parent, directory }: Followed) {
        self.name = name;
        let mut watches = self.events.watches();
        let is_other = self.directory != directory;
        let mut replace = |old: &mut Option<WatchDescriptor>, new: Option<WatchDescriptor>| {
            if let Some(old) = std::mem::replace(old, new.clone()).filter(|old| Some(old) != new.as_ref()) {
                // Fails if what was watched is gone, and the watch with it.
                let _gone = watches.remove(old);
            }
        };
        replace(&mut self.parent, parent);
        replace(&mut self.directory, directory);
        if is_other {
            self.notes.writing.clear();
        }
    }

    /// Waits until there is reason to look at the directory. May be dropped while it waits.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            self.drain().await?;
            if std::mem::take(&mut self.notes.is_reason) {
                return Ok(());
            }
            self.next().await?;
        }
    }

    /// Takes in the events so far.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        loop {
            match self.next().now_or_never() {
                Some(next) => next?,
                // The runtime may not have noticed yet what waits in the queue.
                None if self.is_queued()? => self.next().await?,
                None => return Ok(()),
            }
        }
    }

    /// Waits for an event and takes it in.
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

    /// What was noted since the last time.
    pub(super) fn take_hints(&mut self) -> Hints {
        self.notes.writing.retain(|_, last| last.elapsed() < WRITER_FORGOTTEN);
        Hints {
            touched: std::mem::take(&mut self.notes.touched),
            everything: std::mem::take(&mut self.notes.everything),
            writing: self.writing(),
            believe_empty: false,
        }
    }

    /// The files being written to.
    pub(super) fn writing(&self) -> BTreeSet<OsString> {
        self.notes.writing.keys().cloned().collect()
    }
}

/// See [`Watch::follower`].
pub(super) struct Follower(Watches);

/// What was at a path.
pub(super) struct Followed {
    name: OsString,
    parent: Option<WatchDescriptor>,
    directory: Option<WatchDescriptor>,
}

impl Follower {
    /// Watches what is at this path now. To be called before every look at the directory: after it was replaced, the
    /// path leads to another one. Blocks while the file system does not answer.
    pub(super) fn follow(mut self, directory: &Path) -> Followed {
        let name = directory.file_name().unwrap_or_default().to_owned();
        let parent = directory.parent().and_then(|parent| self.0.add(parent, in_parent()).ok());
        let directory = self.0.add(directory, in_directory()).ok();
        Followed { name, parent, directory }
    }
}

/// Where an event happened.
enum Place {
    Inside,
    /// To the directory's name in its parent.
    Itself,
    Elsewhere,
}

impl Notes {
    /// Whether the event is a reason to look.
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

//! inotify on the services directory and on its parent. Reports that a scan is due, and which files were touched. A lost
//! event does no harm: the directory is also scanned periodically.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Instant;

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use super::looks::Notes;

pub(super) struct Watch {
    events: EventStream<Vec<u8>>,
    directory: Option<WatchDescriptor>,
    parent: Option<WatchDescriptor>,
    /// Name of the directory in its parent.
    name: OsString,
    pub(super) notes: Notes,
}

/// The events that can change the content of the directory. Who is writing a file has not finished, so the scan waits for
/// `CLOSE_WRITE`.
fn in_directory() -> WatchMask {
    WatchMask::CREATE
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
        let events = Inotify::init()?.into_event_stream(vec![0; 16 << 10])?;
        Ok(Self { events, directory: None, parent: None, name: OsString::new(), notes: Notes::default() })
    }

    /// Returns the object that adds watches for a path, for use in a thread that may block.
    pub(super) fn follower(&self) -> Follower {
        Follower(self.events.watches())
    }

    /// Replaces the watched paths by these; events of other watches are ignored from now on.
    pub(super) fn followed(&mut self, Followed { name, parent, directory }: Followed) {
        self.name = name;
        let mut watches = self.events.watches();
        let mut replace = |old: &mut Option<WatchDescriptor>, new: Option<WatchDescriptor>| {
            if let Some(old) = std::mem::replace(old, new.clone()).filter(|old| Some(old) != new.as_ref()) {
                // Fails if the watched object, and with it the watch, no longer exists.
                let _gone = watches.remove(old);
            }
        };
        replace(&mut self.parent, parent);
        replace(&mut self.directory, directory);
    }

    /// Waits for events, and notes those that are reasons to scan. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        self.next().await?;
        self.note_all()
    }

    /// Notes the events that have arrived.
    pub(super) fn note_all(&mut self) -> io::Result<()> {
        while let Some(next) = self.next().now_or_never() {
            next?;
        }
        Ok(())
    }

    async fn next(&mut self) -> io::Result<()> {
        let event = self.events.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        let now = Instant::now();
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            self.notes.lose(now);
        } else if Some(&event.wd) == self.directory.as_ref() {
            self.notes.take(event.name, now);
        } else if Some(&event.wd) == self.parent.as_ref() && event.name.as_ref() == Some(&self.name) {
            self.notes.take(None, now);
        }
        Ok(())
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

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;

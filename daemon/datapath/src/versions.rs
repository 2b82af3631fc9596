//! Layout versions: each has its own directory in the pin directory. Owns the decision which version is current, the
//! lock that makes one process work with them at a time, and the removal of old versions.
//!
//! The code here relies only on what is the same in every layout, older or newer: `vN`, which contains `links`, and
//! generations `gN`. A version is complete with its first generation, which one rename creates: before the rename the
//! predecessor is current, after it the new version.
//!
//! A change of the layout takes three steps: raise [`LAYOUT`]; give the reader of the previous layout its sizes and offsets
//! as numbers, in its own file unless only [`ServiceWords`] differ, and put it into the row of its version in [`READERS`];
//! add a row for the new one. A row is removed when no node can have its version any more.
//!
//! Debug builds contain a second layout, that of `bpf/next_layout.h`: the version after [`LAYOUT`], which tests upgrade
//! to. It has no reader, so every other version refuses its maps.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nodelb_core::datapath::Limits;
use nodelb_core::state::kernel_check::Content;

use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::kept;
use crate::layout::{Client, ServiceWords};
use crate::maps::{Handles, Maps, kinds};
use crate::pins::{self, Pins, UNFINISHED, numbered};
use crate::read;
use crate::spec::Spec;

/// The version of the layouts in `bpf/shared.h`.
pub const LAYOUT: u32 = 1;

/// The exclusive lock on the pin directory and its content. It is released when this is dropped or the process ends.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    files: Vec<File>,
}

impl Lock {
    /// Locks the pin directory and every version in it; `None` if it is absent, because a directory that appears
    /// afterwards belongs to another process.
    pub(crate) fn take(pin_directory: &Path) -> Result<Option<Self>, OpenError> {
        let mut lock = Self::default();
        if !lock.add(pin_directory, pin_directory)? {
            return Ok(None);
        }
        // A nodelb that knew only one version has locked only that version.
        for (_, directory) in all(pin_directory)? {
            lock.add(&directory, pin_directory)?;
        }
        Ok(Some(lock))
    }

    /// Locks the directories that were created again after the pin directory or a part of it was removed.
    pub(crate) fn extend(&mut self, pin_directory: &Path) -> Result<(), OpenError> {
        let versions = all(pin_directory)?.into_iter().map(|(_, directory)| directory);
        for directory in std::iter::once(pin_directory.to_path_buf()).chain(versions) {
            if !self.holds(&directory) {
                self.add(&directory, pin_directory)?;
            }
        }
        Ok(())
    }

    fn holds(&self, directory: &Path) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let there = fs::metadata(directory).ok().map(identity);
        there.is_some() && self.files.iter().any(|file| file.metadata().ok().map(identity) == there)
    }

    /// Locks the directory; returns whether it exists.
    fn add(&mut self, directory: &Path, pin_directory: &Path) -> Result<bool, OpenError> {
        loop {
            let file = match File::open(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                opened => opened.map_err(failed("opening", directory))?,
            };
            make_private(&file, directory)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(OpenError::Busy { directory: pin_directory.to_path_buf() });
                }
                Err(TryLockError::Error(error)) => return Err(failed("locking", directory)(error)),
            }
            let locked = file.metadata().map_err(failed("reading", directory))?;
            // Otherwise the directory was removed, and perhaps created again, between the two calls above.
            if fs::metadata(directory).is_ok_and(|there| there.ino() == locked.ino()) {
                self.files.push(file);
                return Ok(true);
            }
        }
    }
}

impl Drop for Lock {
    /// Closing does not unlock while a child between fork and exec has the file open, too.
    fn drop(&mut self) {
        for file in &self.files {
            let _ = file.unlock();
        }
    }
}

/// Makes sure that only nodelb's user and root can change the directory, or lock it: bpffs is often mounted so that every
/// user may create directories in it.
fn make_private(file: &File, directory: &Path) -> Result<(), OpenError> {
    let found = file.metadata().map_err(failed("reading", directory))?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let own = nix::unistd::geteuid().as_raw();
    if !pins::is_own(owner, mode) {
        return Err(OpenError::NotOwn { directory: directory.to_path_buf(), owner, mode });
    }
    if owner == own && mode != 0o700 {
        file.set_permissions(Permissions::from_mode(0o700)).map_err(failed("protecting", directory))?;
    }
    Ok(())
}

/// An older version that is current, and the reader of its content.
#[derive(Debug)]
pub(crate) struct Predecessor {
    pub(crate) pins: Pins,
    pub(crate) generation: PathBuf,
    pub(crate) reader: &'static Reader,
}

#[derive(Debug)]
pub(crate) struct PinSetup {
    pub(crate) pins: Pins,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) lock: Lock,
    /// Whether this start has created the directory of the version, and the pin directory.
    is_new: bool,
    has_new_directory: bool,
}

impl PinSetup {
    /// Locks the pin directory and creates the missing directories of this version.
    fn enter(&mut self, pin_directory: &Path, layout: u32) -> Result<(), OpenError> {
        let crash = self.pins.crash().clone();
        self.has_new_directory = !pin_directory.exists();
        self.lock = loop {
            pins::make_directory(pin_directory, &crash).map_err(failed("making", pin_directory))?;
            // A cleanup may have removed the directory again.
            if let Some(lock) = Lock::take(pin_directory)? {
                break lock;
            }
        };
        // Once more, now that no other process changes the directory.
        self.predecessor = predecessor(pin_directory, layout, &crash)?;
        self.is_new = !self.pins.root().exists();
        self.pins.make()?;
        if self.is_new {
            self.lock.add(self.pins.root(), pin_directory)?;
        }
        Ok(())
    }

    /// Removes the directories that this start has created, with what is in them: it has failed. Errors would be about
    /// what the next start replaces.
    pub(crate) fn undo(&self) {
        let (root, crash) = (self.pins.root(), self.pins.crash());
        if self.is_new && remove(root, crash).is_err() {
            // Reading a directory takes a descriptor. As long as there was none, nothing is in them.
            let _ = pins::remove_empty(&self.pins.links(), crash);
            let _ = pins::remove_empty(root, crash);
        }
        if let Some(directory) = root.parent().filter(|_| self.has_new_directory) {
            let _ = pins::remove_empty(directory, crash);
        }
    }
}

/// Locks the pin directory and creates the missing directories of this version. Creates and changes nothing if it fails, as
/// if the current version is one that this one cannot take over from.
pub(crate) fn enter(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<PinSetup, OpenError> {
    predecessor(pin_directory, layout, crash)?;
    let pins = Pins::new(pin_directory, layout, crash);
    let mut setup =
        PinSetup { pins, predecessor: None, lock: Lock::default(), is_new: false, has_new_directory: false };
    match setup.enter(pin_directory, layout) {
        Ok(()) => Ok(setup),
        // The directory is another process's, also if it was absent.
        Err(error @ OpenError::Busy { .. }) => Err(error),
        Err(error) => {
            setup.undo();
            Err(error)
        }
    }
}

/// All versions that have a directory, oldest first.
pub(crate) fn all(pin_directory: &Path) -> Result<Vec<(u32, PathBuf)>, OpenError> {
    let names = pins::list(pin_directory).map_err(failed("reading", pin_directory))?;
    let version = |name: &String| Some((numbered(name, "v")?, pin_directory.join(name)));
    let mut versions: Vec<_> = names.iter().filter_map(version).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// The version that this one takes over from, if any.
fn predecessor(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<Option<Predecessor>, OpenError> {
    let Some((found, generation)) = newest(pin_directory)?.filter(|(version, _)| *version != layout) else {
        return Ok(None);
    };
    let reader = reader_of(found, layout, pin_directory)?;
    Ok(Some(Predecessor { pins: Pins::new(pin_directory, found, crash), generation, reader }))
}

/// The version with the current generation, and the directory of that generation.
fn newest(pin_directory: &Path) -> Result<Option<(u32, PathBuf)>, OpenError> {
    let mut truth = None;
    for (version, directory) in all(pin_directory)? {
        // Which maps another layout has is its own affair.
        let is_generation = if reader(version).is_some() { pins::has_all_maps } else { Path::is_dir };
        let generation = pins::newest_generation(&directory, is_generation).map_err(failed("reading", &directory))?;
        truth = generation.map(|number| (version, directory.join(format!("g{number}")))).or(truth);
    }
    Ok(truth)
}

/// The reader for maps of the version `found`, for a nodelb with the version `known`.
fn reader_of(found: u32, known: u32, pin_directory: &Path) -> Result<&'static Reader, OpenError> {
    let directory = pin_directory.to_path_buf();
    match reader(found) {
        _ if found > known => Err(OpenError::NewerLayout { found, known, directory }),
        Some(reader) => Ok(reader),
        None => Err(OpenError::UnknownLayout { found, known, directory }),
    }
}

/// Reads the current maps in the pin directory, also while a daemon uses them. Changes nothing. `None` if no maps are
/// pinned there.
pub fn read_pinned(pin_directory: &Path) -> Result<Option<PinnedContent>, OpenError> {
    let Some((found, generation)) = newest(pin_directory)? else { return Ok(None) };
    (reader_of(found, LAYOUT, pin_directory)?.read)(&generation).map(Some)
}

/// Removes every version except this one, which is current: those that it took over from, and those that were begun and
/// never completed. Shared links stay attached, because their pins in this version remain.
pub(crate) fn remove_others(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<(), OpenError> {
    for (_, directory) in all(pin_directory)?.into_iter().filter(|(version, _)| *version != layout) {
        remove(&directory, crash).map_err(failed("removing", &directory))?;
    }
    Ok(())
}

fn remove(version: &Path, crash: &CrashPoint) -> io::Result<()> {
    pins::remove_empty(&version.join("links").join(pins::WITHOUT_DIRECT_RETURN), crash)?;
    for name in pins::list(version)? {
        if name == kept::DIRECTORY {
            kept::remove_all(version, crash)?;
        } else if is_part(&name) {
            remove_pins(&version.join(name), crash)?;
        }
    }
    remove_pins(version, crash)
}

/// Whether a directory with this name belongs to a version.
fn is_part(name: &str) -> bool {
    name == "links" || numbered(name.strip_suffix(UNFINISHED).unwrap_or(name), "g").is_some()
}

/// Removes the pins in a directory, and the directory itself unless it contains anything else.
fn remove_pins(directory: &Path, crash: &CrashPoint) -> io::Result<()> {
    for path in pins::list(directory)?.into_iter().map(|name| directory.join(name)) {
        if !path.is_dir() {
            pins::remove_file(&path, crash)?;
        }
    }
    match pins::remove_empty(directory, crash) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed,
    }
}

/// The content of a generation of maps.
#[derive(Debug)]
pub struct PinnedContent {
    pub content: Content,
    /// The last backend of each client, for services with affinity.
    pub clients: Vec<Client>,
    pub limits: Limits,
}

/// The reader for the maps of one layout version.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) layout: u32,
    /// Reads the maps that are pinned in the directory of a generation.
    pub(crate) read: fn(&Path) -> Result<PinnedContent, OpenError>,
    /// Reads only the last backend of each client.
    pub(crate) clients: fn(&Path) -> Result<Vec<Client>, OpenError>,
    /// Whether its per-socket state has the same meaning as in the current layout. If so, and if the maps have the same
    /// kind, they stay in use, and open sockets keep the names of their peers.
    pub(crate) has_todays_sockets: bool,
}

const READERS: [Reader; 1] =
    [Reader { layout: 1, read: read_layout_1, clients: read_clients, has_todays_sockets: true }];

fn read_layout_1(directory: &Path) -> Result<PinnedContent, OpenError> {
    read_maps(directory, ServiceWords::CURRENT)
}

pub(crate) fn reader(layout: u32) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.layout == layout)
}

/// Reads maps with services in this layout.
pub(crate) fn read_maps(directory: &Path, service: ServiceWords) -> Result<PinnedContent, OpenError> {
    let handles = Handles::open(directory)?;
    for (map, kind) in handles.0.iter().zip(kinds(&service)) {
        if !Spec::read(map).map_err(failed("reading", directory))?.same_kind(kind) {
            return Err(failed("using", directory)(FOREIGN));
        }
    }
    let fit = handles.1.fit(handles.limits()).map_err(failed("reading", directory))?;
    if fit.is_none() {
        return Err(failed("using", directory)(FOREIGN));
    }
    let limits = handles.limits();
    let maps = Maps::new(handles).map_err(failed("mapping", directory))?;
    let mut content = read::content(&maps).map_err(failed("reading", directory))?;
    read::runs(&maps, &mut content);
    let clients = read::clients(&maps).map_err(failed("reading affinity from", directory))?;
    Ok(PinnedContent { content, clients, limits })
}

/// Reads the clients in maps that [`read_maps`] has read before.
pub(crate) fn read_clients(directory: &Path) -> Result<Vec<Client>, OpenError> {
    let maps = Maps::new(Handles::open(directory)?).map_err(failed("mapping", directory))?;
    read::clients(&maps).map_err(failed("reading affinity from", directory))
}

/// The reason why a map is not touched.
pub(crate) const FOREIGN: &str =
    "a map there has a different type: another program created it; nodelb cleanup removes it";

#[cfg(test)]
#[path = "tests/versions.rs"]
mod tests;

//! Layout versions: each has a directory of its own below the pin directory. Owns which of them is the truth, that one
//! process alone works with them, and when one goes.
//!
//! What it looks at is the same in every layout, older or newer: `vN`, in it `links`, and generations `gN`. A version is
//! complete with its first generation, which one rename makes: before, its predecessor is the truth, and afterwards not.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::carry::{self, Reader};
use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::pins::{self, Pins, UNFINISHED, numbered};

/// The version of the layouts in `bpf/shared.h`.
pub const LAYOUT: u32 = 1;

/// The pin directory and what lies in it, for this process alone. Goes when this goes, or the process.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    held: Vec<File>,
}

impl Lock {
    /// Locks the pin directory and every version in it; `None` if it is absent, since what may appear the next moment is
    /// then another process's.
    pub(crate) fn take(pin_directory: &Path) -> Result<Option<Self>, OpenError> {
        let mut lock = Self::default();
        if !lock.add(pin_directory, pin_directory)? {
            return Ok(None);
        }
        // A nodelb that knew one version only has locked no more than that.
        for (_, directory) in all(pin_directory)? {
            lock.add(&directory, pin_directory)?;
        }
        Ok(Some(lock))
    }

    /// Locks what was made again since, after the pin directory or a part of it was removed.
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
        there.is_some() && self.held.iter().any(|file| file.metadata().ok().map(identity) == there)
    }

    /// Locks the directory; whether it is there.
    fn add(&mut self, directory: &Path, pin_directory: &Path) -> Result<bool, OpenError> {
        loop {
            let file = match File::open(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                opened => opened.map_err(failed("opening", directory))?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(OpenError::Busy { directory: pin_directory.to_path_buf() });
                }
                Err(TryLockError::Error(error)) => return Err(failed("locking", directory)(error)),
            }
            let locked = file.metadata().map_err(failed("reading", directory))?;
            // Else it was removed, and perhaps made again, between the two calls above.
            if fs::metadata(directory).is_ok_and(|there| there.ino() == locked.ino()) {
                self.held.push(file);
                return Ok(true);
            }
        }
    }
}

/// An older version that is the truth, and how its content is read.
#[derive(Debug)]
pub(crate) struct Predecessor {
    pub(crate) pins: Pins,
    /// The directory of the generation that is the truth.
    pub(crate) generation: PathBuf,
    pub(crate) reader: &'static Reader,
}

/// What a start may work with.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) pins: Pins,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) lock: Lock,
}

/// Locks the pin directory and makes the version's own directories as far as they are missing; makes and changes nothing
/// if the truth is a version that this one cannot take over from.
pub(crate) fn enter(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<Ground, OpenError> {
    predecessor(pin_directory, layout, crash)?;
    let mut lock = loop {
        pins::make_directory(pin_directory, crash).map_err(failed("making", pin_directory))?;
        // A cleanup may have removed it again.
        if let Some(lock) = Lock::take(pin_directory)? {
            break lock;
        }
    };
    // Again, now that nobody else changes it.
    let predecessor = predecessor(pin_directory, layout, crash)?;
    let is_new = !Pins::of(pin_directory, layout, crash).root().exists();
    let pins = Pins::create(pin_directory, layout, crash)?;
    if is_new {
        lock.add(pins.root(), pin_directory)?;
    }
    Ok(Ground { pins, predecessor, lock })
}

/// Every version that has a directory, oldest first.
pub(crate) fn all(pin_directory: &Path) -> Result<Vec<(u32, PathBuf)>, OpenError> {
    let names = pins::list(pin_directory).map_err(failed("reading", pin_directory))?;
    let version = |name: &String| Some((numbered(name, "v")?, pin_directory.join(name)));
    let mut versions: Vec<_> = names.iter().filter_map(version).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Whom this version takes over from, if anyone.
fn predecessor(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<Option<Predecessor>, OpenError> {
    let mut truth = None;
    for (version, directory) in all(pin_directory)? {
        let generation = pins::newest_generation(&directory).map_err(failed("reading", &directory))?;
        truth = generation.map(|number| (version, directory.join(format!("g{number}")))).or(truth);
    }
    let Some((found, generation)) = truth.filter(|(version, _)| *version != layout) else { return Ok(None) };
    let pin_directory = pin_directory.to_path_buf();
    if found > layout {
        return Err(OpenError::NewerLayout { found, known: layout, directory: pin_directory });
    }
    match carry::reader(found) {
        Some(reader) => Ok(Some(Predecessor { pins: Pins::of(&pin_directory, found, crash), generation, reader })),
        None => Err(OpenError::UnknownLayout { found, known: layout, directory: pin_directory }),
    }
}

/// Removes every version but this one, which is the truth: what it took over from, and what was begun and never
/// completed. The links that it shares with them stay attached, for their pins here remain.
pub(crate) fn remove_others(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Result<(), OpenError> {
    for (_, directory) in all(pin_directory)?.into_iter().filter(|(version, _)| *version != layout) {
        remove(&directory, crash).map_err(failed("removing", &directory))?;
    }
    Ok(())
}

fn remove(version: &Path, crash: &CrashPoint) -> io::Result<()> {
    for name in pins::list(version)? {
        if is_part(&name) {
            remove_pins(&version.join(name), crash)?;
        }
    }
    remove_pins(version, crash)
}

/// Whether a directory of this name belongs to a version.
fn is_part(name: &str) -> bool {
    name == "links" || numbered(name.strip_suffix(UNFINISHED).unwrap_or(name), "g").is_some()
}

/// Removes the pins in a directory, and the directory unless there is something else in it.
fn remove_pins(directory: &Path, crash: &CrashPoint) -> io::Result<()> {
    for path in pins::list(directory)?.into_iter().map(|name| directory.join(name)) {
        if !path.is_dir() {
            pins::remove_file(&path, crash)?;
        }
    }
    match fs::remove_dir(directory) {
        Ok(()) => crash.pass(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/versions.rs"]
mod tests;

//! The pin directory: names, the order of pinning and unpinning, and which pins are valid after a crash. This module
//! handles files and not their content.
//!
//! ```text
//! /sys/fs/bpf/nodelb/        the pin directory; locked, and each version too, by the one process that works here
//!   v1/                      a layout version; usually the only one
//!     tcp_sockets udp_sockets tcp_table udp_table udp_overflow frontend_epoch   outlive generations
//!     g7/                    a generation: frontends services slots node_addrs affinity
//!     g8-new/                the next one while it is being filled
//!     links/connect4 …       what attaches the programs; links/connect4-new while one is being replaced
//!     links/packets-in-2 …   the same for the device with index 2
//!     programs/sock-HASH/    programs that the next start takes over: see `kept`
//!     links/clsact-2/ pod-2/ nodelb has added the qdisc; the device leads to a pod
//!     links/without-direct-return/ no connection has ever had it
//!   v2/                      the next version: g1-new/ until it is complete, and links to the same attachments as v1's
//! ```
//!
//! The highest generation without `-new` of the highest version that has one is current; what lacks a map is none. A
//! rename makes a generation current, after every link runs programs that use it and before its content changes.
//! Everything else under these names was left by a crash, or is not nodelb's, and is removed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::maps::NAMES;
use crate::sys;

/// The suffix of a file or directory that is not complete yet. bpffs reserves dots in names, so the suffix has none.
pub(crate) const UNFINISHED: &str = "-new";

/// The mark that no programs have had direct return since the maps of connections are there. Packets for a backend of this
/// node also come in other nodes' tunnels, which leaves no trace in the maps.
pub(crate) const WITHOUT_DIRECT_RETURN: &str = "without-direct-return";

/// The directory of one layout version.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    crash: CrashPoint,
}

impl Pins {
    /// Creates the directories of the version that are missing, in an existing pin directory.
    pub(crate) fn make(&self) -> Result<(), OpenError> {
        for directory in [&self.root, &self.links()] {
            make_directory(directory, &self.crash).map_err(failed("making", directory))?;
        }
        Ok(())
    }

    /// The directory of the version, which need not exist.
    pub(crate) fn new(pin_directory: &Path, layout: u32, crash: &CrashPoint) -> Self {
        Self { root: pin_directory.join(format!("v{layout}")), crash: crash.clone() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn crash(&self) -> &CrashPoint {
        &self.crash
    }

    pub(crate) fn persistent(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    pub(crate) fn link(&self, hook: &str) -> PathBuf {
        self.links().join(hook)
    }

    pub(crate) fn generation(&self, number: u32) -> PathBuf {
        self.root.join(format!("g{number}"))
    }

    fn unfinished(&self, number: u32) -> PathBuf {
        self.root.join(format!("g{number}{UNFINISHED}"))
    }

    /// The current generation, if any. Removes all others. Its number has a successor.
    pub(crate) fn current_generation(&self) -> Result<Option<u32>, OpenError> {
        let current = newest_generation(&self.root, has_all_maps).map_err(failed("reading", &self.root))?;
        for name in list(&self.root).map_err(failed("reading", &self.root))? {
            let committed = numbered(&name, "g");
            let unfinished = name.strip_suffix(UNFINISHED).and_then(|name| numbered(name, "g"));
            if unfinished.is_some() || (committed.is_some() && committed != current) {
                let path = self.root.join(name);
                clear(&path, &self.crash).map_err(failed("removing", &path))?;
            }
        }
        if current == Some(u32::MAX) {
            self.rename(&self.generation(u32::MAX), &self.generation(1))?;
            return Ok(Some(1));
        }
        Ok(current)
    }

    /// Creates a directory for the pins of the next generation.
    pub(crate) fn begin(&self, number: u32) -> Result<PathBuf, OpenError> {
        let directory = self.unfinished(number);
        make_directory(&directory, &self.crash).map_err(failed("making", &directory))?;
        Ok(directory)
    }

    pub(crate) fn commit(&self, number: u32) -> Result<(), OpenError> {
        self.rename(&self.unfinished(number), &self.generation(number))
    }

    /// Records something for the next start: by a directory of this name among the links, or its absence.
    pub(crate) fn mark(&self, name: &str, is_so: bool) -> io::Result<()> {
        let marker = self.link(name);
        if is_so { make_directory(&marker, &self.crash) } else { remove_empty(&marker, &self.crash) }
    }

    pub(crate) fn is_marked(&self, name: &str) -> bool {
        self.link(name).exists()
    }

    /// Pins a map or link.
    pub(crate) fn pin(&self, object: BorrowedFd<'_>, path: &Path) -> Result<(), OpenError> {
        sys::pin(object, path).map_err(failed("pinning", path))?;
        self.crash.pass();
        Ok(())
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        fs::rename(from, to).map_err(failed("renaming", from))?;
        self.crash.pass();
        Ok(())
    }

    /// Makes the generation no longer current; its content then counts as removed.
    pub(crate) fn withdraw(&self, number: u32) -> Result<(), OpenError> {
        self.rename(&self.generation(number), &self.unfinished(number))
    }

    pub(crate) fn abandon(&self, number: u32) -> Result<(), OpenError> {
        let directory = self.unfinished(number);
        clear(&directory, &self.crash).map_err(failed("removing", &directory))
    }

    /// Replaces a link's pin by a new one in one step. `pin` creates the new pin under the path that it gets.
    pub(crate) fn replace_link(&self, hook: &str, pin: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let (new, old) = (self.link(&format!("{hook}{UNFINISHED}")), self.link(hook));
        clear(&new, &self.crash)?;
        pin(&new)?;
        self.crash.pass();
        if fs::symlink_metadata(&old).is_ok_and(|found| found.is_dir()) {
            clear(&old, &self.crash)?;
        }
        fs::rename(&new, &old)?;
        self.crash.pass();
        Ok(())
    }
}

/// The current generation of a version, if any: the one with the highest number of those that are generations.
pub(crate) fn newest_generation(version: &Path, is_generation: fn(&Path) -> bool) -> io::Result<Option<u32>> {
    let names = list(version)?;
    let found = names.iter().filter(|name| is_generation(&version.join(name)));
    Ok(found.filter_map(|name| numbered(name, "g")).max())
}

/// Whether the directory has all maps of a generation of this layout. Each exists before the rename that makes the
/// generation current.
pub(crate) fn has_all_maps(directory: &Path) -> bool {
    NAMES.iter().all(|name| directory.join(name).is_file())
}

/// Creates a directory that only its owner may enter. The directory may exist already.
pub(crate) fn make_directory(directory: &Path, crash: &CrashPoint) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {
            crash.pass();
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether only nodelb's user and root can change what has this owner and mode.
pub(crate) fn is_own(owner: u32, mode: u32) -> bool {
    [0, nix::unistd::geteuid().as_raw()].contains(&owner) && mode & 0o022 == 0
}

/// Removes what is at the path, which may be absent: a pin, or a directory with all that is in it. Only for names that
/// are nodelb's own.
pub(crate) fn clear(path: &Path, crash: &CrashPoint) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        return remove_file(path, crash);
    }
    for name in list(path)? {
        clear(&path.join(name), crash)?;
    }
    remove_empty(path, crash)
}

/// Removes an empty directory, which may be absent.
pub(crate) fn remove_empty(directory: &Path, crash: &CrashPoint) -> io::Result<()> {
    absent_is_fine(fs::remove_dir(directory), crash)
}

/// Removes a pin, which may be absent.
pub(crate) fn remove_file(path: &Path, crash: &CrashPoint) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path), crash)
}

fn absent_is_fine(removed: io::Result<()>, crash: &CrashPoint) -> io::Result<()> {
    match removed {
        Ok(()) => {
            crash.pass();
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The names in a directory, sorted; empty if the directory is absent. Names that are not UTF-8 are not nodelb's and
/// left out.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_str().map(str::to_owned)));
    let mut names: Vec<String> = names.filter_map(Result::transpose).collect::<io::Result<_>>()?;
    names.sort_unstable();
    Ok(names)
}

/// The number in a name, such as 7 in `g7` with the prefix `g`.
pub(crate) fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let canonical = !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| canonical)
}

#[cfg(test)]
#[path = "tests/pins.rs"]
mod tests;

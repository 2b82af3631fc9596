//! One scan of the services directory: which files exist, and the content of those that differ from the last scan. Its
//! steps are those of [`FileSystem`], and other processes change the directory between any two of them. [`Files`] decides
//! what follows from the result.
//!
//! [`Files`]: super::known::Files

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::FileType;

use super::last_valid::{LastValid, Version};
use super::parse::{Format, Valid};
use super::system::{FileSystem, Stat};
use crate::document::Problem;

/// What to look at.
#[derive(Clone, Debug, Default)]
pub(super) struct Hints {
    /// Names of files to read again even if they look unchanged.
    pub(super) touched: BTreeSet<OsString>,
    /// Whether to read all files again.
    pub(super) everything: bool,
    /// Look at the touched names only, as long as the directory is this one: its device and inode.
    pub(super) only_in: Option<(u64, u64)>,
}

/// What a scan has looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every name of the directory.
    Whole,
    Names(BTreeSet<OsString>),
}

/// The data that distinguishes versions of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// A readable file.
    Version(Stat),
    Unreadable(String),
}

/// The versions that the last scan has read, for [`read`].
pub(super) type Seen = BTreeMap<PathBuf, Stamp>;

#[derive(Debug)]
pub(super) struct Listing {
    pub(super) path: PathBuf,
    pub(super) extent: Extent,
    /// The directory after the scan: the same as after an earlier one if no name has come or gone in between.
    pub(super) directory: Stat,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) files: BTreeMap<PathBuf, Finding>,
    /// Names that are not those of service files.
    pub(super) ignored: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) enum Finding {
    Same,
    /// A process is writing it.
    Written,
    /// `is_final` says that no process has it open for writing; otherwise, this could not be asked.
    Read {
        stamp: Stamp,
        parsed: Result<Valid, Vec<Problem>>,
        is_final: bool,
        /// See [`FileSystem::is_linked`].
        is_linked: bool,
    },
}

impl Listing {
    /// Whether it has the valid content of every file, and any.
    pub(super) fn is_whole(&self) -> bool {
        let is_valid = |finding: &Finding| matches!(finding, Finding::Read { parsed: Ok(_), is_final: true, .. });
        !self.files.is_empty() && self.files.values().all(is_valid)
    }

    /// What it has not of these.
    pub(super) fn missing_of(&self, last: &LastValid) -> LastValid {
        let files = last.files.iter().filter(|(path, version)| !self.has(path, version.as_ref()));
        let files = files.map(|(path, version)| (path.clone(), version.clone())).collect();
        LastValid { files, ..last.clone() }
    }

    /// Whether it has this version of the file, and that is valid.
    fn has(&self, path: &Path, version: Option<&Version>) -> bool {
        let found = self.files.get(path);
        let is_it = |valid: &Valid| version.is_some_and(|version| version.text == valid.version.text);
        matches!(found, Some(Finding::Read { parsed: Ok(valid), is_final: true, .. }) if is_it(valid))
    }

    /// The listing for a command, which reads the directory once: what the kernel does not tell counts as final.
    pub(super) fn of_command(mut self) -> Self {
        for finding in self.files.values_mut() {
            if let Finding::Read { is_final, .. } = finding {
                *is_final = true;
            }
        }
        self
    }
}

/// Scans the directory, or the part that `hints` names, and reads the files that are new or differ from the last scan.
/// Blocks.
///
/// # Errors
/// If the directory cannot be listed completely: nothing may be concluded then.
pub(super) fn read<S: FileSystem>(system: &S, path: &Path, seen: &Seen, hints: &Hints) -> io::Result<Listing> {
    let begun = system.now();
    let mut directory = system.open_directory(path)?;
    let is_part = match hints.only_in {
        Some(identity) => system.stat_directory(&directory)?.identity == identity,
        None => false,
    };
    let extent = if is_part { Extent::Names(hints.touched.clone()) } else { Extent::Whole };
    let mut touched = hints.touched.iter();
    let (mut files, mut ignored) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let name = if is_part { touched.next().cloned() } else { system.next_name(&mut directory)? };
        let Some(name) = name else { break };
        let file = path.join(&name);
        let scan = Scan { system, directory: &directory };
        if let Some(format) = Format::from_path(&file) {
            let before = seen.get(&file).filter(|_| !hints.everything && !hints.touched.contains(&name));
            files.extend(scan.find(&file, &name, format, before).map(|finding| (file, finding)));
        } else {
            ignored.extend(unexpected_name(&name).filter(|_| !is_part || system.exists(&directory, &name)));
        }
    }
    let directory = system.stat_directory(&directory)?;
    Ok(Listing { path: path.to_path_buf(), extent, directory, begun, ended: system.now(), files, ignored })
}

/// A message about a name that may be intended as a service file but is not one; `None` for hidden files and backups of
/// editors.
fn unexpected_name(name: &OsStr) -> Option<String> {
    let extension = Path::new(name).extension();
    let name = name.to_string_lossy();
    let is_backup = name.starts_with(['.', '#']) || name.ends_with('~');
    let is_temporary = extension.is_some_and(|extension| extension == "tmp" || extension == "swp");
    (!is_backup && !is_temporary).then(|| name.into_owned())
}

struct Scan<'s, S: FileSystem> {
    system: &'s S,
    directory: &'s S::Directory,
}

impl<S: FileSystem> Scan<'_, S> {
    /// `None` if the file has disappeared. `before` is the version that need not be read again.
    fn find(&self, path: &Path, name: &OsStr, format: Format, before: Option<&Stamp>) -> Option<Finding> {
        let stamp = match self.system.stat(self.directory, name) {
            Ok(stat) => refusal(&stat, format).map_or(Stamp::Version(stat), Stamp::Unreadable),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !self.system.exists(self.directory, name) {
                    return None;
                }
                Stamp::Unreadable("a symbolic link to nothing; correct or remove it".into())
            }
            Err(error) => Stamp::Unreadable(format!("cannot be read: {}", explained(&error))),
        };
        if before == Some(&stamp) {
            return Some(Finding::Same);
        }
        let why = match stamp {
            Stamp::Unreadable(why) => why,
            Stamp::Version(_) => match self.read(path, name, format) {
                Ok(finding) => return Some(finding),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => format!("cannot be read: {}", explained(&error)),
            },
        };
        let parsed = Err(vec![Problem::whole(why.clone())]);
        let is_linked = self.system.is_linked(self.directory, name);
        Some(Finding::Read { stamp: Stamp::Unreadable(why), parsed, is_final: true, is_linked })
    }

    /// The content of the file. A process that has it open for writing, or writes meanwhile, is noticed at the
    /// end.
    fn read(&self, path: &Path, name: &OsStr, format: Format) -> io::Result<Finding> {
        let file = self.system.open(self.directory, name)?;
        let before = self.system.stat_file(&file)?;
        if refusal(&before, format).is_some() {
            return Ok(Finding::Written);
        }
        let bytes = self.system.read(&file, format.max_bytes() + 1)?;
        let is_written = self.system.is_being_written(&file);
        let is_settled =
            self.system.stat_file(&file)? == before && u64::try_from(bytes.len()).is_ok_and(|n| n == before.size);
        if is_written == Some(true) || !is_settled {
            return Ok(Finding::Written);
        }
        let parsed = Valid::parse(path, &bytes, Some(before.identity.1));
        let is_linked = self.system.is_linked(self.directory, name);
        Ok(Finding::Read { stamp: Stamp::Version(before), parsed, is_final: is_written.is_some(), is_linked })
    }
}

/// The error, with the next step if there is one.
pub(super) fn explained(error: &io::Error) -> String {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    format!("{error}{}", if is_denied { "; see `nodelb check-config`" } else { "" })
}

/// The reason why an existing file is not read at all, if so.
fn refusal(stat: &Stat, format: Format) -> Option<String> {
    match stat.kind {
        FileType::Directory => Some("a directory, not a file; directories are not searched".into()),
        FileType::Fifo => Some("a FIFO, not a file; replace it by a file".into()),
        FileType::RegularFile if stat.size > format.max_bytes() => {
            let (bytes, limit) = (stat.size, format.max_bytes());
            Some(format!("{bytes} bytes, which is more than the {limit} that are read of such a file; split it"))
        }
        FileType::RegularFile => None,
        _ => Some("not a regular file; replace it by one".into()),
    }
}

#[cfg(test)]
#[path = "tests/scan.rs"]
mod tests;

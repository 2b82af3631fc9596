//! The files of the services directory: which exist, the last valid content of each, and their current problems. Only
//! [`read`] accesses the file system, and it blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::fcntl::OFlag;
use nodelb_core::source_report::SourceState;

use super::content::{FileContent, FileProblem};
use super::last_valid::LastValid;
use super::parse::{Format, parse};
use crate::document::Problem;

/// What to read in addition to the files that differ from the last scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Hints {
    /// Names of files to read again even if they look unchanged.
    pub(super) touched: BTreeSet<OsString>,
    /// Names of files that a process is writing: their current content is not final.
    pub(super) writing: BTreeSet<OsString>,
    pub(super) everything: bool,
    /// Whether to accept a directory that was replaced by an empty one. Otherwise that counts as a missing mount.
    pub(super) believe_empty: bool,
}

/// The data that distinguishes versions of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// A readable file: device, inode, size, modification and change time with nanoseconds.
    Version([u64; 3], [i64; 4]),
    Unreadable(String),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        Self::Version(
            [metadata.dev(), metadata.ino(), metadata.size()],
            [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()],
        )
    }
}

/// The state of the last scan, for [`read`].
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    stamps: BTreeMap<PathBuf, Stamp>,
    directory: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Listing {
    /// Device and inode of the directory.
    directory: (u64, u64),
    files: BTreeMap<PathBuf, Finding>,
    ignored: Vec<String>,
}

#[derive(Debug)]
enum Finding {
    Same,
    Unsettled,
    Read(Stamp, Result<Valid, Vec<Problem>>),
}

#[derive(Clone, Debug)]
pub(super) struct Valid {
    pub(super) content: Arc<FileContent>,
    pub(super) text: Arc<str>,
}

impl Valid {
    /// Parses the content of a file; the errors are those of [`parse`].
    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let content = parse(path, bytes)?;
        Ok(Self { content: Arc::new(content), text: String::from_utf8_lossy(bytes).into() })
    }
}

impl Listing {
    /// Whether it has the valid content of every file, and any.
    pub(super) fn is_whole(&self) -> bool {
        let is_valid = |finding: &Finding| matches!(finding, Finding::Read(_, Ok(_)));
        !self.files.is_empty() && self.files.values().all(is_valid)
    }
}

/// Scans the directory and reads the files that are new or differ from the last scan. Blocks.
///
/// # Errors
/// If the directory cannot be listed completely, or was replaced by an empty one: nothing may be concluded then.
pub(super) fn read(directory: &Path, seen: &Seen, hints: &Hints) -> io::Result<Listing> {
    let metadata = std::fs::metadata(directory)?;
    let identity = (metadata.dev(), metadata.ino());
    let mut listing = Listing { directory: identity, files: BTreeMap::new(), ignored: Vec::new() };
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if let Some(format) = Format::from_path(&path) {
            if let Some(finding) = find(&path, format, seen.stamps.get(&path), hints) {
                listing.files.insert(path, finding);
            }
        } else if let Some(name) = unexpected_name(&path) {
            listing.ignored.push(name);
        }
    }
    let is_other = seen.directory.is_some_and(|before| before != identity);
    if is_other && listing.files.is_empty() && !seen.stamps.is_empty() && !hints.believe_empty {
        let message =
            "another, empty directory is in its place; mount the right one, or reload nodelb to accept this one";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    listing.ignored.sort();
    Ok(listing)
}

/// A message about a name that may be intended as a service file but is not one; `None` for hidden files and backups of
/// editors.
fn unexpected_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let is_backup = name.starts_with(['.', '#']) || name.ends_with('~');
    let is_temporary = path.extension().is_some_and(|extension| extension == "tmp" || extension == "swp");
    (!is_backup && !is_temporary).then(|| name.into_owned())
}

/// `None` if the file has disappeared.
fn find(path: &Path, format: Format, before: Option<&Stamp>, hints: &Hints) -> Option<Finding> {
    let name = path.file_name().unwrap_or_default();
    if hints.writing.contains(name) {
        return Some(Finding::Unsettled);
    }
    let stamp = match std::fs::metadata(path) {
        Ok(metadata) => refusal(&metadata, format).map_or_else(|| Stamp::new(&metadata), Stamp::Unreadable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::symlink_metadata(path).ok()?;
            Stamp::Unreadable("a symbolic link to nothing; correct or remove it".into())
        }
        Err(error) => Stamp::Unreadable(format!("cannot be read: {}", explained(&error))),
    };
    if before == Some(&stamp) && !hints.everything && !hints.touched.contains(name) {
        return Some(Finding::Same);
    }
    let why = match stamp {
        Stamp::Unreadable(why) => why,
        Stamp::Version(..) => match read_settled(path, format) {
            Ok(Some((stamp, bytes))) => return Some(Finding::Read(stamp, Valid::parse(path, &bytes))),
            Ok(None) => return Some(Finding::Unsettled),
            Err(error) => format!("cannot be read: {}", explained(&error)),
        },
    };
    Some(Finding::Read(Stamp::Unreadable(why.clone()), Err(vec![Problem::whole(why)])))
}

/// The error, with the next step if there is one.
pub(super) fn explained(error: &io::Error) -> String {
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    format!("{error}{}", if is_denied { "; see `nodelb check-config`" } else { "" })
}

/// The reason why an existing file is not read at all, if so.
fn refusal(metadata: &Metadata, format: Format) -> Option<String> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        Some("a directory, not a file; directories are not searched".into())
    } else if kind.is_fifo() {
        Some("a FIFO, not a file; replace it by a file".into())
    } else if !kind.is_file() {
        Some("not a regular file; replace it by one".into())
    } else if metadata.len() > format.max_bytes() {
        let (bytes, limit) = (metadata.len(), format.max_bytes());
        Some(format!("{bytes} bytes, which is more than the {limit} that are read of such a file; split it"))
    } else {
        None
    }
}

/// The content of the file and its version. `None` if it changed during the read. Never waits for another process, even
/// if a FIFO has just replaced the file.
fn read_settled(path: &Path, format: Format) -> io::Result<Option<(Stamp, Vec<u8>)>> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let before = file.metadata()?;
    if refusal(&before, format).is_some() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    (&mut file).take(format.max_bytes() + 1).read_to_end(&mut bytes)?;
    let stamp = Stamp::new(&before);
    let is_settled =
        Stamp::new(&file.metadata()?) == stamp && u64::try_from(bytes.len()).is_ok_and(|n| n == before.len());
    Ok(is_settled.then_some((stamp, bytes)))
}

/// The files at the last scan, with the last valid content of each.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: BTreeMap<PathBuf, KnownFile>,
    directory: Option<(u64, u64)>,
    /// Names in the directory that are not service files.
    pub(super) ignored: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Accepted {
    /// Whether [`Files::contents`] may have changed.
    pub(super) has_changed: bool,
    pub(super) altered: Vec<PathBuf>,
}

#[derive(Debug)]
pub(super) struct KnownFile {
    /// `None` until the file was read once.
    stamp: Option<Stamp>,
    pub(super) valid: Option<Valid>,
    pub(super) problems: Vec<Problem>,
    /// Whether a process was writing it at the last scan.
    pub(super) is_unsettled: bool,
    /// Since when its state and problems are unchanged.
    pub(super) since: SystemTime,
}

impl KnownFile {
    pub(super) fn content(&self) -> Option<&Arc<FileContent>> {
        self.valid.as_ref().map(|valid| &valid.content)
    }

    pub(super) fn state(&self) -> SourceState {
        match (&self.valid, self.problems.is_empty()) {
            (Some(_), true) => SourceState::Ok,
            (Some(_), false) => SourceState::LastGood,
            (None, _) => SourceState::Error,
        }
    }

    /// Stores the result of a read; returns whether the problems have changed.
    fn take(&mut self, stamp: Stamp, parsed: Result<Valid, Vec<Problem>>, now: SystemTime) -> bool {
        let state = self.state();
        let is_first = self.stamp.is_none();
        self.stamp = Some(stamp);
        self.is_unsettled = false;
        let problems = match parsed {
            Ok(valid) => {
                self.valid = Some(valid);
                Vec::new()
            }
            Err(problems) => problems,
        };
        let is_altered = problems != self.problems;
        self.problems = problems;
        if is_first || is_altered || self.state() != state {
            self.since = now;
        }
        is_altered
    }
}

impl Files {
    /// The state for the next [`read`]. A file that a process was writing is read again in any case.
    pub(super) fn seen(&self) -> Seen {
        let settled = self.files.iter().filter(|(_, file)| !file.is_unsettled);
        let stamps = settled.filter_map(|(path, file)| Some((path.clone(), file.stamp.clone()?)));
        Seen { stamps: stamps.collect(), directory: self.directory }
    }

    /// The files as the previous run has stored them; what they are now is not known yet. Parses them, which takes time.
    pub(super) fn recalled(last: &LastValid, now: SystemTime) -> Self {
        let known = |(path, text): (&PathBuf, &Option<Arc<str>>)| {
            let valid = text.as_ref().and_then(|text| Valid::parse(path, text.as_bytes()).ok());
            let problem = valid.is_none().then(|| Problem::whole("not read since nodelb started"));
            let stamp = Some(Stamp::Unreadable(String::new()));
            let problems = problem.into_iter().collect();
            (path.clone(), KnownFile { stamp, valid, problems, is_unsettled: false, since: now })
        };
        Self { files: last.texts.iter().map(known).collect(), directory: last.identity, ignored: Vec::new() }
    }

    /// What the next run needs if it cannot read a file of this directory.
    pub(super) fn last_valid(&self, directory: &Path) -> LastValid {
        let text = |file: &KnownFile| Some(Arc::clone(&file.valid.as_ref()?.text));
        let texts = self.files.iter().map(|(path, file)| (path.clone(), text(file))).collect();
        LastValid { directory: directory.to_path_buf(), identity: self.directory, texts }
    }

    /// Stores the result of a scan. The content of a file in `writing` is ignored.
    pub(super) fn accept(&mut self, listing: Listing, writing: &BTreeSet<OsString>, now: SystemTime) -> Accepted {
        self.directory = Some(listing.directory);
        self.ignored = listing.ignored;
        let before = self.files.len();
        self.files.retain(|path, _| listing.files.contains_key(path));
        let mut accepted = Accepted { has_changed: self.files.len() != before, altered: Vec::new() };
        for (path, finding) in listing.files {
            let is_written = path.file_name().is_some_and(|name: &OsStr| writing.contains(name));
            let known = self.files.entry(path.clone()).or_insert_with(|| KnownFile {
                stamp: None,
                valid: None,
                problems: Vec::new(),
                is_unsettled: false,
                since: now,
            });
            match finding {
                Finding::Same => known.is_unsettled = false,
                Finding::Read(stamp, parsed) if !is_written => {
                    accepted.has_changed |= parsed.is_ok();
                    if known.take(stamp, parsed, now) {
                        accepted.altered.push(path);
                    }
                }
                Finding::Read(..) | Finding::Unsettled => known.is_unsettled = true,
            }
        }
        accepted
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &KnownFile)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub(super) fn get(&self, path: &Path) -> Option<&KnownFile> {
        self.files.get(path)
    }

    /// The served content: the last valid content of every existing file.
    pub(super) fn contents(&self) -> BTreeMap<PathBuf, Arc<FileContent>> {
        self.iter().filter_map(|(path, file)| Some((path.to_path_buf(), Arc::clone(file.content()?)))).collect()
    }

    pub(super) fn problems(&self) -> Vec<FileProblem> {
        let of_file = |(path, file): (&Path, &KnownFile)| {
            let path = path.to_path_buf();
            file.problems.clone().into_iter().map(move |problem| FileProblem { path: path.clone(), problem })
        };
        self.iter().flat_map(of_file).collect()
    }

    /// The files without known valid content, so that the kernel may contain services of them; `None` if there is no
    /// such file.
    pub(super) fn incomplete(&self) -> Option<Arc<str>> {
        let unknown = self.iter().filter(|(_, file)| file.valid.is_none());
        let paths: Vec<_> = unknown.map(|(path, _)| path.display().to_string()).collect();
        match paths.as_slice() {
            [] => None,
            [path] => Some(format!("{path} cannot be used; correct or remove it").into()),
            [first, ..] => {
                let count = paths.len();
                Some(format!("{count} files cannot be used, among them {first}; correct or remove them").into())
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/scan.rs"]
mod tests;

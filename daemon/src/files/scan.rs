//! The files of the services directory: which there are, what each said when it was last good, and what is wrong with it
//! now. [`read`] is the only part that touches the file system, and it blocks.

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

use super::{FileContent, FileProblem, Format, parse};
use crate::document::Problem;

/// What to look at more closely than the last time alone would ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct Hints {
    /// Names of files that are read again even if they look the same.
    pub(super) touched: BTreeSet<OsString>,
    /// Names of files that somebody is writing to: what they hold now is not what they will say.
    pub(super) writing: BTreeSet<OsString>,
    /// Read every file again.
    pub(super) everything: bool,
    /// Believe it if the directory is suddenly another one, and empty. Otherwise that is taken for a missing mount.
    pub(super) believe_empty: bool,
}

/// What tells one version of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// A file that can be read: device, inode, size, modification and change time with nanoseconds.
    Version([u64; 3], [i64; 4]),
    /// Why it cannot be read.
    Unreadable(String),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self::Version(
            [metadata.dev(), metadata.ino(), metadata.size()],
            [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()],
        )
    }
}

/// What [`read`] needs to know from the last time.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    stamps: BTreeMap<PathBuf, Stamp>,
    directory: Option<(u64, u64)>,
}

/// What one look at the directory found.
#[derive(Debug)]
pub(super) struct Listing {
    /// Device and inode of the directory.
    directory: (u64, u64),
    files: BTreeMap<PathBuf, Finding>,
    ignored: Vec<String>,
}

#[derive(Debug)]
enum Finding {
    /// As it was the last time.
    Same,
    /// Being written to.
    Unsettled,
    /// Read, or tried to.
    Read(Stamp, Result<FileContent, Vec<Problem>>),
}

/// Looks at the directory and reads the files that are new or differ from the last time. Blocks.
///
/// # Errors
/// When the directory cannot be listed completely, or is suddenly another, empty one: then nothing may be concluded.
pub(super) fn read(directory: &Path, seen: &Seen, hints: &Hints) -> io::Result<Listing> {
    let metadata = std::fs::metadata(directory)?;
    let identity = (metadata.dev(), metadata.ino());
    let mut listing = Listing { directory: identity, files: BTreeMap::new(), ignored: Vec::new() };
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if let Some(format) = Format::of(&path) {
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

/// A name that may be meant as a service file but is not one; `None` for hidden files and editors' backups.
fn unexpected_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let is_backup = name.starts_with(['.', '#']) || name.ends_with('~');
    let is_temporary = path.extension().is_some_and(|extension| extension == "tmp" || extension == "swp");
    (!is_backup && !is_temporary).then(|| name.into_owned())
}

/// `None` if the file is gone by now.
fn find(path: &Path, format: Format, before: Option<&Stamp>, hints: &Hints) -> Option<Finding> {
    let name = path.file_name().unwrap_or_default();
    if hints.writing.contains(name) {
        return Some(Finding::Unsettled);
    }
    let stamp = match std::fs::metadata(path) {
        Ok(metadata) => refusal(&metadata, format).map_or_else(|| Stamp::of(&metadata), Stamp::Unreadable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::symlink_metadata(path).ok()?;
            Stamp::Unreadable("a symbolic link to nothing; correct or remove it".into())
        }
        Err(error) => Stamp::Unreadable(format!("cannot be read: {error}")),
    };
    if before == Some(&stamp) && !hints.everything && !hints.touched.contains(name) {
        return Some(Finding::Same);
    }
    let why = match stamp {
        Stamp::Unreadable(why) => why,
        Stamp::Version(..) => match read_settled(path, format) {
            Ok(Some((stamp, bytes))) => return Some(Finding::Read(stamp, parse(path, &bytes))),
            Ok(None) => return Some(Finding::Unsettled),
            Err(error) => format!("cannot be read: {error}"),
        },
    };
    Some(Finding::Read(Stamp::Unreadable(why.clone()), Err(vec![Problem::whole(why)])))
}

/// Why something that is there is not read at all.
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

/// The bytes of the file, and of which version. `None` if it changed while it was read. Does not wait for anybody, also
/// if the file has just been replaced by a FIFO.
fn read_settled(path: &Path, format: Format) -> io::Result<Option<(Stamp, Vec<u8>)>> {
    let mut file: File = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let before = file.metadata()?;
    if refusal(&before, format).is_some() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    (&mut file).take(format.max_bytes() + 1).read_to_end(&mut bytes)?;
    let stamp = Stamp::of(&before);
    let is_settled =
        Stamp::of(&file.metadata()?) == stamp && u64::try_from(bytes.len()).is_ok_and(|n| n == before.len());
    Ok(is_settled.then_some((stamp, bytes)))
}

/// The files as they were last seen, with the last good content of each.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: BTreeMap<PathBuf, KnownFile>,
    directory: Option<(u64, u64)>,
    /// Names in the directory that are no service files.
    pub(super) ignored: Vec<String>,
}

/// What became of the files in one look.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Whether [`Files::contents`] may be others than before.
    pub(super) has_news: bool,
    /// The files whose problems are not what they were.
    pub(super) altered: Vec<PathBuf>,
}

#[derive(Debug)]
pub(super) struct KnownFile {
    /// `None` until it was read once.
    stamp: Option<Stamp>,
    /// What it said when it was last good.
    pub(super) content: Option<Arc<FileContent>>,
    /// What is wrong with it now.
    pub(super) problems: Vec<Problem>,
    /// Somebody was writing to it when it was last looked at.
    pub(super) is_unsettled: bool,
    /// Since when its state and problems are these.
    pub(super) since: SystemTime,
}

impl KnownFile {
    pub(super) fn state(&self) -> SourceState {
        match (&self.content, self.problems.is_empty()) {
            (Some(_), true) => SourceState::Ok,
            (Some(_), false) => SourceState::LastGood,
            (None, _) => SourceState::Error,
        }
    }
}

impl Files {
    /// What [`read`] needs of it. A file that was being written to is read again, whatever it looks like.
    pub(super) fn seen(&self) -> Seen {
        let settled = self.files.iter().filter(|(_, file)| !file.is_unsettled);
        let stamps = settled.filter_map(|(path, file)| Some((path.clone(), file.stamp.clone()?)));
        Seen { stamps: stamps.collect(), directory: self.directory }
    }

    /// Takes over what was found. What was read of a file in `writing` is not believed.
    pub(super) fn accept(&mut self, listing: Listing, writing: &BTreeSet<OsString>, now: SystemTime) -> Accepted {
        self.directory = Some(listing.directory);
        self.ignored = listing.ignored;
        let before = self.files.len();
        self.files.retain(|path, _| listing.files.contains_key(path));
        let mut accepted = Accepted { has_news: self.files.len() != before, altered: Vec::new() };
        for (path, finding) in listing.files {
            let is_written = path.file_name().is_some_and(|name: &OsStr| writing.contains(name));
            let known = self.files.entry(path.clone()).or_insert_with(|| KnownFile {
                stamp: None,
                content: None,
                problems: Vec::new(),
                is_unsettled: false,
                since: now,
            });
            match finding {
                Finding::Same => known.is_unsettled = false,
                Finding::Read(stamp, parsed) if !is_written => {
                    accepted.has_news |= parsed.is_ok();
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

    /// What is served: the last good content of every file that is there.
    pub(super) fn contents(&self) -> BTreeMap<PathBuf, Arc<FileContent>> {
        self.iter().filter_map(|(path, file)| Some((path.to_path_buf(), Arc::clone(file.content.as_ref()?)))).collect()
    }

    /// What is wrong with the files, each by itself.
    pub(super) fn problems(&self) -> Vec<FileProblem> {
        let of_file = |(path, file): (&Path, &KnownFile)| {
            let path = path.to_path_buf();
            file.problems.clone().into_iter().map(move |problem| FileProblem { path: path.clone(), problem })
        };
        self.iter().flat_map(of_file).collect()
    }

    /// What nothing at all is known of, so that the kernel may hold services of it: `None` if there is no such file.
    pub(super) fn incomplete(&self) -> Option<Arc<str>> {
        let unknown = self.iter().filter(|(_, file)| file.content.is_none());
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

impl KnownFile {
    /// Whether the problems are now others.
    fn take(&mut self, stamp: Stamp, parsed: Result<FileContent, Vec<Problem>>, now: SystemTime) -> bool {
        let state = self.state();
        let is_first = self.stamp.is_none();
        self.stamp = Some(stamp);
        self.is_unsettled = false;
        let problems = match parsed {
            Ok(content) => {
                self.content = Some(Arc::new(content));
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

#[cfg(test)]
#[path = "tests/scan.rs"]
mod tests;

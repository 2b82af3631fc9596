//! The files of the services directory: the last valid version of each, and why that is not the current one. Owns what
//! follows from a scan. Pure.
//!
//! Absence is no evidence. A scan does not see all names at the same moment, and programs replace files by removing them
//! first. So a file is gone only when a scan does not find it and nothing in the directory has changed for a while before;
//! until then, and while a file that has never been valid may have its services, they stay.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use imbl::OrdMap;
use nodelb_core::source_report::SourceState;

use super::content::{Defined, FileContent, FileProblem};
use super::last_valid::{LastValid, Version};
use super::merge::Contents;
use super::parse::Valid;
use super::scan::{Extent, Finding, Listing, Seen, Stamp};
use super::system::Stat;
use super::unfinished::Unfinished;
use crate::document::Problem;

/// How long the directory must be unchanged before a scan that shows that a file is gone. Programs that replace a file,
/// such as git, need less between its removal and the next version.
pub(super) const CONFIRM: Duration = Duration::from_millis(200);

/// In a directory that never stops to change, a file is gone when no scan has found it for this long.
const CONFIRM_AT_MOST: Duration = Duration::from_secs(10);

/// The time between the two scans that must find a file unchanged if the kernel does not tell whether a process has it open
/// for writing.
pub(super) const POLL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct KnownFile {
    /// The version that was read last; `None` until the file was read once.
    stamp: Option<Stamp>,
    pub(super) valid: Option<Valid>,
    /// Why `valid` is not the current version.
    pub(super) problems: Vec<Problem>,
    /// Why what is there now may not be final, at the last scan.
    pub(super) unsettled: Option<Unsettled>,
    /// Whether it may change without an event, as far as is known: see [`FileSystem::is_linked`].
    ///
    /// [`FileSystem::is_linked`]: super::system::FileSystem::is_linked
    is_linked: bool,
    /// Since when no scan has found it.
    missing: Option<Instant>,
    /// The text that was refused because it may be unfinished.
    refused: Option<Arc<str>>,
    /// Since when its state and problems are unchanged.
    pub(super) since: SystemTime,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// A process is writing it.
    Written,
    /// The kernel does not tell whether a process is writing it. This version was found first at this time.
    Polled(Stamp, Instant),
}

impl KnownFile {
    const fn new(valid: Option<Valid>, problems: Vec<Problem>, since: SystemTime) -> Self {
        Self { stamp: None, valid, problems, unsettled: None, is_linked: true, missing: None, refused: None, since }
    }

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

    fn version(&self) -> Option<Version> {
        self.valid.as_ref().map(|valid| valid.version.clone())
    }

    /// Takes what a scan has found, unless it may not be final. Returns whether there is another valid version, and whether
    /// the problems are others.
    fn take(&mut self, finding: Finding, begun: Instant, now: SystemTime) -> (bool, bool) {
        let is_back = self.missing.take().is_some();
        let (stamp, parsed) = match finding {
            Finding::Same => (None, None),
            Finding::Written => {
                self.unsettled = Some(Unsettled::Written);
                return (is_back, false);
            }
            Finding::Read { stamp, parsed, is_final, is_linked } => {
                self.is_linked = is_linked;
                if !is_final && !self.is_second(&stamp, begun) {
                    return (is_back, false);
                }
                (Some(stamp), Some(parsed))
            }
        };
        self.unsettled = None;
        let (Some(stamp), Some(parsed)) = (stamp, parsed) else { return (is_back, false) };
        let (is_first, state) = (self.stamp.is_none(), self.state());
        let parsed = parsed.and_then(|valid| match self.doubt(&valid, &stamp) {
            Some(problem) => Err(vec![problem]),
            None => Ok(valid),
        });
        self.stamp = Some(stamp);
        let is_valid = parsed.is_ok();
        let problems = match parsed {
            Ok(valid) => {
                self.valid = Some(valid);
                Vec::new()
            }
            Err(problems) => problems,
        };
        let is_altered = self.set_problems(problems);
        if is_first || is_altered || self.state() != state {
            self.since = now;
        }
        (is_valid || is_back, is_altered)
    }

    fn set_problems(&mut self, problems: Vec<Problem>) -> bool {
        let is_altered = problems != self.problems;
        self.problems = problems;
        is_altered
    }

    /// Whether an earlier scan has found the same version.
    fn is_second(&mut self, stamp: &Stamp, begun: Instant) -> bool {
        match &self.unsettled {
            Some(Unsettled::Polled(first, at)) if first == stamp => begun >= *at + POLL,
            _ => {
                self.unsettled = Some(Unsettled::Polled(stamp.clone(), begun));
                false
            }
        }
    }

    /// Why a valid version is not accepted. Who writes the beginning of the version before twice means it.
    fn doubt(&mut self, new: &Valid, stamp: &Stamp) -> Option<Problem> {
        let refused = self.refused.take();
        let unfinished = Unfinished::find(self.valid.as_ref()?, new)?;
        let is_repeated = self.stamp.as_ref() != Some(stamp) && refused.as_ref() == Some(&new.version.text);
        if unfinished == Unfinished::Beginning && is_repeated {
            return None;
        }
        self.refused = Some(Arc::clone(&new.version.text));
        Some(Problem::whole(unfinished.message()))
    }
}

/// The files at the last scan.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: BTreeMap<PathBuf, KnownFile>,
    /// Those that are unknown, missing or unsettled: few, so that a change of another file need not look at all.
    apart: BTreeSet<PathBuf>,
    /// Those that may change without an event.
    linked: BTreeSet<PathBuf>,
    served: Contents,
    versions: OrdMap<PathBuf, Option<Version>>,
    /// Device and inode of the directory that the files were in.
    directory: Option<(u64, u64)>,
    /// The directory at the last scan, and when it was found like that first.
    unchanged: Option<(Stat, Instant)>,
    /// Whether nothing had changed in the directory for a while before the last scan, so that it has found every name.
    is_conclusive: bool,
    /// The end of the first scan.
    first: Option<Instant>,
    is_listed: bool,
    /// Names in the directory that are not service files.
    pub(super) ignored: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// The files about which something may have changed, also those that are gone.
    pub(super) touched: BTreeSet<PathBuf>,
    /// Whether [`Files::contents`] may have changed.
    pub(super) has_changed: bool,
    /// The files with other problems than before.
    pub(super) altered: Vec<PathBuf>,
}

impl Files {
    /// The state for the next scan. A file that may not be final is read again in any case.
    pub(super) fn seen(&self) -> Seen {
        let settled = self.files.iter().filter(|(_, file)| file.unsettled.is_none() && file.missing.is_none());
        settled.filter_map(|(path, file)| Some((path.clone(), file.stamp.clone()?))).collect()
    }

    /// The files as the previous run has stored them; what they are now is not known yet. Parses them, which takes time.
    pub(super) fn recalled(last: &LastValid, now: SystemTime) -> Self {
        let known = |(path, version): (&PathBuf, &Option<Version>)| {
            let valid = version.as_ref().and_then(|it| Valid::parse(path, it.text.as_bytes(), it.inode).ok());
            let problem = valid.is_none().then(|| Problem::whole("not read since nodelb started"));
            (path.clone(), KnownFile::new(valid, problem.into_iter().collect(), now))
        };
        let files = last.files.iter().map(known).collect();
        let mut recalled = Self { files, directory: last.identity, ..Self::default() };
        recalled.note(&last.files.keys().cloned().collect());
        recalled
    }

    /// Continues with these files of the previous run, also after a scan: what has been read since the start is newer, and what
    /// is gone stays gone.
    pub(super) fn recall(&mut self, recalled: Self) {
        if self.files.is_empty() {
            *self = recalled;
            return;
        }
        let paths: BTreeSet<PathBuf> = recalled.files.keys().cloned().collect();
        for (path, before) in recalled.files {
            match self.files.get_mut(&path) {
                Some(known) if known.valid.is_none() && before.valid.is_some() => {
                    (known.valid, known.since) = (before.valid, before.since);
                }
                None if !self.is_listed => drop(self.files.insert(path, before)),
                _ => {}
            }
        }
        self.note(&paths);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// What the next run needs if it cannot read a file of this directory.
    pub(super) fn last_valid(&self, directory: &Path) -> LastValid {
        LastValid { directory: directory.to_path_buf(), identity: self.directory, files: self.versions.clone() }
    }

    /// Device and inode of the directory, if events tell of all changes in it.
    pub(super) fn directory_with_events(&self) -> Option<(u64, u64)> {
        self.directory.filter(|_| self.linked.is_empty())
    }

    /// Stores the result of a scan. `is_chosen` says that the operator has just chosen this directory.
    ///
    /// # Errors
    /// If it is another directory than before, and empty: a file system that is not mounted looks like that.
    pub(super) fn accept(&mut self, listing: Listing, is_chosen: bool, now: SystemTime) -> io::Result<Accepted> {
        let Listing { path, extent, directory, begun, ended, files, ignored } = listing;
        let is_other = self.directory.is_some_and(|before| before != directory.identity);
        if is_other && !is_chosen && files.is_empty() && !self.files.is_empty() {
            return Err(self.refuse_empty(&path));
        }
        self.directory = Some(directory.identity);
        let not_found: Vec<PathBuf> = match &extent {
            Extent::Whole => self.files.keys().filter(|path| !files.contains_key(*path)).cloned().collect(),
            Extent::Names(names) => {
                let paths = names.iter().map(|name| path.join(name));
                paths.filter(|path| self.files.contains_key(path) && !files.contains_key(path)).collect()
            }
        };
        match &extent {
            Extent::Whole => {
                self.ignored = ignored;
                self.note_directory(directory, (begun, ended), now);
            }
            Extent::Names(names) => {
                self.ignored.retain(|ignored| !names.contains(&OsString::from(ignored)));
                self.ignored.extend(ignored);
                self.note_part(directory, ended, not_found.is_empty());
            }
        }
        let mut accepted = Accepted::default();
        for (path, finding) in files {
            let known = self.files.entry(path.clone()).or_insert_with(|| KnownFile::new(None, Vec::new(), now));
            if matches!(finding, Finding::Same) && known.unsettled.is_none() && known.missing.is_none() {
                continue;
            }
            let (has_changed, is_altered) = known.take(finding, begun, now);
            accepted.has_changed |= has_changed;
            accepted.altered.extend(is_altered.then(|| path.clone()));
            accepted.touched.insert(path);
        }
        for path in not_found {
            let Some(file) = self.files.get_mut(&path) else { continue };
            accepted.has_changed |= file.missing.is_none();
            file.missing.get_or_insert(ended);
            accepted.touched.insert(path);
        }
        self.note(&accepted.touched);
        if let Extent::Whole = extent {
            self.judge_missing(ended, now, &mut accepted);
        }
        Ok(accepted)
    }

    /// Brings what follows from the files up to date with these.
    fn note(&mut self, paths: &BTreeSet<PathBuf>) {
        for path in paths {
            let Some(file) = self.files.get(path) else {
                self.apart.remove(path);
                self.linked.remove(path);
                self.versions.remove(path);
                self.served.remove(path);
                continue;
            };
            let is_apart = file.valid.is_none() || file.missing.is_some() || file.unsettled.is_some();
            put(&mut self.apart, path, is_apart);
            put(&mut self.linked, path, file.is_linked);
            self.versions.insert(path.clone(), file.version());
            match file.content().filter(|_| file.missing.is_none()) {
                Some(content) => drop(self.served.insert(path.clone(), Arc::clone(content))),
                None => drop(self.served.remove(path)),
            }
        }
        let missing = |path: &PathBuf| self.files.get(path).filter(|file| file.missing.is_some());
        let mut missing = self.apart.iter().filter_map(|path| Some((path, missing(path)?))).peekable();
        if missing.peek().is_some() {
            let present = self.files.values().filter(|file| file.missing.is_none());
            let defined = Defined::by(present.filter_map(|file| file.content().map(Arc::as_ref)));
            for (path, file) in missing {
                match file.content().and_then(|content| content.without(&defined)) {
                    Some(rest) => drop(self.served.insert(path.clone(), Arc::new(rest))),
                    None => drop(self.served.remove(path)),
                }
            }
        }
    }

    fn refuse_empty(&self, path: &Path) -> io::Error {
        let before = self.files.keys().next().and_then(|file| file.parent()).filter(|before| *before != path);
        let what = match before {
            None => "another, empty directory is in its place; mount the right one".to_owned(),
            Some(before) => {
                format!("it is empty, and the services were in {}; correct files.directory", before.display())
            }
        };
        let accept = "to remove the services, put a service file into it: a comment is enough";
        io::Error::new(io::ErrorKind::NotFound, format!("{what}, or, {accept}"))
    }

    fn note_directory(&mut self, directory: Stat, (begun, ended): (Instant, Instant), now: SystemTime) {
        let is_known_old = self.unchanged.is_none() && directory.is_older(CONFIRM + (ended - begun), now);
        let before = self.unchanged.take().filter(|(before, _)| *before == directory);
        let since = before.map_or(ended, |(_, since)| since);
        self.is_conclusive = is_known_old || begun >= since + CONFIRM;
        self.unchanged = Some((directory, since));
        let first = *self.first.get_or_insert(ended);
        self.is_listed |= self.is_conclusive || ended >= first + CONFIRM_AT_MOST;
    }

    /// [`Self::note_directory`] after a scan that has looked for some names only: it has not found every name.
    fn note_part(&mut self, directory: Stat, ended: Instant, has_all: bool) {
        if !has_all || self.unchanged.as_ref().is_none_or(|(before, _)| *before != directory) {
            self.is_conclusive = false;
            self.unchanged = Some((directory, ended));
        }
    }

    /// Forgets the files that are gone, and says which ones are kept although they are.
    fn judge_missing(&mut self, ended: Instant, now: SystemTime, accepted: &mut Accepted) {
        let is_since = |since: Instant| self.is_conclusive || ended >= since + CONFIRM_AT_MOST;
        let is_gone = |file: &KnownFile| file.missing.is_some_and(is_since);
        let unknown = self.unknown().find(|(_, file)| !is_gone(file)).map(|(path, _)| path.display().to_string());
        let gone: BTreeSet<PathBuf> =
            self.apart().filter(|(_, file)| is_gone(file)).map(|(path, _)| path.to_path_buf()).collect();
        for path in &gone {
            let Some(unknown) = unknown.as_ref().filter(|_| self.served.contains_key(path)) else {
                accepted.has_changed = true;
                self.files.remove(path);
                continue;
            };
            let why = format!("gone; its services stay, because they may be in {unknown}, which cannot be used");
            if let Some(file) = self.files.get_mut(path)
                && file.set_problems(vec![Problem::whole(why)])
            {
                file.since = now;
                accepted.altered.push(path.clone());
            }
        }
        self.note(&gone);
        accepted.touched.extend(gone);
    }

    /// Whether the directory was listed completely: nothing that a scan has not found yet can be in it.
    pub(super) const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Whether a scan of the whole directory is due soon, because names may be missing.
    pub(super) fn must_list(&self) -> bool {
        !self.is_conclusive && (!self.is_listed || self.apart().any(|(_, file)| file.missing.is_some()))
    }

    /// The names of the files that may not be final. They are due again after [`POLL`].
    pub(super) fn unsettled(&self) -> impl Iterator<Item = OsString> {
        let unsettled = self.apart().filter(|(_, file)| file.unsettled.is_some());
        unsettled.filter_map(|(path, _)| path.file_name().map(OsString::from))
    }

    fn apart(&self) -> impl Iterator<Item = (&Path, &KnownFile)> {
        self.apart.iter().filter_map(|path| Some((path.as_path(), self.files.get(path)?)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &KnownFile)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub(super) fn get(&self, path: &Path) -> Option<&KnownFile> {
        self.files.get(path)
    }

    /// The files without any valid version.
    fn unknown(&self) -> impl Iterator<Item = (&Path, &KnownFile)> {
        self.apart().filter(|(_, file)| file.valid.is_none())
    }

    /// The served content: the last valid version of every file, and what no other file has of those that are missing.
    pub(super) fn contents(&self) -> Contents {
        self.served.clone()
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
        let unknown: Vec<_> = self.unknown().map(|(path, file)| (path.display(), file.unsettled.is_some())).collect();
        match unknown.as_slice() {
            [] => None,
            [(path, true)] => Some(format!("{path} may be being written to").into()),
            [(path, false)] => Some(format!("{path} cannot be used; correct or remove it").into()),
            [(first, _), ..] => {
                let count = unknown.len();
                Some(format!("{count} files cannot be used, among them {first}; correct or remove them").into())
            }
        }
    }
}

/// Puts the path into the set, or takes it out.
fn put(set: &mut BTreeSet<PathBuf>, path: &Path, is_in: bool) {
    if is_in {
        set.insert(path.to_path_buf());
    } else {
        set.remove(path);
    }
}

#[cfg(test)]
#[path = "tests/known.rs"]
mod tests;

//! The rows of `/sources` for the services directory and its files. Pure.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;
use nodelb_core::hash::hash;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_host::clock::unix_seconds;

use super::known::{Files, KnownFile, Unsettled};
use super::merge::Merged;
use crate::document::Problem;

pub(super) struct DirectoryState<'a> {
    pub(super) path: &'a Path,
    /// The reason why it cannot be read, if so.
    pub(super) trouble: Option<&'a str>,
    /// Whether it was read before, so that its content may be served.
    pub(super) was_read: bool,
    /// Since when `trouble` has its current value.
    pub(super) since: SystemTime,
    pub(super) looked: Moment,
}

/// The rows of `/sources`. Copies share what is equal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileReports {
    directory: Option<Arc<SourceReport>>,
    files: OrdMap<PathBuf, Arc<SourceReport>>,
}

impl FileReports {
    /// The row of the directory, then one for each file, sorted by path.
    pub fn rows(&self) -> impl Iterator<Item = &Arc<SourceReport>> {
        self.directory.iter().chain(self.files.values())
    }

    /// Brings the rows of these files, and that of the directory, up to date.
    pub(super) fn update(
        &mut self,
        directory: &DirectoryState<'_>,
        (files, touched): (&Files, &BTreeSet<PathBuf>),
        merged: &Merged,
    ) {
        for path in touched {
            let Some(file) = files.get(path) else {
                self.files.remove(path);
                continue;
            };
            let merge_problems = merged.problems.get(path).map_or(&[][..], Vec::as_slice);
            self.files.insert(path.clone(), Arc::new(file_row(path, file, merge_problems)));
        }
        let before = self.directory.as_ref().and_then(|row| row.content).filter(|_| touched.is_empty());
        let is_known = directory.was_read || !self.files.is_empty();
        let content = before.or_else(|| is_known.then(|| self.content()));
        self.directory = Some(Arc::new(SourceReport { content, ..directory_row(directory, files, merged) }));
    }

    /// The hash of the files that have a valid version.
    fn content(&self) -> u64 {
        let contents: Vec<[u8; 8]> = self.files.values().filter_map(|row| row.content).map(u64::to_le_bytes).collect();
        hash(contents.iter().map(<[u8; 8]>::as_slice))
    }
}

/// Rows of files.
impl FromIterator<SourceReport> for FileReports {
    fn from_iter<T: IntoIterator<Item = SourceReport>>(rows: T) -> Self {
        let row = |row: SourceReport| (PathBuf::from(&row.path), Arc::new(row));
        Self { directory: None, files: rows.into_iter().map(row).collect() }
    }
}

fn directory_row(directory: &DirectoryState<'_>, files: &Files, merged: &Merged) -> SourceReport {
    let state = match (directory.trouble, directory.was_read) {
        (None, _) => SourceState::Ok,
        (Some(_), true) => SourceState::LastGood,
        (Some(_), false) => SourceState::Error,
    };
    let mut notices = Vec::new();
    if !files.ignored.is_empty() {
        let names = files.ignored.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
        let count = files.ignored.len();
        notices.push(format!("{count} ignored, since service files end in .toml, .yaml, .yml or .json: {names}"));
    }
    let problem = directory.trouble.map(|error| format!("cannot be read: {error}"));
    SourceReport {
        source: Source::Files,
        path: directory.path.display().to_string(),
        kind: Some("directory"),
        state,
        services: merged.services.len(),
        slices: merged.slices.len(),
        content: None,
        notices,
        problems: problem.into_iter().collect(),
        since: unix_seconds(directory.since),
        last_received: Some(directory.looked),
    }
}

fn file_row(path: &Path, file: &KnownFile, merge_problems: &[Problem]) -> SourceReport {
    let content = file.content();
    let mut notices = content.map_or_else(Vec::new, |content| content.notices.clone());
    notices.extend(file.unsettled.as_ref().map(|unsettled| match unsettled {
        Unsettled::Written => "being written to; it is read when its writer has closed it".into(),
        Unsettled::Polled(..) => "the kernel does not tell whether it is being written to; it is read again".into(),
    }));
    // The directory may be another one on each host.
    let name = path.file_name().unwrap_or_default();
    SourceReport {
        source: Source::Files,
        path: path.display().to_string(),
        kind: None,
        state: file.state(),
        services: content.map_or(0, |content| content.services.len()),
        slices: content.map_or(0, |content| content.slices.len()),
        content: file.valid.as_ref().map(|valid| hash([name.as_bytes(), valid.version.text.as_bytes()])),
        notices,
        problems: file.problems.iter().chain(merge_problems).map(Problem::to_string).collect(),
        since: unix_seconds(file.since),
        last_received: None,
    }
}

#[cfg(test)]
#[path = "tests/report.rs"]
mod tests;

//! The rows of `/sources` for the services directory and its files. Pure.

use std::path::Path;
use std::time::SystemTime;

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
    pub(super) looked: SystemTime,
}

/// The row of the directory, then one for each file, sorted by path.
pub(super) fn rows(directory: &DirectoryState<'_>, files: &Files, merged: &Merged) -> Vec<SourceReport> {
    let mut rows = vec![directory_row(directory, files, merged)];
    rows.extend(files.iter().map(|(path, file)| {
        let merge_problems = merged.problems.get(path).map_or(&[][..], Vec::as_slice);
        file_row(path, file, merge_problems)
    }));
    rows
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
        notices,
        problems: problem.into_iter().collect(),
        since: unix_seconds(directory.since),
        last_received: Some(unix_seconds(directory.looked)),
    }
}

fn file_row(path: &Path, file: &KnownFile, merge_problems: &[Problem]) -> SourceReport {
    let content = file.content();
    let mut notices = content.map_or_else(Vec::new, |content| content.notices.clone());
    notices.extend(file.unsettled.as_ref().map(|unsettled| match unsettled {
        Unsettled::Written => "being written to; it is read when its writer has closed it".into(),
        Unsettled::Polled(..) => "the kernel does not tell whether it is being written to; it is read again".into(),
    }));
    SourceReport {
        source: Source::Files,
        path: path.display().to_string(),
        kind: None,
        state: file.state(),
        services: content.map_or(0, |content| content.services.len()),
        slices: content.map_or(0, |content| content.slices.len()),
        notices,
        problems: file.problems.iter().chain(merge_problems).map(Problem::to_string).collect(),
        since: unix_seconds(file.since),
        last_received: None,
    }
}

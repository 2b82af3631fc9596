//! Services in local files: nodelb's own form in `*.toml`, Kubernetes objects in `*.yaml`, `*.yml` and `*.json`. Owns the
//! services directory: what is read from it, and what stays served while a file is bad. Everything but [`run`] and
//! [`scan`] is pure.

mod conflicts;
mod entries;
mod manifests;
pub mod merge;
mod report;
mod run;
mod scan;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nodelb_core::model::service::{Service, Slice};

pub use self::run::{FileSource, run};
use self::scan::{Files, Hints, Seen};
use crate::document::Problem;

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// Each service name once.
    pub services: Vec<Found<Service>>,
    /// Each slice name once.
    pub slices: Vec<Found<Slice>>,
    /// What was left out on purpose.
    pub notices: Vec<String>,
}

/// An object and where in the file it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// Line, counted from 1; `None` where unknown.
    pub line: Option<usize>,
    /// The object. Shared, for it is also in the merged content of the directory.
    pub value: Arc<T>,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// nodelb's own form.
    Entries,
    /// Kubernetes objects, in YAML or in JSON, which is YAML.
    Manifests,
}

impl Format {
    /// The format that a file name stands for. `None` for hidden files, editors' backups and all other names.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if name.starts_with(['.', '#']) {
            return None;
        }
        match path.extension()?.to_str()? {
            "toml" => Some(Self::Entries),
            "yaml" | "yml" | "json" => Some(Self::Manifests),
            _ => None,
        }
    }

    /// The largest file of this form that is read: what takes the parser half a gigabyte of memory at worst. In either
    /// form that is more than 100,000 services.
    const fn max_bytes(self) -> u64 {
        match self {
            Self::Entries => 8 << 20,
            Self::Manifests => 64 << 20,
        }
    }
}

/// Reads the content of a file; `path` decides the form and is what the objects name as their origin.
///
/// # Errors
/// All problems of the file; nothing of it should be used then.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<FileContent, Vec<Problem>> {
    let Some(format) = Format::of(path) else {
        return Err(vec![Problem::whole("not a service file: its name must end in .toml, .yaml, .yml or .json")]);
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        vec![Problem::at_line(line, "not UTF-8; save the file in that encoding")]
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let origin: Arc<str> = path.to_string_lossy().into();
    let content = match format {
        Format::Entries => entries::read(text, &origin)?,
        Format::Manifests => manifests::read(text, &origin)?,
    };
    let problems = duplicates(&content);
    if problems.is_empty() { Ok(content) } else { Err(problems) }
}

/// Objects that the file has twice.
fn duplicates(content: &FileContent) -> Vec<Problem> {
    let services = content.services.iter().map(|found| (format!("service {}", found.value.name), found.line));
    let slices = content.slices.iter().map(|found| (format!("slice {}", found.value.name), found.line));
    let mut seen: BTreeMap<String, Option<usize>> = BTreeMap::new();
    let mut problems = Vec::new();
    for (object, line) in services.chain(slices) {
        if let Some(first) = seen.get(&object) {
            let place = first.map_or(String::new(), |first| format!(" on line {first}"));
            problems.push(Problem { line, message: format!("{object} is already defined{place}; keep one of them") });
        } else {
            seen.insert(object, line);
        }
    }
    problems
}

/// A problem of a file of the services directory, or of the directory. Prints as `PATH:LINE: problem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem { line, message } = &self.problem;
        match line {
            Some(line) => write!(f, "{}:{line}: {message}", self.path.display()),
            None => write!(f, "{}: {message}", self.path.display()),
        }
    }
}

/// The files of the directory that are read as service files, as far as it can be listed. Blocks.
pub fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| Format::of(path).is_some()).collect();
    names.sort();
    names
}

/// What a look at the whole directory finds.
#[derive(Debug, Default)]
pub struct Checked {
    /// What is wrong.
    pub problems: Vec<FileProblem>,
    /// What is allowed, and may not be what was meant.
    pub notices: Vec<String>,
}

/// Reads the whole directory once and tells everything that is wrong in it, for `nodelb check-config`. Blocks.
pub fn check(directory: &Path) -> Checked {
    let listing = match scan::read(directory, &Seen::default(), &Hints::default()) {
        Ok(listing) => listing,
        Err(error) => {
            let message = format!("cannot read the services directory: {error}");
            let problem = FileProblem { path: directory.to_path_buf(), problem: Problem::whole(message) };
            return Checked { problems: vec![problem], ..Checked::default() };
        }
    };
    let mut files = Files::default();
    files.accept(listing, &BTreeSet::new(), SystemTime::now());
    let mut problems = files.problems();
    let contents = files.contents();
    let merged = merge::merge(&contents);
    problems.extend(conflicts::find(&contents, &merged));
    let notices = merged.slices.values().filter_map(|slice| loopback_notice(slice)).collect();
    for (path, found) in merged.problems {
        problems.extend(found.into_iter().map(|problem| FileProblem { path: path.clone(), problem }));
    }
    problems.sort_by(|a, b| (&a.path, a.problem.line).cmp(&(&b.path, b.problem.line)));
    Checked { problems, notices }
}

/// Backends that a pod takes for its own.
fn loopback_notice(slice: &Slice) -> Option<String> {
    let mut backends = slice.ports.iter().flat_map(|port| &port.backends).filter(|backend| backend.addr.is_loopback());
    let first = backends.next()?;
    let more = backends.count();
    let first = std::net::SocketAddr::new(first.addr.ip(), first.port);
    let which = match more {
        0 => format!("{first} is a loopback address"),
        more => format!("{first} and {more} more are loopback addresses"),
    };
    Some(format!(
        "note: {}: service {}: {which}: only processes in the node's own network namespace reach what listens there; a pod \
         that connects to the service reaches its own loopback, where usually nothing listens",
        slice.origin.object, slice.service
    ))
}

#[cfg(test)]
#[path = "tests/files.rs"]
mod tests;

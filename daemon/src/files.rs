//! Services in local files: nodelb's own format in `*.toml`, Kubernetes objects in `*.yaml`, `*.yml` and `*.json`. Owns
//! the services directory: what is read from it, and what is still served while a file is invalid. Everything except
//! `run`, `scan` and `watch` is pure.

mod conflicts;
mod entries;
mod manifests;
pub mod merge;
pub mod named;
mod report;
mod run;
mod scan;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nodelb_core::model::service::{Service, Slice};

use self::named::Named;
pub use self::run::{Batch, Started, start};
use self::scan::{Files, Hints, Listing, Seen};
use crate::document::Problem;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// The services; each name occurs once.
    pub services: Vec<Found<Service>>,
    /// The slices; each name occurs once.
    pub slices: Vec<Found<Slice>>,
    /// The backends that have names. They belong to services of the file.
    pub named: Vec<Arc<Named>>,
    /// Messages about parts that are ignored deliberately.
    pub notices: Vec<String>,
}

/// An object and its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// Line, counted from 1; `None` where unknown.
    pub line: Option<usize>,
    /// The object. Shared because the merged content of the directory contains it too.
    pub value: Arc<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// nodelb's own format.
    Entries,
    /// Kubernetes objects in YAML, or in JSON, which is a subset of YAML.
    Manifests,
}

impl Format {
    /// The format by file name. `None` for hidden files, backups of editors and all other names.
    fn from_path(path: &Path) -> Option<Self> {
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

    /// The largest file that is read, in bytes: the parser then needs half a gigabyte of memory in the worst case. In
    /// either format such a file has more than 100,000 services.
    const fn max_bytes(self) -> u64 {
        match self {
            Self::Entries => 8 << 20,
            Self::Manifests => 64 << 20,
        }
    }
}

/// Parses the content of a file. `path` decides the format and becomes the origin of the objects.
///
/// # Errors
/// All problems of the file; nothing of it should be used then.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<FileContent, Vec<Problem>> {
    let Some(format) = Format::from_path(path) else {
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

/// Objects that occur twice in the file.
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

/// A problem of the services directory or of a file in it. Prints as `PATH:LINE: problem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    pub path: PathBuf,
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

/// The service files in the directory, as far as it can be listed. Blocks.
pub fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| Format::from_path(path).is_some()).collect();
    names.sort();
    names
}

/// The result of checking the whole directory.
#[derive(Debug, Default)]
pub struct Checked {
    pub problems: Vec<FileProblem>,
    /// Notices about valid content that may be unintended.
    pub notices: Vec<String>,
}

/// Reads the whole directory once and reports all problems in it, for `nodelb check-config`. Blocks.
pub fn check(directory: &Path) -> Checked {
    let listing = match scan::read(directory, &Seen::default(), &Hints::default()) {
        Ok(listing) => listing,
        Err(error) => {
            let message = format!("cannot read the services directory: {error}");
            let problem = FileProblem { path: directory.to_path_buf(), problem: Problem::whole(message) };
            return Checked { problems: vec![problem], ..Checked::default() };
        }
    };
    let files = accepted(listing);
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

/// The services in the valid files of the directory, for a command that works without the daemon. Blocks.
///
/// # Errors
/// If the directory cannot be listed.
pub fn services(directory: &Path) -> io::Result<Vec<Arc<Service>>> {
    let contents = accepted(scan::read(directory, &Seen::default(), &Hints::default())?).contents();
    Ok(contents.values().flat_map(|content| &content.services).map(|found| Arc::clone(&found.value)).collect())
}

fn accepted(listing: Listing) -> Files {
    let mut files = Files::default();
    files.accept(listing, &BTreeSet::new(), SystemTime::now());
    files
}

/// A notice about loopback backends, which a pod takes for its own.
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

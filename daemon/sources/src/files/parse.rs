//! Parses one file, in the format that its name shows.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::content::FileContent;
use super::last_valid::Version;
use super::{entries, manifests};
use crate::document::Problem;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// nodelb's own format.
    Entries,
    /// Kubernetes objects in YAML, or in JSON, which is a subset of YAML.
    Manifests,
}

impl Format {
    /// The format by file name. `None` for hidden files, backups of editors and all other names.
    pub(super) fn from_path(path: &Path) -> Option<Self> {
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
    pub(super) const fn max_bytes(self) -> u64 {
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
    if text.trim().is_empty() {
        // A full disk, a crash and a writer that was killed leave such a file.
        let what = if text.is_empty() { "0 bytes" } else { "only white space" };
        let message = format!("{what}; delete the file to remove its services, or write at least a comment into it");
        return Err(vec![Problem::whole(message)]);
    }
    let origin: Arc<str> = path.to_string_lossy().into();
    let content = match format {
        Format::Entries => entries::read(text, &origin)?,
        Format::Manifests => manifests::read(text, &origin)?,
    };
    let problems = duplicates(&content);
    if problems.is_empty() { Ok(content) } else { Err(problems) }
}

/// A valid version of a file.
#[derive(Clone, Debug)]
pub(super) struct Valid {
    pub(super) content: Arc<FileContent>,
    pub(super) version: Version,
}

impl Valid {
    /// Parses a version of a file; the errors are those of [`parse`].
    pub(super) fn parse(path: &Path, bytes: &[u8], inode: Option<u64>) -> Result<Self, Vec<Problem>> {
        let content = Arc::new(parse(path, bytes)?);
        Ok(Self { content, version: Version { text: String::from_utf8_lossy(bytes).into(), inode } })
    }
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

#[cfg(test)]
#[path = "tests/parse.rs"]
mod tests;

//! Services in local files: nodelb's own format in `*.toml`, Kubernetes objects in `*.yaml`, `*.yml` and `*.json`. Owns
//! the services directory: what is read from it, and what is still served while a file is invalid. Everything except
//! `run`, `scan`, `system` and `watch` is pure.

mod conflicts;
mod content;
mod entries;
mod known;
mod last_valid;
mod looks;
mod manifests;
pub mod merge;
mod parse;
mod report;
mod run;
mod scan;
mod system;
mod unfinished;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nodelb_core::model::service::{Service, ServiceName, Slice};

pub use self::content::{FileContent, FileProblem, Found};
use self::known::{Files, KnownFile};
use self::merge::Merged;
use self::parse::Format;
pub use self::parse::parse;
pub use self::report::FileReports;
pub use self::run::{StartedFileSource, start};
use self::scan::{Hints, Seen};
pub use self::system::IsOpenForWriting;
use self::system::System;
use crate::document::Problem;

/// The service files in the directory, as far as it can be listed. Blocks.
pub fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| Format::from_path(path).is_some()).collect();
    names.sort();
    names
}

#[derive(Debug, Default)]
pub struct Checked {
    pub problems: Vec<FileProblem>,
    /// Notices about valid content that may be unintended.
    pub notices: Vec<String>,
}

/// Reads the whole directory once and reports all problems in it, for `nodelb check-config`. Blocks.
pub fn check(directory: &Path, is_open: IsOpenForWriting) -> Checked {
    let files = match read(directory, is_open) {
        Ok(files) => files,
        Err(error) => {
            let message = format!("cannot read the services directory: {error}");
            let problem = FileProblem { path: directory.to_path_buf(), problem: Problem::whole(message) };
            return Checked { problems: vec![problem], ..Checked::default() };
        }
    };
    let mut problems = files.problems();
    let contents = files.contents();
    let merged = merge::merge(&contents);
    problems.extend(conflicts::find(&contents, &merged));
    let is_written = |file: &KnownFile| file.unsettled.is_some();
    let written = files
        .iter()
        .filter(|(_, file)| is_written(file))
        .map(|(path, _)| format!("note: {}: not checked, because a process has it open for writing", path.display()));
    let loopback = merged.slices.values().filter_map(|slice| loopback_notice(slice));
    let notices = written.chain(loopback).chain(without_backends(&merged)).collect();
    for (path, found) in merged.problems {
        problems.extend(found.into_iter().map(|problem| FileProblem { path: path.clone(), problem }));
    }
    problems.sort_by(|a, b| (&a.path, a.problem.line).cmp(&(&b.path, b.problem.line)));
    Checked { problems, notices }
}

type Described = (Vec<Arc<Service>>, Vec<Arc<Slice>>);

/// The content of the valid files of the directory, for a command that works without the daemon. Blocks.
pub fn described(directory: &Path, is_open: IsOpenForWriting) -> io::Result<Described> {
    let contents = read(directory, is_open)?.contents();
    let services = contents.values().flat_map(|content| &content.services).map(|found| Arc::clone(&found.value));
    let slices = contents.values().flat_map(|content| &content.slices).map(|found| Arc::clone(&found.value));
    Ok((services.collect(), slices.collect()))
}

/// Reads the whole directory once.
fn read(directory: &Path, is_open: IsOpenForWriting) -> io::Result<Files> {
    let listing = scan::read(&System(is_open), directory, &Seen::default(), &Hints::default())?.of_command();
    let mut files = Files::default();
    files.accept(listing, false, SystemTime::now())?;
    Ok(files)
}

/// Notices about services with addresses and without a backend, at which connections are refused.
fn without_backends(merged: &Merged) -> impl Iterator<Item = String> {
    let has_backend = |slice: &&Arc<Slice>| slice.ports.iter().any(|port| !port.backends.is_empty());
    let slices = merged.slices.values().filter(has_backend).map(|slice| &slice.service);
    let served: BTreeSet<&ServiceName> = slices.chain(merged.named.values().map(|named| &named.service)).collect();
    let has_address = |service: &&Arc<Service>| service.ports.iter().any(|port| !port.frontends.is_empty());
    let without = merged.services.values().filter(has_address).filter(move |it| !served.contains(&it.name));
    without.map(|service| {
        let object = &service.origin.object;
        format!("note: {object}: service {} has no backends: connections to it are refused", service.name)
    })
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
#[path = "files/tests/world.rs"]
mod world;

#[cfg(test)]
#[path = "files/tests/interleavings.rs"]
mod interleavings;

#[cfg(test)]
#[path = "tests/files.rs"]
mod tests;

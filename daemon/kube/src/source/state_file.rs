//! The latest state from Kubernetes, stored in the state directory. After a reboot the daemon starts from it if no
//! apiserver is reachable. The file has one JSON object per line: a header, then the [`Change`]s that lead to the
//! state. A partly readable file is still useful, because nothing is removed due to its contents.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use nodelb_core::change::Change;
use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::{Service, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::remembered;
use serde::{Deserialize, Serialize};

use crate::apiserver::authorities::Authorities;
use crate::state;

/// The version of the file format. Files of another version are not read.
const FORM: u32 = 2;

/// The maximum length of a line in bytes; ten times the size of the largest slice.
const MAX_LINE: u64 = 16 << 20;

/// The maximum size of the file in bytes; a hundred times that of a large cluster.
const MAX_FILE: u64 = 2 << 30;

#[derive(Serialize, Deserialize)]
struct Header {
    form: u32,
    /// The identity of the cluster: [`Authorities::names`] of the servers that were connected to, the latest last. An
    /// earlier version wrote names of whole bundles.
    #[serde(default)]
    clusters: Vec<String>,
    /// The name of the node that the Node object in the file belongs to.
    #[serde(default)]
    node: String,
}

/// Like [`Change`], by reference.
#[derive(Serialize)]
enum Line<'a> {
    UpsertService(&'a Service),
    UpsertSlice(&'a Slice),
    Remember(&'a [remembered::Remembered]),
    NodeObject(Option<&'a NodeObject>),
}

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The changes, in a valid order.
    pub changes: Vec<Change>,
    /// The number of lines that could not be decoded.
    pub unreadable: usize,
}

/// The path of the file.
pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("kubernetes.jsonl")
}

/// Removes the file, which no later start will use. May block. Returns whether the file existed.
///
/// # Errors
/// The file exists and cannot be removed.
pub fn forget(state_directory: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path(state_directory)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the file. May block. `cluster` is `None` while the identity of the cluster is unknown; then a file of any
/// cluster is accepted, and an apiserver corrects it later. The Node object is ignored if it belongs to another node
/// than `node`.
///
/// # Errors
/// The file exists and cannot be read, has another format, or belongs to another cluster.
pub fn read(path: &Path, cluster: Option<&Authorities>, node: &str) -> io::Result<Remembered> {
    let file = match state::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Remembered::default()),
        file => file?,
    };
    let mut reader = BufReader::new(file.take(MAX_FILE));
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let header: Option<Header> = next_line(&mut reader)?.and_then(|line| serde_json::from_slice(&line).ok());
    let is_own = match header {
        Some(Header { form: FORM, clusters, node: of })
            if cluster.is_none_or(|cluster| clusters.iter().any(|known| cluster.include(known))) =>
        {
            of == node
        }
        Some(Header { form: FORM, .. }) => return Err(refused("it is the state of another cluster")),
        _ => return Err(refused("it is of a form this version does not know")),
    };
    let mut remembered = Remembered::default();
    while let Some(line) = next_line(&mut reader)? {
        match serde_json::from_slice(&line) {
            Ok(Change::NodeObject(_)) if !is_own => {}
            Ok(change) if is_remembered(&change) => remembered.changes.push(change),
            _ => remembered.unreadable += 1,
        }
    }
    Ok(remembered)
}

fn is_remembered(change: &Change) -> bool {
    match change {
        Change::UpsertService(service) => service.source == Source::Kubernetes,
        Change::UpsertSlice(slice) => slice.source == Source::Kubernetes,
        Change::Remember(_) | Change::NodeObject(_) => true,
        _ => false,
    }
}

/// The next line; `None` at the end of the file. A line that exceeds the limit is cut.
fn next_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}

/// Replaces the file atomically. May block.
///
/// # Errors
/// The file cannot be written. The previous contents remain.
pub fn write(path: &Path, clusters: &[String], snapshot: &Snapshot) -> io::Result<()> {
    state::replace(path, &path.with_extension("new"), |file| {
        let mut writer = BufWriter::with_capacity(64 << 10, file);
        let facts = snapshot.facts();
        let header = Header { form: FORM, clusters: clusters.to_vec(), node: facts.node().name.to_string() };
        write_line(&mut writer, &header)?;
        if let Some(node) = facts.node_object() {
            write_line(&mut writer, &Line::NodeObject(Some(node)))?;
        }
        if facts.is_node_missing() {
            write_line(&mut writer, &Line::NodeObject(None))?;
        }
        let remembered = snapshot.remembered();
        if !remembered.is_empty() {
            // These come first: they apply if the objects that follow have no backends left.
            write_line(&mut writer, &Line::Remember(&remembered))?;
        }
        for service in facts.services_of(Source::Kubernetes) {
            write_line(&mut writer, &Line::UpsertService(service))?;
        }
        for slice in facts.slices_of(Source::Kubernetes) {
            write_line(&mut writer, &Line::UpsertSlice(slice))?;
        }
        writer.flush()
    })
}

fn write_line(writer: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, line)?;
    writer.write_all(b"\n")
}

#[cfg(test)]
#[path = "tests/remember.rs"]
mod tests;

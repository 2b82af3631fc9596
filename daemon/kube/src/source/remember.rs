//! The last state heard, kept in the state directory: what a daemon starts from after a reboot while no apiserver can be
//! reached. One JSON object per line: a header, then the [`Change`]s that lead to the state. Whatever of the file can be
//! read is of use, for nothing is removed on its word.

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

/// The form of the file; another one is not read.
const FORM: u32 = 2;

/// The most bytes read of a line; ten times the largest slice.
const MAX_LINE: u64 = 16 << 20;

/// The most bytes read of a file: a hundred times a large cluster.
const MAX_FILE: u64 = 2 << 30;

#[derive(Serialize, Deserialize)]
struct Header {
    form: u32,
    /// Whose state it is: [`Authorities::names`] of those who vouched for the cluster's servers while it was heard, the
    /// latest last. An earlier version wrote the names of whole bundles.
    #[serde(default)]
    clusters: Vec<String>,
    /// Which node's Node it has.
    #[serde(default)]
    node: String,
}

/// As [`Change`], by reference.
#[derive(Serialize)]
enum Line<'a> {
    UpsertService(&'a Service),
    UpsertSlice(&'a Slice),
    Remember(&'a [remembered::Remembered]),
    NodeObject(Option<&'a NodeObject>),
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// In an order in which they make sense.
    pub changes: Vec<Change>,
    /// How many lines make no sense.
    pub unreadable: usize,
}

/// Where the state lies.
pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("kubernetes.jsonl")
}

/// Removes what was written: no start serves it any more. May block. Whether there was anything.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn forget(state_directory: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path(state_directory)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads what was written last. May block. Where the reader cannot know yet which `cluster` it is of, any is good: an
/// apiserver will say what is wrong with it. The Node of another `node` than this one is left out.
///
/// # Errors
/// When the file is there and cannot be read, is of another form, or not of `cluster`.
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

/// `None` at the end; a line that is too long ends the file.
fn next_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}

/// Writes the state: whole, or not at all. May block.
///
/// # Errors
/// When it cannot be written; what was written before is still there.
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
            // First, for it counts where the objects after it say that nothing is left.
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
mod tests;

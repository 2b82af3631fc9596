//! The latest state from Kubernetes, stored in the state directory. After a reboot the daemon starts from it if no
//! apiserver is reachable. The file has one JSON object per line: a header, then the [`Change`]s that result in the
//! state; what changes later is appended. A partly readable file is still useful, because nothing is removed due to its
//! contents.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::{Origin, Service, ServiceName, Slice, SliceName, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::remembered;
use nodelb_host::lines::{self, Lines};
use nodelb_host::messages;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::store::reselected::Reselected;
use crate::api::names::Names;
use crate::api::scope::Selection;
use crate::apiserver::credentials::authorities::Authorities;
use nodelb_host::state_file::{self, Limits, Reading, StateFile};

/// The maximum number of stored names of certificate authorities. A rotation has two, and a third name for the bundle of
/// both.
const MAX_CLUSTERS: usize = 16;

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
    /// What the objects in the file were selected by; an earlier version wrote nothing.
    #[serde(default)]
    selection: Option<Selection>,
}

/// Like [`Change`], by reference.
#[derive(Serialize)]
enum Line<'a> {
    UpsertService(&'a Service),
    UpsertSlice(&'a Slice),
    RemoveService(&'a ServiceName, Source),
    RemoveSlice(&'a SliceName, Source),
    Remember(&'a [remembered::Remembered]),
    NodeObject(Option<&'a NodeObject>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The changes, in a valid order.
    pub changes: Vec<Change>,
    /// The number of lines that could not be decoded.
    pub unreadable: usize,
    /// What they were selected by, if the file says so.
    pub selection: Option<Selection>,
}

pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("kubernetes.jsonl")
}

/// Removes the file, which no later start will use. May block. Returns whether the file existed.
pub fn forget(state_directory: &Path) -> io::Result<bool> {
    state_file::remove(&path(state_directory))
}

/// Reads the file. May block. `cluster` is `None` while the identity of the cluster is unknown; then a file of any
/// cluster is accepted, and an apiserver corrects it later. The Node object is ignored if it belongs to another node
/// than `node`.
///
/// # Errors
/// The file exists and cannot be read, has another format, or belongs to another cluster.
pub fn read(path: &Path, cluster: Option<&Authorities>, node: &str) -> io::Result<Loaded> {
    let file = match state_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::default()),
        file => file?,
    };
    let mut reader = BufReader::new(file.take(MAX_FILE));
    let refused = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem);
    let header: Option<Header> = next_line(&mut reader)?.and_then(|line| serde_json::from_slice(&line).ok());
    let (is_own, selection) = match header {
        Some(Header { form: FORM, clusters, node: stored, selection })
            if cluster.is_none_or(|cluster| clusters.iter().any(|known| cluster.include(known))) =>
        {
            (stored == node, selection)
        }
        Some(Header { form: FORM, .. }) => return Err(refused("it belongs to another cluster")),
        _ => return Err(refused("this nodelb does not support its format")),
    };
    let (mut latest, mut names, mut unreadable) = (Latest::default(), Names::default(), 0);
    while let Some(line) = next_line(&mut reader)? {
        match serde_json::from_slice(&line) {
            Ok(Change::NodeObject(_)) if !is_own => {}
            Ok(mut change) => {
                names.share(&mut change);
                unreadable += usize::from(!latest.take(change));
            }
            Err(_) => unreadable += 1,
        }
    }
    let Latest { first, services, slices } = latest;
    Ok(Loaded {
        changes: first.into_iter().chain(services.into_values()).chain(slices.into_values()).collect(),
        unreadable,
        selection,
    })
}

/// What a start with this selection will hold back, if it leaves out most of the services in the file: such as
/// `kubernetes.namespaces = shopp selects 0 of 12 known services`. Only an API server knows what a label selector leaves
/// out. May block.
///
/// # Errors
/// As [`read`].
pub fn held(path: &Path, selection: &Selection) -> io::Result<Option<String>> {
    let stored = read(path, None, "")?;
    let name = |change| match change {
        Change::UpsertService(service) => Some(service.name),
        _ => None,
    };
    let names: Vec<_> = stored.changes.into_iter().filter_map(name).collect();
    let left_out = names.iter().filter(|name| !selection.covers(name)).count();
    let keys = selection.narrowed_from(&stored.selection.unwrap_or_default());
    Ok(keys.and_then(|keys| Reselected::new(&keys, names.len()).problem(left_out)))
}

/// The latest line about each object, and those that come first.
#[derive(Default)]
struct Latest {
    first: Vec<Change>,
    services: BTreeMap<ServiceName, Change>,
    slices: BTreeMap<SliceName, Change>,
}

impl Latest {
    /// Returns whether the file may have such a change.
    fn take(&mut self, change: Change) -> bool {
        match change {
            Change::UpsertService(ref service) if service.source == Source::Kubernetes => {
                self.services.insert(service.name.clone(), change);
            }
            Change::UpsertSlice(ref slice) if slice.source == Source::Kubernetes => {
                self.slices.insert(slice.name.clone(), change);
            }
            Change::RemoveService(name, Source::Kubernetes) => drop(self.services.remove(&name)),
            Change::RemoveSlice(name, Source::Kubernetes) => drop(self.slices.remove(&name)),
            Change::Remember(_) | Change::NodeObject(_) => self.first.push(change),
            _ => return false,
        }
        true
    }
}

/// The next line; `None` at the end of the file. A line that exceeds the limit is cut.
fn next_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}

/// The content of an object without comparing it: its place in memory, and its resourceVersion, because a place may be used
/// again.
type Version = (usize, Arc<str>);

/// What the file has.
#[derive(Default)]
struct Written {
    lines: Lines,
    /// The lines before the objects.
    first: Vec<u8>,
    services: BTreeMap<ServiceName, Version>,
    slices: BTreeMap<SliceName, Version>,
}

impl Written {
    /// Brings the file up to date. May block.
    ///
    /// # Errors
    /// The file cannot be written. The previous contents remain.
    fn write(&mut self, path: &Path, of: (&[String], &Selection), snapshot: &Snapshot) -> io::Result<()> {
        let facts = &snapshot.facts;
        let (services, slices) = (facts.services_of(Source::Kubernetes), facts.slices_of(Source::Kubernetes));
        let services: BTreeMap<_, _> = services.map(|it| (it.name.clone(), version(it, &it.origin))).collect();
        let slices: BTreeMap<_, _> = slices.map(|it| (it.name.clone(), version(it, &it.origin))).collect();
        let mut before = std::mem::take(self);
        let first = first_lines(of, snapshot)?;
        let changed = (first == before.first).then(|| {
            let mut lines = Vec::new();
            for name in before.services.keys().filter(|name| !services.contains_key(*name)) {
                lines::push(&mut lines, &Line::RemoveService(name, Source::Kubernetes))?;
            }
            for name in before.slices.keys().filter(|name| !slices.contains_key(*name)) {
                lines::push(&mut lines, &Line::RemoveSlice(name, Source::Kubernetes))?;
            }
            let is_new_service = |it: &Service| before.services.get(&it.name) != services.get(&it.name);
            let is_new_slice = |it: &Slice| before.slices.get(&it.name) != slices.get(&it.name);
            write_objects(&mut lines, snapshot, is_new_service, is_new_slice).map(|()| lines)
        });
        let changed = changed.transpose()?;
        before.lines.write(path, changed.as_deref(), |writer| {
            writer.write_all(&first)?;
            write_objects(writer, snapshot, |_| true, |_| true)
        })?;
        *self = Self { lines: before.lines, first, services, slices };
        Ok(())
    }
}

fn version<T>(object: &T, origin: &Origin) -> Version {
    (std::ptr::from_ref(object).addr(), Arc::clone(&origin.resource_version))
}

fn first_lines((clusters, selection): (&[String], &Selection), snapshot: &Snapshot) -> io::Result<Vec<u8>> {
    let (facts, mut lines) = (&snapshot.facts, Vec::new());
    let (clusters, selection) = (clusters.to_vec(), Some(selection.clone()));
    let header = Header { form: FORM, clusters, node: facts.node().name.to_string(), selection };
    lines::push(&mut lines, &header)?;
    if let Some(node) = facts.node_object() {
        lines::push(&mut lines, &Line::NodeObject(Some(node)))?;
    }
    if facts.is_node_missing {
        lines::push(&mut lines, &Line::NodeObject(None))?;
    }
    let remembered = snapshot.remembered();
    if !remembered.is_empty() {
        // These come first: they apply if the objects that follow have no backends left.
        lines::push(&mut lines, &Line::Remember(&remembered))?;
    }
    Ok(lines)
}

fn write_objects(
    writer: &mut dyn Write,
    snapshot: &Snapshot,
    has_service: impl Fn(&Service) -> bool,
    has_slice: impl Fn(&Slice) -> bool,
) -> io::Result<()> {
    for service in snapshot.facts.services_of(Source::Kubernetes).filter(|it| has_service(it)) {
        lines::push(writer, &Line::UpsertService(service))?;
    }
    for slice in snapshot.facts.slices_of(Source::Kubernetes).filter(|it| has_slice(it)) {
        lines::push(writer, &Line::UpsertSlice(slice))?;
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub struct StateSettings {
    pub directory: PathBuf,
    /// The certificate authorities, which identify the cluster; `None` if they cannot be read yet.
    pub cluster: Option<Authorities>,
    /// The mean time between two writes while everything changes all the time and an apiserver is connected.
    pub save_every: Duration,
    /// The minimum time between two writes: a change is written that soon, unless there were many writes. Without an
    /// apiserver it always is: if the process is killed now, the next start has nothing but the file.
    pub save_soon: Duration,
    /// The time limit for reading the file at start, and for writing it at the end.
    pub timeout: Duration,
}

impl StateSettings {
    /// Whether this is everything in the file, and belongs to this cluster: if nothing was loaded, perhaps it could not be
    /// read, and a file of an unknown cluster may contain objects of another one.
    pub(super) fn is_whole(&self, loaded: &Loaded) -> bool {
        self.cluster.is_some() && !loaded.changes.is_empty() && loaded.unreadable == 0
    }

    /// Begins to read the state file.
    pub fn begin(&self, node: &str) -> Reading<Loaded> {
        let (cluster, node) = (self.cluster.clone(), node.to_owned());
        let consequence = "the services in it are not known until it can be read or an apiserver is reachable";
        Reading::begin(path(&self.directory), consequence, move |path| read(path, cluster.as_ref(), &node))
    }

    /// Logs what has been read: the number of objects that are used, and of unreadable lines.
    pub fn log(&self, objects: usize, unreadable: usize) {
        let path = path(&self.directory);
        let path = path.display();
        if unreadable > 0 {
            warn!(message_id = %messages::STATE_UNREADABLE, "ignored {unreadable} lines of {path} that cannot be decoded");
        }
        if objects > 0 {
            info!(
                message_id = %messages::STATE_LOADED,
                "loaded {objects} objects from {path}; they stay in use until an apiserver confirms or corrects them"
            );
        }
    }
}

/// The names of the certificate authorities, the selection, and the latest snapshot at the time of the write. A stored
/// snapshot would occupy memory for everything that has changed since.
type Contents = (Vec<String>, Selection, watch::Receiver<Arc<Snapshot>>);

/// How many writes may follow each other as fast as possible. A rollout takes a few minutes.
const WRITES_IN_A_ROW: u32 = 12;

/// When the file may be written: soon after a change, and seldom while everything changes all the time.
#[derive(Debug)]
struct Pace {
    soon: Duration,
    every: Duration,
    /// The time that the next writes may use up, each as much as `every`.
    credit: Duration,
    written: Option<Instant>,
    /// When the credit was last computed.
    counted: Instant,
}

impl Pace {
    fn new(soon: Duration, every: Duration, now: Instant) -> Self {
        Self { soon, every, credit: every * WRITES_IN_A_ROW, written: None, counted: now }
    }

    /// Whether the file may be written now; if so, it is.
    fn take(&mut self, is_connected: bool, now: Instant) -> bool {
        let earned = now.duration_since(std::mem::replace(&mut self.counted, now));
        self.credit = (self.credit + earned).min(self.every * WRITES_IN_A_ROW);
        let is_soon = self.written.is_none_or(|written| now.duration_since(written) >= self.soon);
        if !is_soon || is_connected && self.credit < self.every {
            return false;
        }
        self.credit = self.credit.saturating_sub(self.every);
        self.written = Some(now);
        true
    }
}

/// Decides when the state file is written, and which cluster it belongs to.
pub(super) struct Saver {
    file: StateFile<Contents>,
    /// What the previous run has stored, until it has been read.
    pub(super) unread: Option<Reading<Loaded>>,
    /// Whether [`Change::Recalled`] was sent.
    pub(super) is_recall_sent: bool,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    pace: Pace,
    is_connected: bool,
    /// The names of the certificate authorities of the servers that were connected to in this run, the latest last.
    clusters: Vec<String>,
    /// What the services were selected by: the latest selection that has taken effect.
    selection: Selection,
    /// The number of names at the end of `clusters` that belong to the session in use.
    latest: usize,
    is_outdated: bool,
    /// The time of the latest change that may not be in a published snapshot yet.
    changed_at: Option<Instant>,
}

/// How long the owner task may take to publish its last snapshot at the end of the process.
const LAST_SNAPSHOT: Duration = Duration::from_secs(1);

impl Saver {
    pub(super) fn new(
        settings: &StateSettings,
        selection: Selection,
        snapshot: watch::Receiver<Arc<Snapshot>>,
    ) -> Self {
        let StateSettings { save_every, save_soon, timeout, .. } = *settings;
        let consequence = "after a reboot without a reachable apiserver, the services would be missing";
        let limits = Limits { every: Duration::ZERO, retry: save_soon, timeout };
        let written = Mutex::new(Written::default());
        let write = move |path: &Path, (clusters, selection, snapshot): Contents| {
            let latest = Arc::clone(&snapshot.borrow());
            written.lock().unwrap_or_else(PoisonError::into_inner).write(path, (&clusters, &selection), &latest)
        };
        let file = StateFile::start(path(&settings.directory), consequence, limits, write);
        Self {
            file,
            unread: None,
            is_recall_sent: false,
            snapshot,
            pace: Pace::new(save_soon, save_every, Instant::now()),
            is_connected: false,
            clusters: Vec::new(),
            selection,
            latest: 0,
            is_outdated: false,
            changed_at: None,
        }
    }

    /// Reports whether an apiserver is connected. What waits to be written is written soon after the connection was
    /// lost.
    pub(super) fn set_connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
    }

    pub(super) fn mark_outdated(&mut self) {
        self.is_outdated = true;
        self.changed_at = Some(Instant::now());
    }

    /// Sets what the services are selected by.
    pub(super) fn select(&mut self, selection: Selection) {
        if self.selection != selection {
            self.selection = selection;
            self.mark_outdated();
        }
    }

    /// Sets the certificate authorities of the session in use ([`Authorities::names`]). Earlier names of the same
    /// cluster stay valid: after a rotation, an administrator may restart nodelb with the previous certificate
    /// authority.
    pub(super) fn set_authorities(&mut self, names: &[String]) {
        let names = &names[names.len().saturating_sub(MAX_CLUSTERS)..];
        self.latest = names.len();
        if self.clusters.ends_with(names) {
            return;
        }
        self.clusters.retain(|known| !names.contains(known));
        self.clusters.extend_from_slice(names);
        let excess = self.clusters.len().saturating_sub(MAX_CLUSTERS);
        self.clusters.drain(..excess);
        self.mark_outdated();
    }

    /// The uid of the cluster has changed: forgets the certificate authorities of the previous cluster.
    pub(super) fn forget_previous_cluster(&mut self) {
        let previous = self.clusters.len().saturating_sub(self.latest);
        self.clusters.drain(..previous);
        self.mark_outdated();
    }

    /// Whether the file lacks something that it should have.
    fn needs_write(&self) -> bool {
        let has_new_snapshot = self.changed_at.is_some() && self.snapshot.has_changed().unwrap_or(false);
        (self.is_outdated || has_new_snapshot) && self.has_everything()
    }

    /// Saves the latest snapshot if it has everything that the file has, the file is outdated and the last write is not too recent. Never
    /// waits.
    pub(super) fn save_if_outdated(&mut self) {
        if self.needs_write() && self.pace.take(self.is_connected, Instant::now()) {
            self.save();
        }
    }

    fn save(&mut self) {
        // The owner task may apply the latest changes to one of the next snapshots.
        if !self.is_outdated {
            self.changed_at = self.changed_at.filter(|at| at.elapsed() < self.pace.soon);
        }
        self.is_outdated = false;
        self.snapshot.mark_unchanged();
        self.file.save((self.clusters.clone(), self.selection.clone(), self.snapshot.clone()));
    }

    /// Whether the latest snapshot may replace the file, which has been read: the source is synced, or everything in the file
    /// was recalled and the cluster is known. The owner task publishes what it has received with its next round, not at once.
    fn has_everything(&self) -> bool {
        let facts = &self.snapshot.borrow().facts;
        let is_recalled = facts.is_recalled(Source::Kubernetes);
        let has_file = self.unread.is_none() && (is_recalled || !self.is_recall_sent);
        has_file && (facts.is_synced(Source::Kubernetes) || is_recalled && !self.clusters.is_empty())
    }

    /// Writes the last state at the end of the process, within the time limit. The owner task takes what waits for it and
    /// ends; only its last snapshot contains everything that readers may have seen.
    pub(super) async fn close(mut self) {
        let ended = async { while self.snapshot.changed().await.is_ok() {} };
        // After this time, the latest snapshot is better than none.
        _ = timeout(LAST_SNAPSHOT, ended).await;
        // A closed channel does not tell whether this snapshot is a new one.
        self.is_outdated |= self.changed_at.is_some();
        if self.needs_write() {
            self.save();
        }
        self.file.close().await;
    }
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
pub(super) mod tests;

//! Since when each frontend has had its status, and each problem of the node has lasted, and the names of the service ports,
//! kept in the state directory over a restart: connections continue while nodelb does not run. Owns the format of the file.
//! After a reboot it is of no use.
//!
//! The file is true or absent: what cannot be written removes the earlier file, for which a full disk has room, and where
//! nothing can be removed, nothing is read.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use nodelb_core::before::{Lasting, Statuses};
use nodelb_core::engine::Engine;
use nodelb_core::history::Record;
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_host::clock::{Taken, boot_id, unix_millis};
use nodelb_host::state_file::{self, Limits, START, StateFile};
use nodelb_report::problems::{Beginnings, Reason};
use nodelb_report::time::Time;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::recorder::{self, Reporter};

mod unstored;

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a million frontends.
const MAX_BYTES: usize = 128 << 20;

const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_secs(30), timeout: Duration::from_secs(2) };

/// For each this many frontends, changes are collected for a second before they are written.
const FRONTENDS_IN_A_SECOND: usize = 20_000;

/// The longest time for which changes are collected, in seconds.
const LONGEST_PAUSE: u64 = 5;

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    /// The boot since which times are counted.
    boot: String,
    /// Address, hash of the service, status, and the time in milliseconds.
    statuses: Vec<(L4Addr, u32, Status, u64)>,
    /// Service, name, protocol and family of each service port.
    #[serde(default)]
    ports: Vec<(ServiceName, Arc<str>, Protocol, Family)>,
    /// Reason and object of each problem of the node, and the time in milliseconds since 1970.
    #[serde(default)]
    problems: Vec<(String, String, u64)>,
}

/// What the previous run has stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    pub statuses: Statuses,
    pub ports: Vec<PortKey>,
    pub problems: Beginnings,
    /// The latest events, which may be later than the rest.
    pub latest: Vec<Record>,
}

impl Past {
    /// Passes the engine its part, and the history what the previous run could not store. Returns the problems.
    pub fn recall(self, engine: &mut Engine, history: &mut Reporter, start: Moment) -> Beginnings {
        let (Self { mut statuses, ports, problems, latest }, now) = (self, unix_millis());
        let maps = engine.snapshot(start).realised;
        let moment = |at| Some(Moment(start.0.checked_sub(now.checked_sub(at)?)?));
        unstored::follow(&mut statuses, &latest, &maps, moment);
        history.record(unstored::unrecorded(&statuses, &ports, &maps), Taken::now());
        engine.recall(statuses, start);
        engine.recall_ports(ports);
        problems
    }
}

pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("since.json")
}

/// Reads the file and the latest events: nothing, with a warning, if this fails or takes too long.
pub async fn load(path: &Path) -> Past {
    let consequence = "`Since` begins at this start";
    state_file::load(path, START, consequence, |path| read(path, &boot_id()?)).await.unwrap_or_default()
}

/// The statuses that a daemon has stored, for a command that works without it. May block.
pub fn stored(state_directory: &Path) -> io::Result<Statuses> {
    Ok(parsed(&path(state_directory), &boot_id()?)?.unwrap_or_default().statuses)
}

fn read(path: &Path, boot: &str) -> io::Result<Past> {
    let Some(past) = parsed(path, boot)? else { return Ok(Past::default()) };
    state_file::replaceable(path)?;
    // Without them, a status is as old as this start.
    let latest = path.parent().map(recorder::latest).transpose().unwrap_or_default();
    Ok(Past { latest: latest.unwrap_or_default(), ..past })
}

fn parsed(path: &Path, boot: &str) -> io::Result<Option<Past>> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let Some(form) = form.filter(|form| form.boot == boot) else { return Ok(None) };
    let lasting = |(address, service, status, since)| ((address, service), Lasting { status, since: Moment(since) });
    let named = |(service, port, protocol, family)| PortKey { service, port, protocol, family };
    let ports = form.ports.into_iter().map(named).collect();
    let reason = |name: &str| Reason::ALL.iter().find(|reason| reason.entry().name == name).copied();
    let problem = |(name, object, since): (String, String, u64)| Some(((reason(&name)?, object), Time(since)));
    let problems = form.problems.into_iter().filter_map(problem).collect();
    let statuses = form.statuses.into_iter().map(lasting).collect();
    Ok(Some(Past { statuses, ports, problems, latest: Vec::new() }))
}

fn new_path(path: &Path) -> PathBuf {
    path.with_extension("json.new")
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn bytes<'a>(
    statuses: &Statuses,
    ports: impl Iterator<Item = &'a Arc<PortKey>>,
    problems: &Beginnings,
    boot: &str,
) -> io::Result<Vec<u8>> {
    let row = |(&(address, service), it): (&(L4Addr, u32), &Lasting)| (address, service, it.status, it.since.0);
    let statuses = statuses.iter().map(row).collect();
    let named = |it: &Arc<PortKey>| (it.service.clone(), Arc::clone(&it.port), it.protocol, it.family);
    let ports = ports.map(named).collect();
    let problem = |((reason, object), since): (&(Reason, String), &Time)| (reason.to_string(), object.clone(), since.0);
    let problems = problems.iter().map(problem).collect();
    let mut bytes = serde_json::to_vec(&Form { version: VERSION, boot: boot.to_owned(), statuses, ports, problems })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    state_file::replace(path, &new_path(path), |mut file| file.write_all(bytes))
}

/// The last contents of the file, as a hash.
#[derive(Default)]
struct Written(AtomicU64);

impl Written {
    /// Writes the contents unless the file has them. If this fails, the file is removed: it is no longer true.
    fn write(&self, path: &Path, contents: io::Result<Vec<u8>>) -> io::Result<()> {
        let hash = |bytes: &Vec<u8>| BuildHasherDefault::<DefaultHasher>::new().hash_one(bytes);
        let written = contents.and_then(|bytes| {
            if hash(&bytes) != self.0.load(Ordering::Relaxed) {
                write(path, &bytes)?;
                self.0.store(hash(&bytes), Ordering::Relaxed);
            }
            Ok(())
        });
        written.map_err(|error| {
            self.0.store(0, Ordering::Relaxed);
            match remove(path) {
                Ok(()) => error,
                Err(why) => io::Error::other(format!("{error}; the outdated file cannot be removed either: {why}")),
            }
        })
    }
}

/// What the file is written from, now or later.
type Sources = (watch::Receiver<Arc<Snapshot>>, watch::Receiver<Arc<Beginnings>>);

/// Starts the task that writes the file, which ends after the last snapshot. `stop` ends its pauses. The sender accepts
/// other problems than those of the previous run.
pub fn start(
    path: PathBuf,
    mut snapshot: watch::Receiver<Arc<Snapshot>>,
    problems: Beginnings,
    stop: CancellationToken,
) -> (JoinHandle<()>, watch::Sender<Arc<Beginnings>>) {
    let (beginnings, mut problems) = watch::channel(Arc::new(problems));
    let written = Written::default();
    // A stored snapshot would occupy memory for everything that has changed since.
    let save = move |path: &Path, (snapshot, problems): Sources| {
        let (snapshot, problems) = (Arc::clone(&snapshot.borrow()), Arc::clone(&problems.borrow()));
        let contents = |boot: String| bytes(&snapshot.statuses(), snapshot.port_names(), &problems, &boot);
        written.write(path, boot_id().and_then(contents))
    };
    let task = async move {
        let file = StateFile::start(path, "after a restart, `Since` would begin at that restart", LIMITS, save);
        loop {
            tokio::select! {
                changed = snapshot.changed() => if changed.is_err() {
                    break;
                },
                Ok(()) = problems.changed() => {}
            }
            let seconds = snapshot.borrow_and_update().rows.len() / FRONTENDS_IN_A_SECOND;
            let pause = Duration::from_secs((seconds as u64).clamp(1, LONGEST_PAUSE));
            file.save((snapshot.clone(), problems.clone()));
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
        file.close().await;
    };
    (tokio::spawn(task), beginnings)
}

#[cfg(test)]
#[path = "tests/since.rs"]
mod tests;

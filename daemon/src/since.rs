//! Since when each frontend has had its status, and each problem of the node has lasted, and the names of the service ports,
//! kept in the state directory over a restart: connections continue while nodelb does not run. Owns the format of the file.
//! After a reboot it is of no use.
//!
//! The file is true or absent: what cannot be written removes the earlier file, for which a full disk has room, and where
//! nothing can be removed, nothing is read. It has one JSON value per line; what changes is appended.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodelb_core::before::{Lasting, Statuses};
use nodelb_core::engine::Engine;
use nodelb_core::history::Record;
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_core::statuses::KnownStatuses;
use nodelb_host::clock::{Taken, boot_id, unix_millis};
use nodelb_host::lines::{Lines, push};
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

const VERSION: u32 = 2;

/// Maximum size of the file in bytes, enough for a million frontends.
const MAX_BYTES: u64 = 256 << 20;

/// Of the file of an earlier version.
const EARLIER_VERSION: u32 = 1;
const EARLIER_MAX_BYTES: usize = 128 << 20;

const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_secs(30), timeout: Duration::from_secs(2) };

/// For each this many frontends, changes are collected for a second before they are written.
const FRONTENDS_IN_A_SECOND: usize = 20_000;

/// The longest time for which changes are collected, in seconds.
const LONGEST_PAUSE: u64 = 5;

#[derive(Serialize, Deserialize)]
enum Line {
    /// The first line: the version of the format, and the boot since which times are counted.
    Since(u32, String),
    /// Address, hash of the service, status or none any more, and the time in milliseconds.
    Status(L4Addr, u32, Option<Status>, u64),
    /// Service, name, protocol and family of a service port.
    Port(ServiceName, Arc<str>, Protocol, Family),
    /// Reason and object of each problem of the node, and the time in milliseconds since 1970.
    Problems(Vec<(String, String, u64)>),
}

/// What the previous run has stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    pub statuses: Statuses,
    pub ports: Vec<PortKey>,
    pub problems: Beginnings,
    /// The latest events, which may be later than the rest.
    pub latest: Vec<Record>,
    /// The statuses in the file, also if they are of an earlier boot.
    pub of_any_boot: Statuses,
}

impl Past {
    /// Passes the engine its part, and the history what the previous run could not store. Returns the problems.
    pub fn recall(self, engine: &mut Engine, history: &mut Reporter, start: Moment) -> Beginnings {
        let (Self { mut statuses, ports, problems, latest, of_any_boot }, now) = (self, unix_millis());
        let maps = engine.snapshot(start).realised;
        let moment = |at| Some(Moment(start.0.checked_sub(now.checked_sub(at)?)?));
        unstored::follow(&mut statuses, &latest, &maps, moment);
        history.record(unstored::unrecorded(&statuses, &ports, &maps), Taken::now());
        engine.recall(statuses, start);
        engine.recall_ports(ports);
        engine.recall_served(&of_any_boot);
        problems
    }
}

pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("since.jsonl")
}

/// Reads the file and the latest events: nothing, with a warning, if this fails or takes too long. The file is not read on,
/// because it would have to stay until then, and would not be true.
pub async fn load(path: &Path) -> Past {
    let consequence = "`Since` begins at this start";
    state_file::load(path, START, consequence, |path| read(path, &boot_id()?)).await.unwrap_or_default()
}

fn read(path: &Path, boot: &str) -> io::Result<Past> {
    let Some((past, is_of_boot)) = parsed(path, boot)? else { return Ok(Past::default()) };
    let of_any_boot = past.statuses.clone();
    if !is_of_boot {
        return Ok(Past { of_any_boot, ..Past::default() });
    }
    state_file::replaceable(path)?;
    // Without them, a status is as old as this start.
    let latest = path.parent().map(recorder::latest).transpose().unwrap_or_default();
    Ok(Past { latest: latest.unwrap_or_default(), of_any_boot, ..past })
}

/// What the file has, and whether it is of this boot. A line that was cut off is left out.
fn parsed(path: &Path, boot: &str) -> io::Result<Option<(Past, bool)>> {
    let file = match state_file::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(earlier(&earlier_path(path), boot)?.map(|past| (past, true)));
        }
        file => file?,
    };
    let mut lines = BufReader::new(file.take(MAX_BYTES)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let is_of_boot = match serde_json::from_str(&first) {
        Ok(Line::Since(VERSION, of)) => of == boot,
        _ => return Err(io::Error::new(ErrorKind::InvalidData, "this nodelb does not support its format")),
    };
    let (mut past, mut ports) = (Past::default(), BTreeSet::new());
    for line in lines {
        match serde_json::from_str(&line?) {
            Ok(Line::Status(address, service, status, since)) => {
                let key = (address, service);
                match status {
                    Some(status) => past.statuses.insert(key, Lasting { status, since: Moment(since) }),
                    None => past.statuses.remove(&key),
                };
            }
            Ok(Line::Port(service, port, protocol, family)) => {
                ports.insert(PortKey { service, port, protocol, family });
            }
            Ok(Line::Problems(problems)) => past.problems = problems.into_iter().filter_map(problem).collect(),
            Ok(Line::Since(..)) | Err(_) => {}
        }
    }
    past.ports = ports.into_iter().collect();
    Ok(Some((past, is_of_boot)))
}

fn earlier_path(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// What the file of an earlier version has of this boot.
fn earlier(path: &Path, boot: &str) -> io::Result<Option<Past>> {
    #[derive(Deserialize)]
    struct Form {
        boot: String,
        statuses: Vec<(L4Addr, u32, Status, u64)>,
        #[serde(default)]
        ports: Vec<(ServiceName, Arc<str>, Protocol, Family)>,
        #[serde(default)]
        problems: Vec<(String, String, u64)>,
    }
    let form: Option<Form> = state_file::read_json(path, EARLIER_MAX_BYTES, EARLIER_VERSION)?;
    let Some(form) = form.filter(|form| form.boot == boot) else { return Ok(None) };
    let lasting = |(address, service, status, since)| ((address, service), Lasting { status, since: Moment(since) });
    let named = |(service, port, protocol, family)| PortKey { service, port, protocol, family };
    Ok(Some(Past {
        statuses: form.statuses.into_iter().map(lasting).collect(),
        ports: form.ports.into_iter().map(named).collect(),
        problems: form.problems.into_iter().filter_map(problem).collect(),
        ..Past::default()
    }))
}

fn problem((name, object, since): (String, String, u64)) -> Option<((Reason, String), Time)> {
    let reason = Reason::ALL.iter().find(|reason| reason.entry().name == name)?;
    Some(((*reason, object), Time(since)))
}

/// What the file has, or is to have.
#[derive(Default)]
struct State {
    known: KnownStatuses,
    problems: Arc<Beginnings>,
}

impl State {
    /// The lines from which the later state follows. The names of ports that are gone stay until the file is written again.
    fn lines_to(&self, later: &Self) -> io::Result<Vec<u8>> {
        let mut lines = Vec::new();
        for ((address, service), lasting) in self.known.changes(&later.known) {
            let (status, since) = lasting.map(|lasting| (lasting.status, lasting.since.0)).unzip();
            push(&mut lines, &Line::Status(address, service, status, since.unwrap_or_default()))?;
        }
        for PortKey { service, port, protocol, family } in self.known.new_ports(&later.known) {
            push(&mut lines, &Line::Port(service.clone(), Arc::clone(port), *protocol, *family))?;
        }
        if self.problems != later.problems {
            let row =
                |((reason, object), since): (&(Reason, String), &Time)| (reason.to_string(), object.clone(), since.0);
            push(&mut lines, &Line::Problems(later.problems.iter().map(row).collect()))?;
        }
        Ok(lines)
    }
}

#[derive(Default)]
struct Written {
    lines: Lines,
    state: State,
}

impl Written {
    /// Brings the file up to date. If this fails, the file is removed: it is no longer true.
    fn write(&mut self, path: &Path, snapshot: &Snapshot, problems: Arc<Beginnings>, boot: &str) -> io::Result<()> {
        let mut before = std::mem::take(self);
        let now = State { known: before.state.known.of(snapshot), problems };
        let written = before.state.lines_to(&now).and_then(|changed| {
            let is_unchanged = changed.is_empty() && before.lines.is_written();
            if is_unchanged { Ok(()) } else { before.lines.write(path, Some(&changed), |to| write_all(to, &now, boot)) }
        });
        // An earlier version has another file, which would be outdated later.
        let written = written.and_then(|()| state_file::remove(&earlier_path(path)).map(drop));
        if let Err(error) = written {
            return Err(match state_file::remove(path) {
                Ok(_existed) => error,
                Err(why) => io::Error::other(format!("{error}; the outdated file cannot be removed either: {why}")),
            });
        }
        *self = Self { lines: before.lines, state: now };
        Ok(())
    }
}

fn write_all(to: &mut dyn Write, now: &State, boot: &str) -> io::Result<()> {
    push(to, &Line::Since(VERSION, boot.to_owned()))?;
    to.write_all(&State::default().lines_to(now)?)
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
    let written = Mutex::new(Written::default());
    // A stored snapshot would occupy memory for everything that has changed since.
    let save = move |path: &Path, (snapshot, problems): Sources| {
        let (snapshot, problems) = (Arc::clone(&snapshot.borrow()), Arc::clone(&problems.borrow()));
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        written.write(path, &snapshot, problems, &boot_id()?)
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

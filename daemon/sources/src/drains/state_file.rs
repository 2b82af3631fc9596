//! The drains, kept in the state directory over a restart or reboot. Owns the format of the file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::drain::{Drain, Drained, Drains, MAX_DRAINS};
use nodelb_core::model::service::ServiceName;
use nodelb_core::text;
use nodelb_host::clock::{boot_id, unix_now, unix_of_boot};
use nodelb_host::state_file::{self, Limits, Reading, StateFile};
use serde::{Deserialize, Serialize};

pub(super) type All = BTreeMap<ServiceName, Drains>;

/// The drains in the file, and the entries that cannot be used, each with the problem.
pub(super) type Stored = (All, Vec<(ServiceName, String)>);

const VERSION: u32 = 1;

const MAX_BYTES: usize = 4 << 20;

/// The maximum length in characters of an author that is read from the file.
const MAX_AUTHOR: usize = 256;

const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_secs(30), timeout: Duration::from_secs(4) };

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    drains: Vec<Entry>,
    /// The boot in which it was written, and how the wall clock was set then ([`unix_of_boot`]). Earlier versions neither
    /// write nor read this.
    #[serde(default)]
    boot: String,
    #[serde(default)]
    set: i64,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    service: ServiceName,
    backend: String,
    by: String,
    since: u64,
    until: Option<u64>,
}

pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join("drains.json")
}

/// The drains in the state directory, for a command that works without the daemon. May block.
pub fn stored(directory: &Path) -> io::Result<BTreeMap<ServiceName, Drains>> {
    read(&path(directory)).map(|(all, _)| all)
}

/// Begins to read the file in the state directory.
pub fn begin(directory: &Path) -> Reading<Stored> {
    Reading::begin(path(directory), "backends stay drained as the maps have them, and drain commands are refused", read)
}

fn read(path: &Path) -> io::Result<Stored> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let (mut all, mut unusable) = (All::new(), Vec::new());
    let Some(Form { drains, boot, set, .. }) = form else { return Ok((all, unusable)) };
    for Entry { service, backend, by, since, until } in drains.into_iter().take(MAX_DRAINS) {
        let backend = match backend.parse::<Drained>() {
            Ok(backend) => backend,
            Err(problem) => {
                unusable.push((service, problem));
                continue;
            }
        };
        let by = text::limited(&by, MAX_AUTHOR).into();
        all.entry(service).or_default().insert(backend, Drain { by, since, until });
    }
    if boot_id().is_ok_and(|current| current == boot) {
        follow_clock(&mut all, set, unix_of_boot(), unix_now());
    }
    Ok((all, unusable))
}

/// Moves the times of the drains that began in this boot, after the wall clock was set: a drain lasts as long as the
/// monotonic clock says. `before` and `now` say how the wall clock was and is set ([`unix_of_boot`]); `time` is the wall-clock
/// time in seconds. Drains of an earlier boot end at their time by the wall clock.
pub(super) fn follow_clock(all: &mut All, before: i64, now: i64, time: u64) -> Vec<ServiceName> {
    let by = now - before;
    let moved = |at: u64| at.saturating_add_signed(by);
    let of_boot = u64::try_from(before).unwrap_or(0)..=time.saturating_add_signed(-by).saturating_add(1);
    let mut changed = Vec::new();
    for (service, drains) in all.iter_mut() {
        let begun = drains.values_mut().filter(|drain| of_boot.contains(&drain.since));
        let count =
            begun.map(|drain| (drain.since, drain.until) = (moved(drain.since), drain.until.map(moved))).count();
        changed.extend((count > 0).then(|| service.clone()));
    }
    changed
}

/// The state file; it is not read.
pub(super) fn start(directory: &Path) -> StateFile<Arc<All>> {
    start_with(path(directory), write)
}

fn start_with(
    path: PathBuf,
    write: impl Fn(&Path, &All) -> io::Result<()> + Send + Sync + 'static,
) -> StateFile<Arc<All>> {
    let consequence = "after a restart, drains that have ended may be in effect where the maps do not show it";
    StateFile::start(path, consequence, LIMITS, move |path, all: Arc<_>| write(path, &all))
}

/// Replaces the file. May block.
pub(super) fn write(path: &Path, all: &All) -> io::Result<()> {
    let entry = |service: &ServiceName, (backend, drain): (&Drained, &Drain)| Entry {
        service: service.clone(),
        backend: backend.to_string(),
        by: drain.by.to_string(),
        since: drain.since,
        until: drain.until,
    };
    let entries = all.iter().flat_map(|(service, drains)| drains.iter().map(move |drain| entry(service, drain)));
    let form = Form { version: VERSION, drains: entries.collect(), boot: boot_id()?, set: unix_of_boot() };
    state_file::write_json(path, MAX_BYTES, &form)
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
pub(in crate::drains) mod tests;

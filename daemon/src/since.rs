//! Since when each frontend has had its status, kept in the state directory over a restart: connections continue while
//! nodelb does not run. Owns the format of the file. After a reboot it is of no use.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use nodelb_core::before::{Lasting, Statuses};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_host::clock::boot_id;
use nodelb_host::state_file::{self, Limits, StateFile};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a million frontends.
const MAX_BYTES: usize = 64 << 20;

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
}

pub fn path(state_directory: &Path) -> PathBuf {
    state_directory.join("since.json")
}

/// Reads the file: nothing, with a warning, if this fails or takes too long.
pub async fn load(path: &Path) -> Statuses {
    let consequence = "`Since` begins at this start";
    state_file::load(path, LIMITS.timeout, consequence, |path| read(path, &boot_id()?)).await.unwrap_or_default()
}

fn read(path: &Path, boot: &str) -> io::Result<Statuses> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let rows = form.filter(|form| form.boot == boot).map(|form| form.statuses).unwrap_or_default();
    let lasting = |(address, service, status, since)| ((address, service), Lasting { status, since: Moment(since) });
    Ok(rows.into_iter().map(lasting).collect())
}

fn bytes(statuses: &Statuses, boot: &str) -> io::Result<Vec<u8>> {
    let row = |(&(address, service), it): (&(L4Addr, u32), &Lasting)| (address, service, it.status, it.since.0);
    let statuses = statuses.iter().map(row).collect();
    let mut bytes = serde_json::to_vec(&Form { version: VERSION, boot: boot.to_owned(), statuses })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    state_file::replace(path, &path.with_extension("json.new"), |mut file| file.write_all(bytes))
}

/// Starts the task that writes the file, which ends after the last snapshot. `stop` ends its pauses.
pub fn start(path: PathBuf, mut snapshot: watch::Receiver<Arc<Snapshot>>, stop: CancellationToken) -> JoinHandle<()> {
    let written = AtomicU64::new(0);
    // A stored snapshot would occupy memory for everything that has changed since.
    let save = move |path: &Path, latest: watch::Receiver<Arc<Snapshot>>| {
        let statuses = Arc::clone(&latest.borrow()).statuses();
        let bytes = bytes(&statuses, &boot_id()?)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        if hasher.finish() != written.load(Ordering::Relaxed) {
            write(path, &bytes)?;
            written.store(hasher.finish(), Ordering::Relaxed);
        }
        Ok(())
    };
    tokio::spawn(async move {
        let file = StateFile::start(path, "after a restart, `Since` would begin at that restart", LIMITS, save);
        while snapshot.changed().await.is_ok() {
            let seconds = snapshot.borrow_and_update().rows.len() / FRONTENDS_IN_A_SECOND;
            let pause = Duration::from_secs((seconds as u64).clamp(1, LONGEST_PAUSE));
            file.save(snapshot.clone());
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
        file.close().await;
    })
}

#[cfg(test)]
#[path = "tests/since.rs"]
mod tests;

//! Unhealthy backends, kept in the state directory over a restart or reboot: a backend that was quarantined when nodelb
//! ended is not used again before it has passed its checks. Owns the format of the file and the times at which it is
//! written.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::messages;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::health_check::Quarantine;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::state;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

/// The name of the file in the state directory.
const NAME: &str = "health.json";

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a few hundred thousand backends.
const MAX_BYTES: u64 = 32 << 20;

/// Maximum length in characters of an error that is read from the file.
const MAX_ERROR: usize = 512;

/// Unhealthy backends by service.
pub(super) type Unhealthy = BTreeMap<ServiceName, Quarantine>;

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    unhealthy: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    service: ServiceName,
    backend: SocketAddr,
    error: String,
}

fn read(directory: &Path) -> Result<Unhealthy, String> {
    Ok(state::load(&directory.join(NAME), MAX_BYTES, understand)?.unwrap_or_default())
}

fn understand(bytes: &[u8]) -> Result<Unhealthy, String> {
    let form: Form = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if form.version != VERSION {
        return Err(format!("it is of version {}, and {VERSION} is understood", form.version));
    }
    let mut unhealthy = Unhealthy::new();
    for Entry { service, backend, error } in form.unhealthy {
        let error: String = error.chars().filter(|c| !c.is_control()).take(MAX_ERROR).collect();
        let backend = (Addr::from(backend.ip()), backend.port());
        unhealthy.entry(service).or_default().insert(backend, error.into());
    }
    Ok(unhealthy)
}

/// Writes the whole file or nothing. May block.
fn write(directory: &Path, unhealthy: &Unhealthy) -> io::Result<()> {
    let entry = |name: &ServiceName, ((addr, port), error): (&(Addr, u16), &Arc<str>)| Entry {
        service: name.clone(),
        backend: SocketAddr::new(addr.ip(), *port),
        error: error.to_string(),
    };
    let entries = unhealthy.iter().flat_map(|(name, failed)| failed.iter().map(move |failure| entry(name, failure)));
    let form = Form { version: VERSION, unhealthy: entries.collect() };
    let mut bytes = serde_json::to_vec_pretty(&form)?;
    bytes.push(b'\n');
    std::fs::create_dir_all(directory)?;
    let (path, new) = (directory.join(NAME), directory.join(format!("{NAME}.new")));
    state::replace(&path, &new, |mut file| file.write_all(&bytes))
}

/// Reads the file at start, and keeps it up to date. The state directory may block, so files are accessed in separate
/// threads, one at a time, and every wait for a thread has a time limit.
#[derive(Debug)]
pub(super) struct Memory {
    directory: PathBuf,
    timeouts: StateFileTimeouts,
    /// The contents of the file, as far as they are known.
    saved: Unhealthy,
    writing: Option<(JoinHandle<io::Result<()>>, Unhealthy)>,
    begun: Option<Instant>,
    /// Whether something may have changed since the file was last compared with the unhealthy backends.
    is_behind: bool,
    has_failed: bool,
}

/// Time limits of file operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateFileTimeouts {
    /// Minimum time between two writes.
    pub(super) every: Duration,
    /// Time limit for reading at start and for writing at the end.
    pub(super) timeout: Duration,
}

impl Memory {
    /// Opens the memory, and returns the contents of the file: nothing, with a warning, if it cannot be read in time.
    pub(super) async fn open(directory: PathBuf, timeouts: StateFileTimeouts) -> (Self, Unhealthy) {
        let at = directory.clone();
        let reading = state::aside(move || read(&at).map_err(io::Error::other));
        let saved = match timeout(timeouts.timeout, reading).await {
            Ok(Ok(unhealthy)) => unhealthy,
            Ok(Err(error)) => {
                warn!(message_id = %messages::STATE_UNREADABLE, "{error}");
                Unhealthy::new()
            }
            Err(_elapsed) => {
                let (path, limit) = (directory.join(NAME), timeouts.timeout);
                warn!(
                    message_id = %messages::STATE_UNREADABLE,
                    "{} is not read within {limit:?}; every backend is checked anew", path.display()
                );
                Unhealthy::new()
            }
        };
        let count: usize = saved.values().map(Quarantine::len).sum();
        if count > 0 {
            info!(
                message_id = %messages::STATE_LOADED,
                "{count} backends were unhealthy when nodelb ended; they stay quarantined until they pass their checks"
            );
        }
        let unhealthy = saved.clone();
        let (is_behind, has_failed) = (false, false);
        (Self { directory, timeouts, saved, writing: None, begun: None, is_behind, has_failed }, unhealthy)
    }

    /// Notes that a backend may have become unhealthy or healthy.
    pub(super) fn mark_behind(&mut self) {
        self.is_behind = true;
    }

    /// Whether [`Memory::keep`] should be called now with the unhealthy backends.
    pub(super) fn is_due(&self) -> bool {
        match &self.writing {
            Some((writing, _)) => writing.is_finished(),
            None if self.is_behind || self.has_failed => {
                self.begun.is_none_or(|begun| begun.elapsed() >= self.timeouts.every)
            }
            None => false,
        }
    }

    /// Starts to write the unhealthy backends if the file has others. Never waits for the disk.
    pub(super) async fn keep(&mut self, unhealthy: Unhealthy) {
        if let Some((writing, written)) = self.writing.take() {
            let result = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            self.conclude(result, written);
        }
        self.is_behind = false;
        if unhealthy != self.saved {
            let (directory, content) = (self.directory.clone(), unhealthy.clone());
            let writing = tokio::spawn(state::aside(move || write(&directory, &content)));
            self.writing = Some((writing, unhealthy));
            self.begun = Some(Instant::now());
        }
    }

    /// Writes the present unhealthy backends, if the time limit permits.
    pub(super) async fn end(mut self, unhealthy: Unhealthy) {
        let limit = self.timeouts.timeout;
        let path = self.directory.join(NAME);
        let writing = async {
            self.keep(unhealthy).await;
            if let Some((writing, written)) = self.writing.take() {
                let result = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
                self.conclude(result, written);
            }
        };
        if timeout(limit, writing).await.is_err() {
            warn!(
                message_id = %messages::STATE_UNWRITTEN,
                "{} is not written: not done within {limit:?}", path.display()
            );
        }
    }

    fn conclude(&mut self, result: io::Result<()>, written: Unhealthy) {
        let path = self.directory.join(NAME);
        match result {
            Ok(()) => {
                self.saved = written;
                if std::mem::take(&mut self.has_failed) {
                    info!(message_id = %messages::STATE_WRITTEN, "{} is written again", path.display());
                }
            }
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => warn!(
                message_id = %messages::STATE_UNWRITTEN,
                "{} cannot be written: {error}; after a restart unhealthy backends would be used until their first check",
                path.display()
            ),
            Err(_reported_before) => {}
        }
    }
}

#[cfg(test)]
#[path = "tests/remember.rs"]
mod tests;

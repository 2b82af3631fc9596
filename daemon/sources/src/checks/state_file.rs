//! Unhealthy backends, kept in the state directory over a restart or reboot: a backend that was quarantined when nodelb
//! ended is not used again before it has passed its checks. Owns the format of the file.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodelb_core::model::addr::Addr;
use nodelb_core::model::health_check::Quarantine;
use nodelb_core::model::service::ServiceName;
use nodelb_core::text;
use nodelb_host::messages;
use nodelb_host::state_file::{self, Limits, SavedState};
use serde::{Deserialize, Serialize};
use tracing::info;

const NAME: &str = "health.json";

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a few hundred thousand backends.
const MAX_BYTES: usize = 32 << 20;

/// Maximum length in characters of an error that is read from the file.
const MAX_ERROR: usize = 512;

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

fn read(path: &Path) -> io::Result<Unhealthy> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let mut unhealthy = Unhealthy::new();
    for Entry { service, backend, error } in form.into_iter().flat_map(|form| form.unhealthy) {
        let backend = (Addr::from(backend.ip()), backend.port());
        unhealthy.entry(service).or_default().insert(backend, text::limited(&error, MAX_ERROR).into());
    }
    // Outdated results would empty services whose backends have passed their checks since.
    if !unhealthy.is_empty() {
        state_file::replaceable(path)?;
    }
    Ok(unhealthy)
}

fn write(path: &Path, unhealthy: &Unhealthy) -> io::Result<()> {
    let entry = |name: &ServiceName, ((addr, port), error): (&(Addr, u16), &Arc<str>)| Entry {
        service: name.clone(),
        backend: SocketAddr::new(addr.ip(), *port),
        error: error.to_string(),
    };
    let entries = unhealthy.iter().flat_map(|(name, failed)| failed.iter().map(move |failure| entry(name, failure)));
    let form = Form { version: VERSION, unhealthy: entries.collect() };
    state_file::write_json(path, MAX_BYTES, &form)
}

/// What the previous run has stored, and the file for what this one stores.
pub type Stored = SavedState<Unhealthy>;

pub(super) async fn load(directory: &Path, limits: Limits) -> Stored {
    load_with(directory.join(NAME), limits, read).await
}

pub(super) async fn load_with(
    path: PathBuf,
    limits: Limits,
    read: impl Fn(&Path) -> io::Result<Unhealthy> + Send + Sync + 'static,
) -> Stored {
    let unread = "every backend counts as its file says until it is checked";
    let unwritten = "after a restart, unhealthy backends would be used until their first check";
    SavedState::open(path, [unread, unwritten], limits, read, write).await
}

/// Logs what the previous run has stored.
pub(super) fn log(saved: &Unhealthy) {
    let count: usize = saved.values().map(Quarantine::len).sum();
    if count > 0 {
        info!(
            message_id = %messages::STATE_LOADED,
            "{count} backends were unhealthy when nodelb ended; they stay quarantined until they pass their checks"
        );
    }
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
mod tests;

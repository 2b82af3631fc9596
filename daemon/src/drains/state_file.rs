//! The drains, kept in the state directory over a restart or reboot. Owns the format of the file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodelb_core::model::drain::{Drain, Drained, Drains, MAX_DRAINS};
use nodelb_core::model::service::ServiceName;
use nodelb_core::text::is_control;
use nodelb_host::state_file;
use serde::{Deserialize, Serialize};

use super::journal;

pub(super) type All = BTreeMap<ServiceName, Drains>;

const VERSION: u32 = 1;

const MAX_BYTES: usize = 4 << 20;

/// The maximum length in characters of an author that is read from the file.
const MAX_AUTHOR: usize = 256;

pub(super) const TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    drains: Vec<Entry>,
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

/// The drains in the file, and the entries that cannot be used, each with the problem.
fn read(path: &Path) -> io::Result<(All, Vec<(ServiceName, String)>)> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let (mut all, mut unusable) = (All::new(), Vec::new());
    for Entry { service, backend, by, since, until } in form.into_iter().flat_map(|form| form.drains).take(MAX_DRAINS) {
        let backend = match backend.parse::<Drained>() {
            Ok(backend) => backend,
            Err(problem) => {
                unusable.push((service, problem));
                continue;
            }
        };
        let by: String = by.chars().filter(|c| !is_control(*c)).take(MAX_AUTHOR).collect();
        all.entry(service).or_default().insert(backend, Drain { by: by.into(), since, until });
    }
    Ok((all, unusable))
}

/// Replaces the file, unless the flag is set before that takes effect. May block.
pub(super) fn write(path: &Path, all: &All, is_withdrawn: &AtomicBool) -> io::Result<()> {
    let entry = |service: &ServiceName, (backend, drain): (&Drained, &Drain)| Entry {
        service: service.clone(),
        backend: backend.to_string(),
        by: drain.by.to_string(),
        since: drain.since,
        until: drain.until,
    };
    let entries = all.iter().flat_map(|(service, drains)| drains.iter().map(move |drain| entry(service, drain)));
    let form = Form { version: VERSION, drains: entries.collect() };
    state_file::write_json_unless(path, &form, || is_withdrawn.load(Ordering::Acquire))
}

/// Reads the file: nothing, with a warning, if this fails or takes too long. Also logs each entry that cannot be used.
pub(super) async fn load(path: &Path) -> All {
    let consequence = "backends that were drained receive new connections";
    let (all, unusable) = state_file::load(path, TIMEOUT, consequence, read).await.unwrap_or_default();
    unusable.iter().for_each(|(service, problem)| journal::warn_unreadable(path, service, problem));
    all
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
mod tests;

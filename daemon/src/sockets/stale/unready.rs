//! How long sockets stay connected to a backend that is not ready although their service has others. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::PortKey;
use nodelb_core::stale::Stale;
use tokio::time::Instant;

use super::judge::Suspect;

/// How long a backend is not ready, while there are others, before its UDP sockets are ended: a socket that is ended is of
/// no use to a program that does not expect it.
pub(super) const UNREADY_FOR: Duration = Duration::from_secs(5);

/// The backends with sockets that wait, each with the time of the first pass that found it not ready.
#[derive(Debug, Default)]
pub(super) struct Unready {
    since: BTreeMap<(Arc<PortKey>, L4Addr), Instant>,
}

impl Unready {
    /// The suspects of a pass without those that wait. A backend that no suspect names is ready again, or has no sockets
    /// left.
    pub(super) fn without_waiting(&mut self, mut suspects: Vec<Suspect>, now: Instant) -> Vec<Suspect> {
        let before = std::mem::take(&mut self.since);
        suspects.retain(|suspect| {
            let Stale::Unready(key, backend) = &suspect.why else { return true };
            let named = (Arc::clone(key), *backend);
            let since = before.get(&named).copied().unwrap_or(now);
            self.since.insert(named, since);
            now.duration_since(since) >= UNREADY_FOR
        });
        suspects
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.since.is_empty()
    }
}

#[cfg(test)]
#[path = "tests/unready.rs"]
mod tests;

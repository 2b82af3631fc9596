//! How long sockets stay connected to a backend that is not ready although their service has others. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::service::PortKey;
use nodelb_core::stale::Stale;
use tokio::time::Instant;

use super::judge::Suspect;

/// How long a backend is not ready, while there are others, before its UDP sockets are ended: a socket that is ended is of
/// no use to a program that does not expect it.
pub(super) const UNREADY_FOR: Duration = Duration::from_secs(5);

/// The longest pause between passes while sockets wait. In each of them, the backend must not be ready.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// In so many passes, the backend must not be ready.
const LOOKS: u32 = 5;

/// The backends with sockets that wait, each with the time of the first pass that found it not ready.
#[derive(Debug, Default)]
pub(super) struct Unready {
    /// The same as [`UNREADY_FOR`] for TCP; `None`: forever.
    tcp_for: Option<Duration>,
    since: BTreeMap<(Arc<PortKey>, L4Addr), Instant>,
}

impl Unready {
    pub(super) fn new(tcp_for: Option<Duration>) -> Self {
        Self { tcp_for, since: BTreeMap::new() }
    }

    /// The suspects of a pass, all those of the protocol, without those that wait. A backend that no suspect names is ready
    /// again, or has no sockets left.
    pub(super) fn without_waiting(
        &mut self,
        protocol: Protocol,
        mut suspects: Vec<Suspect>,
        now: Instant,
    ) -> Vec<Suspect> {
        let is_own = |((key, _), _): &((Arc<PortKey>, L4Addr), Instant)| key.protocol == protocol;
        let (before, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.since).into_iter().partition(is_own);
        self.since = others;
        let timeout = self.timeout(protocol);
        suspects.retain(|suspect| {
            let Stale::Unready(key, backend) = &suspect.why else { return true };
            let Some(timeout) = timeout else { return false };
            let named = (Arc::clone(key), *backend);
            let since = before.get(&named).copied().unwrap_or(now);
            self.since.insert(named, since);
            now.duration_since(since) >= timeout
        });
        suspects
    }

    fn timeout(&self, protocol: Protocol) -> Option<Duration> {
        if protocol == Protocol::Udp { Some(UNREADY_FOR) } else { self.tcp_for }
    }

    /// The time until the next pass, if sockets wait.
    pub(super) fn pause(&self) -> Option<Duration> {
        let timeout = self.since.keys().filter_map(|(key, _)| self.timeout(key.protocol)).min()?;
        Some((timeout / LOOKS).min(LONGEST_PAUSE))
    }
}

#[cfg(test)]
#[path = "tests/unready.rs"]
mod tests;

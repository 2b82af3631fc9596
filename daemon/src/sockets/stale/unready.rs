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

/// The number of passes in that time.
const LOOKS: u32 = 5;

/// What counts at most of the time between two passes, in pauses: a backend may have been ready while nodelb itself did not
/// run.
const MOST_PAUSES: u32 = 2;

/// The backends with sockets that wait.
#[derive(Debug, Default)]
pub(super) struct Unready {
    /// The same as [`UNREADY_FOR`] for TCP; `None`: forever.
    tcp_for: Option<Duration>,
    waiting: BTreeMap<(Arc<PortKey>, L4Addr), Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// How long passes have found the backend not ready.
    seen: Duration,
    last: Instant,
}

impl Unready {
    pub(super) fn new(tcp_for: Option<Duration>) -> Self {
        Self { tcp_for, waiting: BTreeMap::new() }
    }

    /// The suspects of a pass, all those of the protocol, without those that wait. A backend that no suspect names is ready
    /// again, or has no sockets left.
    pub(super) fn without_waiting(
        &mut self,
        protocol: Protocol,
        mut suspects: Vec<Suspect>,
        now: Instant,
    ) -> Vec<Suspect> {
        let is_own = |((key, _), _): &((Arc<PortKey>, L4Addr), Waiting)| key.protocol == protocol;
        let (before, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.waiting).into_iter().partition(is_own);
        self.waiting = others;
        let timeout = self.timeout(protocol);
        suspects.retain(|suspect| {
            let Stale::Unready(key, backend) = &suspect.why else { return true };
            let Some(timeout) = timeout else { return false };
            let named = (Arc::clone(key), *backend);
            let more = |it: &Waiting| now.duration_since(it.last).min(pause_of(timeout) * MOST_PAUSES);
            let seen = before.get(&named).map_or(Duration::ZERO, |it| it.seen + more(it));
            self.waiting.insert(named, Waiting { seen, last: now });
            seen >= timeout
        });
        suspects
    }

    fn timeout(&self, protocol: Protocol) -> Option<Duration> {
        if protocol == Protocol::Udp { Some(UNREADY_FOR) } else { self.tcp_for }
    }

    /// The time until the next pass, if sockets wait.
    pub(super) fn pause(&self) -> Option<Duration> {
        let timeout = self.waiting.keys().filter_map(|(key, _)| self.timeout(key.protocol)).min()?;
        Some(pause_of(timeout))
    }
}

fn pause_of(timeout: Duration) -> Duration {
    (timeout / LOOKS).min(LONGEST_PAUSE)
}

#[cfg(test)]
#[path = "tests/unready.rs"]
mod tests;

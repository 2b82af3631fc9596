//! Readers who watch packets: each gets the events that match its filter, from one task that reads the kernel's buffer
//! while there is a reader. The task passes the programs the union of all filters, so that nothing is reported that no
//! reader wants, and nothing at all without a reader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::{EventFilter, EventReader, PacketEvent};
use nodelb_host::messages;
use tokio::sync::broadcast;
use tracing::warn;

/// Events that wait for a slow reader; it then misses the oldest ones.
const QUEUE: usize = 1024;

#[derive(Clone)]
pub struct PacketWatchers(Arc<SharedWatchers>);

struct SharedWatchers {
    reader: Box<dyn EventReader>,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    wanted: BTreeMap<u64, EventFilter>,
    next: u64,
    /// How often a reader came or went.
    changes: u64,
    /// Present while the task reads.
    sender: Option<broadcast::Sender<Arc<PacketEvent>>>,
}

impl Readers {
    /// The union of the filters; `None` without a reader.
    fn filter(&self) -> Option<EventFilter> {
        if self.wanted.is_empty() {
            return None;
        }
        let services: Option<Vec<&BTreeSet<ServiceId>>> = self.wanted.values().map(|it| it.services.as_ref()).collect();
        let services = services.map(|services| services.into_iter().flatten().copied().collect());
        Some(EventFilter { services, only_dropped: self.wanted.values().all(|it| it.only_dropped) })
    }
}

impl PacketWatchers {
    pub fn new(reader: impl EventReader + 'static) -> Self {
        Self(Arc::new(SharedWatchers { reader: Box::new(reader), readers: Mutex::default() }))
    }

    /// Adds a reader, until the result is dropped. Must run on a runtime of tokio.
    pub fn watch(&self, wanted: EventFilter) -> PacketWatch {
        let mut readers = self.0.readers();
        let id = readers.next;
        readers.next += 1;
        readers.changes += 1;
        readers.wanted.insert(id, wanted.clone());
        let receiver = match &readers.sender {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, receiver) = broadcast::channel(QUEUE);
                readers.sender = Some(sender.clone());
                let shared = Arc::clone(&self.0);
                tokio::task::spawn_blocking(move || shared.read(&sender));
                receiver
            }
        };
        let changes = readers.changes;
        let lost = self.0.reader.lost();
        PacketWatch { shared: Arc::clone(&self.0), id, wanted, receiver, lost, missed: 0, changes }
    }

    /// The number of readers, and of events that were not written since the daemon started.
    pub fn counts(&self) -> (usize, u64) {
        (self.0.readers().wanted.len(), self.0.reader.lost())
    }
}

impl SharedWatchers {
    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until there is no reader. Readers that come afterwards start another task.
    fn read(&self, sender: &broadcast::Sender<Arc<PacketEvent>>) {
        let mut wanted = || {
            let mut readers = self.readers();
            let filter = readers.filter();
            if filter.is_none() {
                readers.sender = None;
            }
            filter
        };
        // Without a receiver, the last reader has just left.
        let mut see = |event| _ = sender.send(Arc::new(event));
        if let Err(error) = self.reader.read(&mut wanted, &mut see) {
            warn!(
                message_id = %messages::PACKET_EVENTS_FAILED,
                "events about packets cannot be read: {error}; `nodelb watch --packets` ends, connections continue"
            );
            self.readers().sender = None;
        }
    }
}

pub struct PacketWatch {
    shared: Arc<SharedWatchers>,
    id: u64,
    wanted: EventFilter,
    receiver: broadcast::Receiver<Arc<PacketEvent>>,
    /// The kernel's number of lost events at the last call of [`Self::take_lost`].
    lost: u64,
    /// Events that this reader has missed since then.
    missed: u64,
    /// [`Readers::changes`] then.
    changes: u64,
}

/// Events that a reader did not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub number: u64,
    /// Whether it may include events that match the filter of another reader only.
    pub is_at_most: bool,
}

impl PacketWatch {
    /// Waits for the next event; `None` if there will be none.
    pub async fn next(&mut self) -> Option<Arc<PacketEvent>> {
        loop {
            match self.receiver.recv().await {
                Ok(event) if self.wanted.has(&event) => return Some(event),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed += missed,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next event if it is there already.
    pub fn take(&mut self) -> Option<Arc<PacketEvent>> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) if self.wanted.has(&event) => return Some(event),
                Ok(_) => {}
                Err(broadcast::error::TryRecvError::Lagged(missed)) => self.missed += missed,
                Err(_) => return None,
            }
        }
    }

    /// Whether [`Self::take_lost`] would return any.
    pub fn has_lost(&self) -> bool {
        self.missed > 0 || self.shared.reader.lost() > self.lost
    }

    /// The events since the last call that the programs did not write, or that this reader was too slow for. The programs
    /// count those that match any filter.
    pub fn take_lost(&mut self) -> Lost {
        let readers = self.shared.readers();
        let is_own = readers.filter().as_ref() == Some(&self.wanted) && readers.changes == self.changes;
        self.changes = readers.changes;
        drop(readers);
        let lost = self.shared.reader.lost();
        let since = lost.saturating_sub(self.lost);
        self.lost = lost;
        Lost { number: since + std::mem::take(&mut self.missed), is_at_most: !is_own }
    }
}

impl Drop for PacketWatch {
    fn drop(&mut self) {
        let mut readers = self.shared.readers();
        readers.wanted.remove(&self.id);
        readers.changes += 1;
    }
}

#[cfg(test)]
#[path = "tests/events.rs"]
pub(crate) mod tests;

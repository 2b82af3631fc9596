//! Shows whether the owner is writing to the maps, for readers that compare the maps with its snapshot. Owns only the
//! count of its rounds: a reader never delays the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of begun and ended rounds: odd during a round. A snapshot is published before its round ends.
#[derive(Clone, Debug, Default)]
pub struct Rounds(Arc<AtomicU64>);

impl Rounds {
    /// Called by the owner before it writes.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by the owner after it has published its writes.
    pub(crate) fn end(&self) {
        fence(Ordering::SeqCst);
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// A number that stays the same until the next round; `None` during a round. Values that were read between two
    /// equal numbers are consistent.
    pub(crate) fn resting(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        Some(self.0.load(Ordering::SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}

#[cfg(test)]
#[path = "tests/rounds.rs"]
mod tests;

//! Whether the owner writes to the maps just now, for whoever compares them with what it publishes. Owns the number of
//! its rounds and nothing else: a reader never keeps the owner waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The owner's rounds, begun and ended: odd while one runs. A snapshot is published before its round ends.
#[derive(Clone, Debug, Default)]
pub struct Rounds(Arc<AtomicU64>);

impl Rounds {
    /// The owner's, before it writes.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The owner's, when it has published what it wrote.
    pub(crate) fn end(&self) {
        fence(Ordering::SeqCst);
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// A number that is the same until the next round; `None` while one runs. What was read between two that are the same
    /// belongs together.
    pub(crate) fn resting(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        Some(self.0.load(Ordering::SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}

#[cfg(test)]
#[path = "tests/rounds.rs"]
mod tests;

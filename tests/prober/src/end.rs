//! The end of background threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag that ends background threads, also when the test panics: a `thread::scope` would wait for them forever.
#[derive(Debug)]
#[must_use = "the flag is set when this is dropped"]
pub struct SetAtEnd<'flag>(pub &'flag AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

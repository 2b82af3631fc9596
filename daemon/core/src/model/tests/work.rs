//! Counts the work of a test's thread in comparisons of addresses. Every lookup in a map with address keys makes some.

use std::cell::Cell;

thread_local!(static COMPARISONS: Cell<u64> = const { Cell::new(0) });

pub(super) fn count() {
    COMPARISONS.set(COMPARISONS.get() + 1);
}

/// The number of comparisons that the closure makes, and its result.
pub(crate) fn measure<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = COMPARISONS.get();
    let result = work();
    (COMPARISONS.get() - before, result)
}

//! Maps in memory with injected failures.

use nodelb_core::datapath::Limits;
use nodelb_core::memory::{FaultInjector, MemoryDatapath};

/// Empty maps with these limits. With a seed, one operation in ten fails.
pub(crate) fn create(limits: Limits, seed: Option<u64>) -> MemoryDatapath {
    let maps = MemoryDatapath::new(limits);
    match seed {
        Some(seed) => maps.with_fault(one_in_ten(seed)),
        None => maps,
    }
}

/// Equal seeds make the same operations fail.
fn one_in_ten(seed: u64) -> FaultInjector {
    let mut state = seed | 1;
    Box::new(move |_op| {
        // xorshift64: short, and random enough for this purpose.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.is_multiple_of(10)
    })
}

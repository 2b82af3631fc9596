//! Converts weights to slots. A backend with twice the weight gets twice the slots, so the programs honour weights by
//! choosing a slot at random and need no code for weights.

use smallvec::SmallVec;

use crate::state::entries::MAX_VIEW_SLOTS;

/// The resolution for weights without a small common ratio: the shares are then accurate to about one part in this
/// number.
const RESOLUTION: u64 = 1_024;

/// The number of slots for each backend: at least one each, at most [`MAX_VIEW_SLOTS`] in total. Backends beyond that
/// limit get none. Weights must not be 0.
pub(crate) fn slot_counts(weights: &[u16]) -> SmallVec<[u16; 8]> {
    let divisor = weights.iter().fold(0, |a, &b| gcd(a, b)).max(1);
    let mut counts: SmallVec<[u16; 8]> = weights.iter().map(|weight| weight / divisor).collect();
    let backends = counts.len() as u64;
    let budget = RESOLUTION.max(backends * 4).min(MAX_VIEW_SLOTS as u64);
    let total: u64 = counts.iter().map(|&c| u64::from(c)).sum();
    if total > budget && total > backends {
        for count in &mut counts {
            let scaled = u64::from(*count) * budget.saturating_sub(backends) / total;
            *count = u16::try_from(scaled + 1).unwrap_or(u16::MAX);
        }
    }
    truncate(&mut counts);
    counts
}

/// Drops backends beyond the number of slots, in address order, so that every node drops the same ones.
fn truncate(counts: &mut [u16]) {
    let mut left = MAX_VIEW_SLOTS;
    for count in counts {
        *count = (*count).min(u16::try_from(left).unwrap_or(u16::MAX));
        left -= usize::from(*count);
    }
}

fn gcd(a: u16, b: u16) -> u16 {
    // Most backends have the same weight.
    if b == 0 || a == b { a } else { gcd(b, a % b) }
}

#[cfg(test)]
#[path = "tests/weight.rs"]
mod tests;

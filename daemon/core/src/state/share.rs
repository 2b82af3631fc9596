//! The share that each namespace has of what all have in common.

/// The last part of a bound, as a divisor.
pub const LAST_PART: u32 = 32;

/// Whether a namespace that holds this many entries of a bound may have more of those that are left: in the last part,
/// not more in all than are left.
pub fn may_take(limit: u32, left: u32, held: u32, more: u32) -> bool {
    left.checked_sub(more).is_some_and(|rest| rest >= limit / LAST_PART || held.saturating_add(more) <= left)
}

//! The time, which the core always receives as an argument and never reads.

/// A time in milliseconds on a monotonic clock of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The time `millis` milliseconds later.
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0 + millis)
    }
}

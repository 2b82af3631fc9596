//! Time, as the core knows it: it is passed in, and never read.

/// Milliseconds on a clock that never goes back. The caller's clock: the core reads none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `millis` later.
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0 + millis)
    }
}

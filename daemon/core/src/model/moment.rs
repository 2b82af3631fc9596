//! The time, which the core always receives as an argument and never reads.

use std::time::Duration;

/// A time in milliseconds on a monotonic clock of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0 + millis)
    }
}

impl From<Duration> for Moment {
    fn from(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Moment> for Duration {
    fn from(moment: Moment) -> Self {
        Self::from_millis(moment.0)
    }
}

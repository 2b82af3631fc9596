//! How long the latest changes took until the kernel had them: numbers, which stay true however many changes there are.

use std::collections::VecDeque;

/// The time until the kernel had a change that counts as slow, in milliseconds.
pub const SLOW: u64 = 10_000;

/// The time that changes are counted together for, in milliseconds, and for how many such times.
const SPAN: u64 = 30_000;
const SPANS: usize = 20;

/// The number of changes of which the latency is known, and of slow ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    pub measured: u64,
    pub slow: u64,
    /// The time of the last slow one, in milliseconds since 1970.
    pub last_slow: Option<u64>,
}

/// The latest spans with changes, each with its number: the time in units of [`SPAN`].
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(VecDeque<(u64, Latencies)>);

impl Recent {
    /// Counts a change at this time in milliseconds since 1970, which the kernel had after so many milliseconds.
    pub(super) fn count(&mut self, at: u64, latency: u64) {
        let span = at / SPAN;
        // If the clock was set back, nothing is known about the times that it repeats.
        while self.0.back().is_some_and(|(last, _)| *last > span) {
            self.0.pop_back();
        }
        if self.0.back().is_none_or(|(last, _)| *last < span) {
            self.0.push_back((span, Latencies::default()));
        }
        if self.0.len() > SPANS {
            self.0.pop_front();
        }
        let Some((_, counted)) = self.0.back_mut() else { return };
        counted.measured += 1;
        if latency > SLOW {
            counted.slow += 1;
            counted.last_slow = Some(at);
        }
    }

    /// The sum of the spans that have not ended at this time.
    pub(super) fn since(&self, first: u64) -> Latencies {
        let spans = self.0.iter().filter(|(span, _)| (span + 1) * SPAN > first);
        spans.fold(Latencies::default(), |sum, (_, span)| Latencies {
            measured: sum.measured + span.measured,
            slow: sum.slow + span.slow,
            last_slow: span.last_slow.or(sum.last_slow),
        })
    }
}

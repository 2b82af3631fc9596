//! Interleaved rounds and their statistics.

use std::time::Instant;

/// Minimum number of rounds of a comparison.
pub(crate) const ROUNDS: usize = 61;

/// Nanoseconds per operation of one variant, one value per round, ascending.
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn new(mut nanos: Vec<f64>) -> Self {
        nanos.sort_by(f64::total_cmp);
        Self(nanos)
    }

    /// The given percentile of the rounds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    pub(crate) fn min(&self) -> f64 {
        self.percentile(0)
    }

    pub(crate) fn p25(&self) -> f64 {
        self.percentile(25)
    }

    /// `min / p25 / median`.
    pub(crate) fn cells(&self) -> String {
        format!("{:.0} | {:.0} | {:.0}", self.min(), self.p25(), self.percentile(50))
    }
}

/// A variant to measure: `run` performs the given number of operations and is timed; `prepare` is
/// not.
pub(crate) struct Variant<'a> {
    pub(crate) prepare: Box<dyn FnMut() + 'a>,
    pub(crate) run: Box<dyn FnMut(u32) + 'a>,
}

impl<'a> Variant<'a> {
    /// A variant without preparation.
    pub(crate) fn new(run: impl FnMut(u32) + 'a) -> Self {
        Self { prepare: Box::new(|| ()), run: Box::new(run) }
    }

    pub(crate) fn after(mut self, prepare: impl FnMut() + 'a) -> Self {
        self.prepare = Box::new(prepare);
        self
    }
}

/// Parts of a round. The time of a round is that of its fastest part, so that what else runs on the machine only counts if
/// it never pauses.
const PARTS: u32 = 50;

/// Runs the variants in turn, `per_round` operations each, for [`ROUNDS`] rounds.
pub(crate) fn interleave<const N: usize>(per_round: u32, mut variants: [Variant<'_>; N]) -> [Times; N] {
    in_turn(ROUNDS + 1, |index| {
        let variant = &mut variants[index];
        (variant.prepare)();
        (variant.run)(per_round / 10);
        fastest_part(per_round / PARTS, &mut variant.run)
    })
}

/// Runs [`PARTS`] parts of this many operations; returns the nanoseconds of one operation of the fastest part.
pub(crate) fn fastest_part(operations: u32, mut run: impl FnMut(u32)) -> f64 {
    let part = |_| {
        let start = Instant::now();
        run(operations);
        start.elapsed().as_nanos() as f64 / f64::from(operations)
    };
    (0..PARTS).map(part).fold(f64::INFINITY, f64::min)
}

/// Calls `measure` with the number of each variant in turn. The order rotates by one each round, so
/// that no variant always follows the same one.
pub(crate) fn in_turn<const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [Times; N] {
    let mut nanos = [const { Vec::new() }; N];
    for round in 0..rounds {
        for turn in 0..N {
            let index = (round + turn) % N;
            nanos[index].push(measure(index));
        }
    }
    nanos.map(Times::new)
}

/// Whether a value is within its limit, as text for the table.
pub(crate) fn verdict(figure: f64, limit: f64) -> &'static str {
    if figure <= limit { "yes" } else { "**no**" }
}

//! What tests that draw their steps have in common: sequences that a seed repeats, and their extent from the environment.

use std::fmt::Debug;
use std::str::FromStr;

/// A sequence of numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// A number from the environment.
pub(crate) fn number<T: FromStr<Err: Debug>>(variable: &str, default: T) -> T {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

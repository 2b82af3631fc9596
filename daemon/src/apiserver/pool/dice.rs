//! Chance, from a seed: jitter that keeps the nodes of a cluster from acting in step, and the order in which each of them
//! prefers what it learns. Not for secrets.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::apiserver::address::Address;

/// A small generator (xorshift64*).
#[derive(Clone, Debug)]
pub(super) struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, state: seed | 1 }
    }

    /// A factor in thousandths: 1000, give or take `spread`.
    pub(super) fn around(&mut self, spread: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        1000 - spread + number % (2 * spread + 1)
    }

    /// A place among others that is the same each time, and another one under another seed.
    pub(super) fn order_of(&self, address: &Address) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, address).hash(&mut hasher);
        hasher.finish()
    }
}

//! Random choices of a run with a seed, and packets with wrong bytes.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A number from the environment.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

pub(crate) fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_ne_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

pub(crate) fn pick<S: Strategy>(runner: &mut TestRunner, strategy: &S) -> S::Value {
    strategy.new_tree(runner).expect("no value is rejected").current()
}

/// One packet in eight has bytes that are wrong, and one in sixteen ends early.
pub(crate) fn damage(runner: &mut TestRunner, bytes: &mut Vec<u8>) -> bool {
    let (choice, flips, at, byte) =
        pick(runner, &(0_u8..16, 1_usize..4, proptest::num::u32::ANY, proptest::num::u8::ANY));
    let length = bytes.len();
    match choice {
        0 => bytes.truncate((at as usize % length).max(14)),
        1 | 2 => {
            for flip in 0..flips {
                // Mostly in the headers.
                let at = (at as usize).wrapping_mul(flip * 31 + 1) % length.min(80);
                bytes[at] = byte.wrapping_mul(u8::try_from(flip * 2 + 1).unwrap());
            }
        }
        _ => return false,
    }
    true
}

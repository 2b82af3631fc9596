//! The operations after which tests kill nodelb.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::extent::is_all;

/// The environment variable with the first operation after which tests kill nodelb.
const FIRST: &str = "CRASH_FIRST";

/// The environment variable with the operations from one kill of nodelb to the next.
const EVERY: &str = "CRASH_EVERY";

/// The same, if the variable does not say it and not all tests are run.
const STRIDE: u32 = 11;

/// The numbers of operations, below `most`, after which a test kills nodelb: all, every eleventh one, or as `CRASH_EVERY` says,
/// beginning with another one in each run.
#[expect(clippy::print_stdout, reason = "a failure needs the first number")]
pub(crate) fn crash_points(most: u32) -> impl Iterator<Item = u32> {
    let given = |name| env::var(name).ok().map(|text| text.parse::<u32>().expect("a number of operations"));
    let first = given(FIRST);
    let stride = given(EVERY).unwrap_or(if is_all() && first.is_none() { 1 } else { STRIDE });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").subsec_micros();
    let first = first.unwrap_or(1 + now % stride);
    println!("crashes from operation {first} on, every {stride}: {FIRST}={first} {EVERY}={stride} repeats them");
    (first..most).step_by(stride as usize)
}

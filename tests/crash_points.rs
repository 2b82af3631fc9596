//! The operations after which tests kill nodelb.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::extent::is_all;

/// The environment variable with the first operation after which tests kill nodelb.
const FIRST: &str = "CRASH_FIRST";

/// The operations from one kill of nodelb to the next, unless all tests are run.
const STRIDE: u32 = 7;

/// The numbers of operations, below `most`, after which a test kills nodelb: all, or every seventh one, beginning with
/// another one in each run.
#[expect(clippy::print_stdout, reason = "a failure needs the first number")]
pub(crate) fn crash_points(most: u32) -> impl Iterator<Item = u32> {
    let first = env::var(FIRST).ok().map(|text| text.parse().expect("CRASH_FIRST is a number"));
    let (first, stride) = match first {
        None if is_all() => (1, 1),
        given => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").subsec_micros();
            (given.unwrap_or(1 + now % STRIDE), STRIDE)
        }
    };
    println!("crashes from operation {first} on, every {stride}: CRASH_FIRST={first} repeats them");
    (first..most).step_by(stride as usize)
}

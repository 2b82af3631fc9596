//! Instruction counts and allocations of the parts of nodelb, compared with benches/baseline.toml: `make regressions`.
//! They do not depend on the load and the speed of the machine, so a change of 3 % is visible. `make baseline` stores
//! the current figures. docs/development/performance.md says what they depend on.
//!
//! Without an argument, this program runs itself once for each part, under callgrind; with the name of a part, it is
//! that child.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark stops where it cannot go on, and prints; it shares its services with others"
)]

mod baseline;
mod child;
mod compare;
mod node;
#[path = "../kubernetes/objects.rs"]
mod objects;
mod parts;
#[path = "../cost/services.rs"]
mod services;

use std::process::ExitCode;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    // cargo adds `--bench`.
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    match argument.as_deref() {
        None => baseline::check(),
        Some("--update") => baseline::update(),
        Some(name) => child::run(name),
    }
}

//! The time to compute and render the answers of the admin API with 10,000 services, without a daemon: `make bench`.
//! Prints minima, because machines differ and are noisy.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark measures times and prints them")]

#[path = "../tests/world/mod.rs"]
mod world;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodelb_report::explain::summary::Summary;
use nodelb_report::filter::Filter;
use nodelb_report::output::table::Style;
use nodelb_report::problems::{self, Observed};
use nodelb_report::rows::{Rendered, listed};
use nodelb_report::time::{Clocks, Time};

use world::World;

const SERVICES: u32 = 10_000;
const ROUNDS: usize = 15;

fn main() {
    let world = World::new(SERVICES);
    let snapshot = Arc::new(world.engine.snapshot(world.now));
    let clocks = Clocks { moment: world.now, time: Time::from_seconds(1_795_000_000) };
    let backends: usize = (0..SERVICES).map(|number| world::backends(number).len()).sum();
    println!("\n## Answers of the admin API\n");
    println!(
        "{SERVICES} services with {backends} backends, in one process without HTTP; the minimum of {ROUNDS} runs.\n"
    );
    println!("| answer | time | bytes |\n|---|---|---|");
    let frontends = listed::frontends(Arc::clone(&snapshot), Filter::default(), clocks);
    report("`/frontends`", || frontends.text(&Style::default()).len());
    report("the rows of `/frontends`", || {
        let mut rows = 0;
        (frontends.for_each)(&mut |_| rows += 1);
        rows
    });
    report("the same in JSON", || frontends.json().map_or(0, |text| text.len()));
    let narrow = Style { width: Some(100), ..Style::default() };
    report("the same for a terminal", || frontends.text(&narrow).len());
    let services = listed::services(Arc::clone(&snapshot), Filter::default(), clocks);
    report("`/services`", || services.text(&Style::default()).len());
    let backends = listed::backends(Arc::clone(&snapshot), Filter::default(), |_| None, clocks);
    report("`/backends`", || backends.text(&Style::default()).len());
    report("the summary of a snapshot, once for each", || Summary::new(&snapshot).counts.services);
    let summary = Arc::new(Summary::new(&snapshot));
    let observed = Observed { clocks, snapshot: Arc::clone(&snapshot), summary, ..Observed::default() };
    report("the problems of `/status`", || problems::problems(&observed).len());
}

fn report(what: &str, mut answer: impl FnMut() -> usize) {
    let mut best = Duration::MAX;
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        bytes = black_box(answer());
        best = best.min(begun.elapsed());
    }
    println!("| {what} | {:.2} ms | {bytes} |", best.as_secs_f64() * 1000.0);
}

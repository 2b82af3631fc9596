//! Heap memory per service. Separate from benches/cost.rs because counting allocations takes time:
//! `make bench`.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark stops where it cannot go on, and prints; it shares its world with another"
)]

#[path = "../tests/sandbox/mod.rs"]
mod sandbox;
#[path = "cost/world.rs"]
mod world;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use world::World;
use world::services::single_endpoint_services;

#[global_allocator]
static HEAP: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const SERVICES: u32 = 50_000;

fn main() {
    sandbox::run("heap", |sandbox| {
        let mut world = World::new(&sandbox.bpffs, "heap", &sandbox.cgroup);
        let region = Region::new(HEAP);
        world.apply(single_endpoint_services(SERVICES));
        let change = region.change();
        let per_service = (change.bytes_allocated - change.bytes_deallocated) / SERVICES as usize;
        let verdict = if per_service <= 1_600 { "yes" } else { "**no**" };
        println!("\n## Heap\n");
        println!("50,000 services with one endpoint each retain **{per_service} bytes** of heap a service.");
        println!("Within 1,600: {verdict}.");
    });
}

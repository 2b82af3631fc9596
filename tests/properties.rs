//! Properties of the core over random worlds with similar names. `PROPTEST_CASES=1000 cargo test
//! --test properties` runs more cases. A failure prints the smallest world that shows it; turn it
//! into a unit test of the faulty module.

#[path = "properties/absence.rs"]
mod absence;
#[path = "properties/checked.rs"]
mod checked;
#[path = "properties/continuity.rs"]
mod continuity;
#[path = "properties/convergence.rs"]
mod convergence;
#[path = "properties/deferred.rs"]
mod deferred;
#[path = "properties/drained.rs"]
mod drained;
#[path = "properties/drift.rs"]
mod drift;
#[path = "properties/exactness.rs"]
mod exactness;
#[path = "properties/faults.rs"]
mod faults;
#[path = "properties/held.rs"]
mod held;
mod memory_maps;
mod model;
#[path = "properties/neighbour.rs"]
mod neighbour;
#[path = "properties/nodeports.rs"]
mod nodeports;
#[path = "properties/one_silent.rs"]
mod one_silent;
#[path = "properties/own_addresses.rs"]
mod own_addresses;
#[path = "properties/owners.rs"]
mod owners;
#[path = "properties/readers.rs"]
mod readers;
#[path = "properties/rendezvous.rs"]
mod rendezvous;
#[path = "properties/runs.rs"]
mod runs;
#[path = "properties/world.rs"]
mod world;

use proptest::test_runner::Config;

/// The number of worlds for each property: `cases`, or `PROPTEST_CASES`.
fn cases(cases: u32) -> Config {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config { failure_persistence: None, max_shrink_iters: 4_096, ..Config::default() };
    if is_set { config } else { Config { cases, ..config } }
}

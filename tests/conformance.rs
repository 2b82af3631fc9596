//! kube-proxy's behaviour on the kernel datapath: runs the scenarios of `scenarios/conformance/`
//! with the BPF programs and real sockets, by a client on the host and one in a pod. The output
//! must equal that of the scenarios rung, which reads the state and maps in memory. Needs root.
//! `SCENARIO=name` runs a single one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop where it is")]

#[path = "scenarios/environment.rs"]
mod environment;
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[path = "conformance/health_check_server.rs"]
mod health_check_server;
#[path = "conformance/kernel.rs"]
mod kernel;
#[path = "conformance/maps.rs"]
mod maps;
mod memory_maps;
mod model;
#[path = "conformance/observe.rs"]
mod observe;
#[path = "scenarios/outside_model.rs"]
mod outside_model;
mod pod;
mod reach;
#[path = "scenarios/run.rs"]
mod run;
#[path = "scenarios/runner.rs"]
mod runner;
mod sandbox;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/settings.rs"]
mod settings;
#[path = "scenarios/status.rs"]
mod status;
#[path = "packet_fixtures/world.rs"]
mod world;

use std::path::Path;

use kernel::{Kernel, Net};
use run::{difference, run, scenarios};
use script::Script;

/// Runs a scenario; returns an error if its output differs.
fn check(path: &Path, net: &mut Net) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let actual = run(&Script::parse(&text)?, Kernel::new(net), &[])?;
    if actual.to_string() == text { Ok(()) } else { Err(difference(&text, &actual.to_string())) }
}

#[test]
fn every_scenario_holds_for_kernel_sockets() {
    sandbox::run("every_scenario_holds_for_kernel_sockets", |sandbox| {
        let only = std::env::var("SCENARIO").ok();
        let is_wanted =
            |path: &Path| only.as_ref().is_none_or(|only| path.file_stem().is_some_and(|stem| stem == &**only));
        let mut net = Net::new(sandbox);
        let wrong: Vec<String> = scenarios("conformance")
            .iter()
            .filter(|path| is_wanted(path))
            .filter_map(|path| Some(format!("{}: {}", path.display(), check(path, &mut net).err()?)))
            .collect();
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
    });
}

//! kube-proxy's behaviour on the kernel datapath: runs the scenarios of `scenarios/conformance/`
//! with the BPF programs and real sockets, by a client on the host and one in a pod. The output
//! must equal that of the scenarios rung, which reads the state and maps in memory. Needs root.
//! `SCENARIO=name` runs a single one.

#![expect(clippy::panic, reason = "a test that cannot go on should stop where it is")]

#[path = "scenarios/dial.rs"]
mod dial;
mod dice;
#[path = "conformance/entry.rs"]
mod entry;
#[path = "conformance/kernel.rs"]
mod kernel;
#[path = "conformance/meet.rs"]
mod meet;
mod model;
mod pod;
mod sandbox;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/stage.rs"]
mod stage;
#[path = "scenarios/tell.rs"]
mod tell;

use std::path::Path;

use kernel::{Kernel, Net};
use script::Script;
use tell::{difference, stories, tell};

/// Runs a scenario; returns an error if its output differs.
fn check(path: &Path, net: &mut Net) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let told = tell(&Script::parse(&text)?, Kernel::new(net), &[])?;
    if told.to_string() == text { Ok(()) } else { Err(difference(&text, &told.to_string())) }
}

#[test]
fn every_story_holds_for_sockets_of_the_kernel() {
    sandbox::run("every_story_holds_for_sockets_of_the_kernel", |sandbox| {
        let only = std::env::var("STORY").ok();
        let is_wanted =
            |path: &Path| only.as_ref().is_none_or(|only| path.file_stem().is_some_and(|stem| stem == &**only));
        let mut net = Net::new(sandbox);
        let wrong: Vec<String> = stories("conformance")
            .iter()
            .filter(|path| is_wanted(path))
            .filter_map(|path| Some(format!("{}: {}", path.display(), check(path, &mut net).err()?)))
            .collect();
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
    });
}

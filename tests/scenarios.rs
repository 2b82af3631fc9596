//! Scenarios as text: files and steps in, tables and map dumps out. Each file in `scenarios/` is
//! one; `scenarios/README.md` explains the format. Every scenario runs twice, the second time with
//! maps that fail one operation in ten.
//!
//! `UPDATE=1 cargo test -p nodelb --test scenarios` rewrites the expected output; review the
//! difference before you keep it.

#[path = "scenarios/environment.rs"]
mod environment;
#[path = "packet_fixtures/frame.rs"]
mod frame;
mod memory_maps;
mod model;
#[path = "scenarios/outside_model.rs"]
mod outside_model;
#[path = "scenarios/run.rs"]
mod run;
#[path = "scenarios/runner.rs"]
mod runner;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/settings.rs"]
mod settings;
#[path = "packet_fixtures/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::Path;

use environment::{Client, Environment, Outcome};
use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::snapshot::Snapshot;
use outside_model::{Attempt, Frame, Met};
use run::{difference, run, scenarios};
use script::Script;

/// Maps in memory. There are no clients: the outcome is derived from the state.
struct Memory {
    seed: Option<u64>,
}

impl Environment for Memory {
    type Maps = MemoryDatapath;

    fn maps(&mut self, limits: Limits, _: &Guard) -> Result<MemoryDatapath, String> {
        Ok(memory_maps::create(limits, self.seed))
    }

    fn connect(&mut self, _: L4Addr, _: Client, traced: &Outcome) -> Result<String, String> {
        Ok(traced.to_string())
    }

    fn connect_outside(&mut self, _: &Attempt, expected: &Met) -> Result<Met, String> {
        Ok(expected.clone())
    }

    fn talk(&mut self, _: &str, _: &Frame, expected: &Met) -> Result<Met, String> {
        Ok(expected.clone())
    }

    fn health_check(&mut self, _: L4Addr, _: Snapshot, expected: &str) -> Result<String, String> {
        Ok(expected.into())
    }

    fn listen(&mut self, _: &BTreeSet<L4Addr>) -> Result<(), String> {
        Ok(())
    }

    fn wait(&mut self, _: u64) {}
}

/// Seeds with which a scenario once failed: a row kept an error after its operation was deferred.
const ONCE_FAILED: [u64; 1] = [533_474_391];
const RANDOM_SEEDS: usize = 8;

/// Runs a scenario; returns an error if its output differs.
fn check(path: &Path, seeds: &[u64], is_update: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let script = Script::parse(&text)?;
    let actual = run(&script, Memory { seed: None }, &[])?;
    if is_update {
        std::fs::write(path, actual.to_string()).map_err(|error| error.to_string())?;
    } else if actual.to_string() != text {
        return Err(difference(&text, &actual.to_string()));
    }
    // The output depends on the order of the operations, so that none may fail.
    if script.steps.iter().any(|step| step == "exact") {
        return Ok(());
    }
    // The operations of a round depend on which of them fail.
    for seed in seeds {
        let of_run = |error| format!("with one failure in ten, SEED={seed}: {error}");
        let rerun = run(&actual, Memory { seed: Some(*seed) }, &["ops"]).map_err(of_run)?;
        if rerun != actual {
            return Err(of_run(difference(&actual.to_string(), &rerun.to_string())));
        }
    }
    Ok(())
}

/// A row for each behaviour: the first lines of a scenario name it, as `# 1.5 Terminating
/// endpoints: ...`.
fn table_of_behaviours() -> String {
    let mut rows: Vec<(Vec<u32>, String)> = Vec::new();
    for path in scenarios("conformance") {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let before = rows.len();
        for line in text.lines().map_while(|line| line.strip_prefix("# ")) {
            let Some((section, behaviour)) = line.split_once(' ') else { break };
            let numbers = section.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>();
            let Some(numbers) = numbers.ok().filter(|numbers| numbers.len() == 2) else { break };
            let row = format!("| {section} | {behaviour} | [{name}](scenarios/conformance/{name}.txt) |\n");
            rows.push((numbers, row));
        }
        assert!(rows.len() > before, "{name} does not begin with the behaviour it shows");
    }
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    let rows = rows.into_iter().map(|(_, row)| row);
    ["| section | behaviour | scenario |\n|---|---|---|\n".into()].into_iter().chain(rows).collect()
}

#[test]
fn the_readme_lists_every_behaviour() {
    const BEGIN: &str = "<!-- conformance: begin -->\n";
    const END: &str = "<!-- conformance: end -->\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/README.md");
    let text = std::fs::read_to_string(&path).expect("tests/README.md is there");
    let (before, rest) = text.split_once(BEGIN).expect("a place where the table begins");
    let (table, after) = rest.split_once(END).expect("a place where the table ends");
    let current = table_of_behaviours();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, [before, BEGIN, &current, END, after].concat()).expect("tests/README.md can be written");
    } else {
        assert_eq!(
            table, current,
            "UPDATE=1 rewrites the table of tests/README.md from the first lines of the scenarios"
        );
    }
}

#[test]
fn every_scenario_has_the_expected_output() {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(text) => vec![text.parse().expect("SEED is a number")],
        Err(_) => {
            let random = std::time::UNIX_EPOCH.elapsed().expect("the clock is past 1970").subsec_nanos().into();
            ONCE_FAILED.into_iter().chain((random..).take(RANDOM_SEEDS)).collect()
        }
    };
    let is_update = std::env::var_os("UPDATE").is_some();
    let wrong: Vec<String> = ["", "conformance", "outside"]
        .into_iter()
        .flat_map(scenarios)
        .filter_map(|path| Some(format!("{}: {}", path.display(), check(&path, &seeds, is_update).err()?)))
        .collect();
    assert!(wrong.is_empty(), "SEED=... repeats a failure\n\n{}\n", wrong.join("\n\n"));
}

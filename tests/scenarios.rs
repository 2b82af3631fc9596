//! Scenarios as text: files and steps in, tables and map dumps out. Each file in `scenarios/` is
//! one; `scenarios/README.md` explains the format. Every scenario runs twice, the second time with
//! maps that fail one operation in ten.
//!
//! `UPDATE=1 cargo test -p nodelb --test scenarios` rewrites the expected output; review the
//! difference before you keep it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop where it is")]

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
#[path = "scenarios/status.rs"]
mod status;
#[path = "packet_fixtures/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

/// Seeds of scenarios that once failed: a row kept an error after its operation was deferred.
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

/// A behaviour that the first lines of a scenario name, as `# 1.5 Terminating endpoints: ...`.
struct Shown {
    /// The section of the list of behaviours, and the number in it.
    numbers: [u32; 2],
    behaviour: String,
    /// The directory and the name of the scenario.
    scenario: (&'static str, String),
}

/// The behaviours of all scenarios, by section.
fn shown() -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    for directory in ["conformance", "outside"] {
        for path in scenarios(directory) {
            let text = std::fs::read_to_string(&path).expect("readable");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let before = all.len();
            for line in text.lines().map_while(|line| line.strip_prefix("# ")) {
                let Some((section, behaviour)) = line.split_once(' ') else { break };
                let numbers = section.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>();
                let Some(numbers) = numbers.ok().and_then(|numbers| numbers.try_into().ok()) else { break };
                all.push(Shown { numbers, behaviour: behaviour.into(), scenario: (directory, name.clone()) });
            }
            assert!(all.len() > before, "{name} does not begin with the behaviour it shows");
        }
    }
    all.sort_by_key(|shown| shown.numbers);
    all
}

/// A row for each behaviour.
fn table_of_behaviours() -> String {
    let row = |Shown { numbers: [section, number], behaviour, scenario: (directory, name) }: &Shown| {
        format!("| {section}.{number} | {behaviour} | [{name}](scenarios/{directory}/{name}.txt) |\n")
    };
    let rows: String = shown().iter().map(row).collect();
    format!("| section | behaviour | scenario |\n|---|---|---|\n{rows}")
}

/// The file `tests/README.md`, and its text before, between and after the two marks of this name.
fn readme(mark: &str) -> (PathBuf, [String; 3]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/README.md");
    let text = std::fs::read_to_string(&path).expect("tests/README.md is there");
    let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {mark}: {side} -->\n"));
    let (before, rest) = text.split_once(&begin).expect("a place where the table begins");
    let (table, after) = rest.split_once(&end).expect("a place where the table ends");
    let parts = [before.to_owned() + &begin, table.to_owned(), end + after];
    (path, parts)
}

/// The links `[name](path)` of a text.
fn links(text: &str) -> Vec<(String, String)> {
    let link = |part: &str| {
        let (name, rest) = part.split_once("](")?;
        Some((name.to_owned(), rest.split_once(')')?.0.to_owned()))
    };
    text.split('[').filter_map(link).collect()
}

/// Compares the table of the behaviours for clients outside the node with the scenarios and tests.
fn assert_each_behaviour_for_clients_outside_is_shown() {
    const SECTION: u32 = 11;
    let (path, [_, table, _]) = readme("outside");
    let of_section = shown().into_iter().filter(|shown| shown.numbers[0] == SECTION);
    let mut unlisted: BTreeSet<(u32, String)> =
        of_section.map(|shown| (shown.numbers[1], format!("scenarios/outside/{}.txt", shown.scenario.1))).collect();
    let mut last = 0;
    for line in table.lines().skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let number: u32 = cells[0].parse().expect("a number");
        assert_eq!(number, last + 1, "{line}");
        last = number;
        let links = links(cells[2]);
        assert!(!links.is_empty(), "no test shows {line}");
        for (name, target) in links {
            let text = std::fs::read_to_string(path.with_file_name(&target)).expect(&target);
            let is_there = if target.ends_with(".rs") {
                text.contains(&format!("fn {name}("))
            } else {
                unlisted.remove(&(number, target.clone())) || text.lines().any(|line| line == format!("case {name}"))
            };
            assert!(is_there, "{target} does not show behaviour {number} with {name}");
        }
    }
    assert_eq!(last, 36, "the number of behaviours in section {SECTION}");
    assert!(unlisted.is_empty(), "not in the table: {unlisted:?}");
}

#[test]
fn the_readme_lists_every_behaviour() {
    let (path, [before, table, after]) = readme("conformance");
    let current = table_of_behaviours();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, [before, current, after].concat()).expect("tests/README.md can be written");
    } else {
        assert_eq!(
            table, current,
            "UPDATE=1 rewrites the table of tests/README.md from the first lines of the scenarios"
        );
    }
    assert_each_behaviour_for_clients_outside_is_shown();
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

//! Runs a scenario and records its output.

use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::runner::Runner;
use crate::script::Script;

/// The scenarios in `tests/scenarios`, or in a subdirectory.
pub(crate) fn scenarios(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios").join(directory);
    let entries = std::fs::read_dir(&directory).expect("the directory of the scenarios is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

/// Runs the scenario; returns it with the actual output. The output of steps in `ignored` is taken
/// from the expected one.
pub(crate) fn run<W: Environment>(script: &Script, environment: W, unchecked: &[&str]) -> Result<Script, String> {
    let mut runner = Runner::new(script, environment)?;
    let mut actual = script.clone();
    actual.blocks.retain(|block| !block.is_expected());
    for step in &script.steps {
        let output = runner.run_step(step, script).map_err(|error| format!("`{step}`: {error}"))?;
        let Some(output) = output else { continue };
        let is_unchecked = unchecked.contains(&step.as_str());
        let output = if is_unchecked { script.expected(actual.outputs(), step) } else { output };
        actual.expect(step, output);
    }
    runner.end()?;
    Ok(actual)
}

/// The first line that differs between two texts.
pub(crate) fn difference(expected: &str, actual: &str) -> String {
    let (mut expected, mut actual) = (expected.lines(), actual.lines());
    for number in 1.. {
        match (expected.next(), actual.next()) {
            (None, None) => break,
            (one, other) if one == other => {}
            (one, other) => {
                let (one, other) = (one.unwrap_or("(nothing)"), other.unwrap_or("(nothing)"));
                return format!("line {number}:\n  expected {one}\n  is       {other}");
            }
        }
    }
    "only in the end of the last line".into()
}

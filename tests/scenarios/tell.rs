//! Runs a scenario and records its output.

use std::path::{Path, PathBuf};

use crate::dial::World;
use crate::script::Script;
use crate::stage::Stage;

/// The scenarios in `tests/scenarios`, or in a subdirectory.
pub(crate) fn stories(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios").join(directory);
    let entries = std::fs::read_dir(&directory).expect("the directory of the stories is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

/// Runs the scenario; returns it with the actual output. The output of steps in `ignored` is taken
/// from the expected one.
pub(crate) fn tell<W: World>(script: &Script, world: W, untold: &[&str]) -> Result<Script, String> {
    let mut stage = Stage::new(script, world)?;
    let mut told = script.clone();
    told.blocks.retain(|block| !block.is_expected());
    for step in &script.steps {
        let output = stage.play(step, script).map_err(|error| format!("`{step}`: {error}"))?;
        let Some(output) = output else { continue };
        let is_untold = untold.contains(&step.as_str());
        let output = if is_untold { script.expected(told.outputs(), step) } else { output };
        told.expect(step, output);
    }
    stage.end()?;
    Ok(told)
}

/// The first line in which two texts differ.
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

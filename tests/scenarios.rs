//! Stories as text: files and steps in, tables and map dumps out. One file each in `scenarios/`; `scenarios/README.md`
//! says how they are written. Every story is told twice, the second time to maps that fail one operation in ten.
//!
//! `UPDATE=1 cargo test -p nodelb --test scenarios` rewrites what is expected; read the difference before you keep it.

mod model;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/stage.rs"]
mod stage;

use std::path::{Path, PathBuf};

use script::Script;
use stage::Stage;

fn stories() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios");
    let entries = std::fs::read_dir(&directory).expect("tests/scenarios is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

/// Tells the story and returns it with what really came out. `seed` rolls the dice of the failing maps.
fn tell(script: &Script, seed: Option<u64>) -> Result<Script, String> {
    let mut stage = Stage::new(seed);
    let mut told = script.clone();
    told.blocks.retain(|block| !block.is_expected());
    for step in &script.steps {
        let output = stage.play(step, script).map_err(|error| format!("`{step}`: {error}"))?;
        let Some(output) = output else { continue };
        // Which operations a round needs depends on which fail.
        let output = if seed.is_some() && step == "ops" { script.expected(told.outputs(), step) } else { output };
        told.expect(step, output);
    }
    stage.end()?;
    Ok(told)
}

/// The first line in which two texts differ.
fn difference(expected: &str, actual: &str) -> String {
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

/// What is wrong with the story, if anything.
fn check(path: &Path, seed: u64, is_update: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let script = Script::parse(&text)?;
    let told = tell(&script, None)?;
    if is_update {
        std::fs::write(path, told.to_string()).map_err(|error| error.to_string())?;
    } else if told.to_string() != text {
        return Err(difference(&text, &told.to_string()));
    }
    if script.is_exact() {
        return Ok(());
    }
    let told_again = tell(&told, Some(seed)).map_err(|error| format!("with one failure in ten: {error}"))?;
    if told_again == told {
        return Ok(());
    }
    Err(format!("with one failure in ten: {}", difference(&told.to_string(), &told_again.to_string())))
}

#[test]
fn every_story_ends_as_written() {
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().expect("SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().expect("the clock is past 1970").subsec_nanos().into(),
    };
    let is_update = std::env::var_os("UPDATE").is_some();
    let wrong: Vec<String> = stories()
        .iter()
        .filter_map(|path| Some(format!("{}: {}", path.display(), check(path, seed, is_update).err()?)))
        .collect();
    assert!(wrong.is_empty(), "SEED={seed} repeats the failures of this run\n\n{}\n", wrong.join("\n\n"));
}

//! Compares the costs with the baseline, and stores it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use toml::{Table, Value};

use crate::child::{Costs, measure};
use crate::compare::{Figures, compare};
use crate::parts::PARTS;

/// A larger change, in percent, is a difference.
const TOLERANCE: f64 = 3.0;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../baseline.toml");

/// Fails if a cost differs from the baseline.
pub(crate) fn check() -> ExitCode {
    let (before, after) = (read(), measure_all());
    let is_same = compare(&before, &after, |_| TOLERANCE);
    if is_same {
        println!("Nothing differs by more than {TOLERANCE} %.");
        return ExitCode::SUCCESS;
    }
    let (built_by, here) = (before.get("compiler").and_then(Value::as_str).unwrap_or("unknown"), compiler());
    if built_by != here {
        println!("The baseline was made with {built_by}; this is {here}, which makes a difference of its own.");
    }
    println!(
        "What costs more needs a reason. If it has one, or costs less: make baseline, and commit benches/baseline.toml."
    );
    ExitCode::FAILURE
}

/// Stores the costs as the baseline.
pub(crate) fn update() -> ExitCode {
    let (before, after) = (read(), measure_all());
    compare(&before, &after, |_| TOLERANCE);
    let mut text = String::from(
        "# Written by `make baseline`; `make regressions` compares with it. See docs/development/performance.md.\n",
    );
    writeln!(text, "compiler = \"{}\"", compiler()).unwrap();
    for part in PARTS {
        writeln!(text, "\n# {}.\n[{}]", part.what, part.name).unwrap();
        for (cost, value) in &after[part.name] {
            writeln!(text, "{cost} = {value}").unwrap();
        }
    }
    fs::write(PATH, text).unwrap();
    ExitCode::SUCCESS
}

fn read() -> Table {
    fs::read_to_string(PATH).unwrap_or_default().parse().unwrap()
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Measures all parts, as many at a time as there are processors.
fn measure_all() -> BTreeMap<&'static str, Figures> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while let Some(part) = PARTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Costs { instructions, allocations, bytes } = measure(part.name);
                    let figures =
                        Figures::from([("instructions", instructions), ("allocations", allocations), ("bytes", bytes)]);
                    found.lock().unwrap().insert(part.name, figures);
                }
            });
        }
    });
    found.into_inner().unwrap()
}

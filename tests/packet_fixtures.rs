//! The cases of `packet_programs/fixtures/`, run by the packet programs as `nodelb_programs` compiles them for this machine.
//! `UPDATE=1` rewrites what the cases expect. `packet_cases.rs` runs the same cases in the kernel, as root.

#[cfg(test)]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[path = "packet_fixtures/counts.rs"]
mod counts;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_fixtures/kernel.rs"]
mod kernel;
#[cfg(test)]
#[path = "packet_fixtures/oracle.rs"]
mod oracle;
#[cfg(test)]
#[path = "packet_fixtures/print.rs"]
mod print;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nodelb_programs::host::Compiler;
use nodelb_programs::programs::{Load, Programs};

use crate::world::World;

/// The least number of cases, so that none is lost.
const LEAST: usize = 450;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packet_programs/fixtures");
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "txt")).collect();
    files.sort();
    files
}

/// The worlds that all files share come first.
fn shared_worlds() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packet_programs/fixtures");
    std::fs::read_to_string(folder.join("worlds")).expect("a file")
}

/// The text with the current results of the cases.
fn updated(text: &str, results: &[Vec<(String, Vec<String>)>]) -> String {
    let mut steps = results.iter().flatten();
    let mut is_case = false;
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("=>")) {
        lines.push(line.to_owned());
        let (trimmed, is_indented) = (line.trim(), line.starts_with(' '));
        if !is_indented && !trimmed.is_empty() && !trimmed.starts_with('#') {
            is_case = trimmed.starts_with("case ");
        } else if is_case && is_indented && !trimmed.starts_with('#') && !trimmed.starts_with("world ") {
            let (step, results) = steps.next().expect("a result for each step");
            assert_eq!(step, trimmed);
            lines.extend(results.iter().map(|result| format!("    => {result}")));
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_programs_do_what_the_cases_say() {
    do_what_the_cases_say(Compiler::Gcc);
}

#[test]
fn clang_s_programs_do_what_the_cases_say() {
    do_what_the_cases_say(Compiler::Clang);
}

/// The word of each entry that shows whether it is whole. Maps live through an upgrade, and so must their entries.
#[test]
fn the_seals_of_entries_are_those_of_earlier_versions() {
    let case = case::cases(&format!("{}\ncase seals\n  world policies", shared_worlds())).remove(0);
    let mut world = World::new();
    case.world.iter().for_each(|line| world.apply(line));
    let mut programs = Programs::load(Load::new(world.limits), &world.node());
    for line in [
        "in eth0 198.51.100.7:40000 > 203.0.113.2:80 tcp SYN",
        "in eth0 [2001:db8:c::7]:40000 > [2001:db8:f::1]:53 udp data 3",
    ] {
        programs.run(&world.node(), &case::packet(&world, line));
    }
    let mut seals = |map: &str, at: usize| {
        let entries = programs.list(map).into_iter();
        entries.fold(0, |all, (_, value)| all ^ u32::from_ne_bytes(value[at..at + 4].try_into().unwrap()))
    };
    assert_eq!(seals("half_open", 64), 0xb918_124a);
    // With the two flags of an address.
    assert_eq!(seals("outside", 4), 0x0a45_d94b);
}

fn do_what_the_cases_say(compiler: Compiler) {
    let shared = shared_worlds();
    let (mut names, mut count, mut different) = (BTreeSet::new(), 0, Vec::new());
    for file in files() {
        let text = std::fs::read_to_string(&file).expect("a file");
        let cases = case::cases(&format!("{shared}\n{text}"));
        let results: Vec<_> = cases.iter().map(|case| oracle::run(case, compiler)).collect();
        for case in &cases {
            assert!(names.insert(case.name.clone()), "two cases with the name {}", case.name);
        }
        count += cases.len();
        let now = updated(&text, &results);
        if now == text {
            continue;
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, now).expect("a file");
        } else {
            let line = text.lines().zip(now.lines()).position(|(a, b)| a != b).map_or(0, |line| line + 1);
            let shown = |text: &str| text.lines().nth(line.saturating_sub(1)).unwrap_or("").to_owned();
            different.push(format!(
                "{}:{line}\n  expected {}\n  now      {}",
                file.display(),
                shown(&text),
                shown(&now)
            ));
        }
    }
    assert!(different.is_empty(), "{}\nUPDATE=1 rewrites the files", different.join("\n"));
    assert!(count >= LEAST, "{count} cases");
}

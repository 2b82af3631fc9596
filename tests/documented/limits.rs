//! Limits, restarts, filters and figures in the documents are those of the program.

use std::collections::BTreeSet;
use std::fs::File;

use nodelb_sources::files;
use tempfile::TempDir;

use crate::coverage::commands;
use crate::manual::{Manual, plain};

const CONFIGURATION: &str = "contrib/man/nodelb.toml.5";

#[test]
fn service_files_are_read_up_to_the_size_that_the_documents_name() {
    let manual = crate::read("contrib/man/nodelb.services.5");
    let operations = crate::read("docs/operations.md");
    let directory = TempDir::new().expect("a directory");
    for (name, mebibytes) in [("a.toml", 8), ("b.yaml", 64), ("c.yml", 64), ("d.json", 64)] {
        let bytes: u64 = mebibytes << 20;
        let path = directory.path().join(name);
        File::create(&path).and_then(|file| file.set_len(bytes + 1)).expect("a sparse file");
        let found = files::check(directory.path(), nodelb_datapath::is_open_for_writing).problems;
        let is_too_large = |text: String| text.contains(name) && text.contains(&format!("more than the {bytes} "));
        assert!(found.iter().any(|problem| is_too_large(problem.to_string())), "{name}: {found:?}");
        std::fs::remove_file(path).expect("a file");
        for (document, text) in [("nodelb.services(5)", &manual), ("docs/operations.md", &operations)] {
            assert!(text.contains(&format!("{mebibytes} MiB")), "{document} does not name {mebibytes} MiB");
        }
    }
}

/// The keys of a section that need a restart, and the others, by the reference, which a unit test compares with the code.
fn keys_of(section: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let reference = crate::read("docs/configuration.md");
    let (mut restart, mut reload) = (BTreeSet::new(), BTreeSet::new());
    for entry in reference.lines().filter_map(|line| line.strip_prefix("- `")) {
        let (key, facts) = entry.split_once("` = ").expect("a key and its default");
        let Some(name) = key.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')) else { continue };
        let set = if facts.ends_with("; restart") { &mut restart } else { &mut reload };
        set.insert(name.to_owned());
    }
    (restart, reload)
}

/// The sections of the configuration, as nodelb.toml(5) has them.
fn sections(manual: &Manual) -> Vec<String> {
    let names = manual.headings().filter_map(|heading| heading.strip_prefix('[')?.strip_suffix(']'));
    names.map(str::to_owned).collect()
}

/// The introduction of a section in nodelb.toml(5) says whether a change needs a restart, and names the other keys if it
/// has both.
#[test]
fn sections_say_which_keys_need_a_restart() {
    let manual = Manual::open(CONFIGURATION);
    let sections = sections(&manual);
    assert!(sections.len() > 6, "{sections:?}");
    for section in &sections {
        let (restart, reload) = keys_of(section);
        let text = manual.section(&format!("[{section}]"));
        let introduction = text.split("\n.TP\n").next().expect("an introduction");
        let lines: Vec<String> = introduction.lines().map(plain).collect();
        let about = lines.iter().position(|line| line.starts_with("Changes ") && line.contains("need a restart"));
        assert_eq!(about.is_some(), !restart.is_empty(), "[{section}] of nodelb.toml(5): {restart:?} need a restart");
        let sentence = lines.iter().skip(about.unwrap_or(lines.len()));
        let to_its_end = sentence.clone().position(|line| line.ends_with('.')).map_or(0, |at| at + 1);
        let named = sentence.take(to_its_end).flat_map(|line| line.split([' ', ',', '.']));
        let named: BTreeSet<&str> = named.filter(|word| restart.contains(*word) || reload.contains(*word)).collect();
        let expected = if restart.is_empty() { BTreeSet::new() } else { reload.iter().map(String::as_str).collect() };
        assert_eq!(named, expected, "[{section}] of nodelb.toml(5): the keys that need no restart");
    }
}

/// SIGHUP in nodelb(8) names the sections of which changes need a restart.
#[test]
fn the_reload_names_the_sections_that_need_a_restart() {
    let manual = Manual::open("contrib/man/nodelb.8");
    let signals = manual.section("SIGNALS");
    for section in sections(&Manual::open(CONFIGURATION)) {
        let is_named = signals.contains(&format!("[{section}]"));
        assert_eq!(is_named, !keys_of(&section).0.is_empty(), "[{section}] in SIGNALS of nodelb(8)");
    }
}

/// The options that select rows.
const FILTERS: [&str; 4] = ["namespace", "address", "type", "status"];

/// The rows of the table of filters: the command, whether the name of a service selects its rows, and its options.
fn filters() -> Vec<String> {
    let mut rows = Vec::new();
    for command in commands() {
        let takes = |long: &str| command.get_arguments().any(|it| it.get_long() == Some(long) && !it.is_hide_set());
        let is_name = |it: &clap::Arg| it.get_value_names().is_some_and(|names| names[0].contains("NAME"));
        let name = command.get_positionals().any(|it| is_name(it) && !it.is_required_set());
        if !name && !FILTERS.into_iter().any(takes) {
            continue;
        }
        let mark = |has: bool| if has { "yes" } else { "-" };
        let marks: Vec<&str> = FILTERS.into_iter().map(|long| mark(takes(long))).collect();
        rows.push(format!("| `{}` | {} | {} |", command.get_name(), mark(name), marks.join(" | ")));
    }
    rows
}

#[test]
fn the_table_of_filters_is_what_the_commands_take() {
    let page = crate::read("docs/operations.md");
    let part = crate::part(&page, "### Filters of the commands");
    let shown: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
    let exist = filters();
    assert_eq!(shown, exist, "docs/operations.md must have these rows:\n{}", exist.join("\n"));
}

/// The figures of nodelb in docs/comparison.md are those of docs/benchmarks.md, rounded.
#[test]
fn figures_of_the_comparison_are_measured() {
    let benchmarks = crate::read("docs/benchmarks.md");
    let comparison = crate::read("docs/comparison.md");
    let measured = |row: &str| -> f64 {
        let line = benchmarks.lines().find(|line| line.starts_with(&format!("| {row} |")));
        let cell = line.and_then(|line| line.split(" | ").nth(1)).ok_or_else(|| format!("no row {row}"));
        cell.expect("a figure").split(' ').next().expect("a number").parse().expect("a number")
    };
    let factor = benchmarks.split("through a service address takes ").nth(1).and_then(|rest| rest.split(' ').next());
    let factor: f64 = factor.and_then(|text| text.parse().ok()).expect("the factor of a TCP connection");
    let cpu = measured("CPU time from the process's start to READY");
    let (resident, most) = (measured("resident at READY"), measured("most ever resident"));
    let wanted = [
        ("CPU time from start", format!("| {cpu:.1} s |")),
        ("resident memory", format!("| {resident:.0} MB, at most {most:.0} MB |")),
        ("nodelb, TCP", format!("| {:.1} % of a direct connection", (factor - 1.0) * 100.0)),
    ];
    for (row, figure) in wanted {
        let line = comparison.lines().find(|line| line.starts_with(&format!("| {row}")));
        assert!(line.is_some_and(|line| line.contains(&figure)), "{row}: docs/comparison.md lacks {figure}: {line:?}");
    }
}

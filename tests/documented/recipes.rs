//! CONTRIBUTING.md, ARCHITECTURE.md, the tour and the table of shares name what exists: the recipes and the tour their files,
//! the invariants and the shares their tests.

use std::path::Path;

use crate::{ROOT, part, read};

/// Code that looks like a path of the repository.
fn is_path(code: &str) -> bool {
    const ENDS: [&str; 8] = [".rs", ".h", ".c", ".md", ".toml", ".sh", ".8", ".5"];
    const FOLDERS: [&str; 9] =
        ["bpf/", "daemon/", "tests/", "contrib/", "docs/", "scripts/", "packaging/", "benches/", "fuzz/"];
    let is_plain = !code.contains([' ', '=', '*']) && !code.starts_with(['/', '.']);
    is_plain && (FOLDERS.iter().any(|folder| code.starts_with(folder)) || ENDS.iter().any(|end| code.ends_with(end)))
}

/// Checks that each path exists, and each "`name` in `path`". Returns the number of the latter.
pub(crate) fn check(document: &str, text: &str) -> usize {
    let pieces: Vec<&str> = text.split('`').collect();
    let mut names = 0;
    for at in (1..pieces.len()).step_by(2).filter(|at| is_path(pieces[*at])) {
        let path = Path::new(ROOT).join(pieces[at]);
        assert!(path.exists(), "{document}: there is no {}", pieces[at]);
        let between = pieces[at - 1].split_whitespace().collect::<Vec<_>>();
        if at >= 3 && between == ["in"] {
            let name = pieces[at - 2];
            assert!(read(pieces[at]).contains(name), "{document}: {} does not contain {name}", pieces[at]);
            names += 1;
        }
    }
    names
}

#[test]
fn recipes_name_what_exists() {
    let document = read("CONTRIBUTING.md");
    assert!(check("CONTRIBUTING.md", part(&document, "## Recipes")) >= 10, "the recipes name too little");
}

#[test]
fn the_tour_names_what_exists() {
    let tour = read("docs/development/tour.md");
    check("docs/development/tour.md", part(&tour, "## Ten files, in this order"));
    check("docs/development/tour.md", part(&tour, "## Where to look"));
    let files = part(&tour, "## Ten files, in this order").lines().filter(|line| line.contains(". `")).count();
    let rows = part(&tour, "## Where to look").lines().filter(|line| line.starts_with("| ")).count() - 1;
    assert_eq!((files, rows), (10, 12), "the tour stays one screen");
}

#[test]
fn the_table_of_shares_names_what_exists() {
    let path = "docs/development/shares.md";
    let document = read(path);
    assert!(check(path, &document) > 30, "the table names too little");
    // A row without a test says so.
    for row in document.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| resource |")) {
        let shown = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        assert!(shown == "none" || shown.contains('`'), "shown by? {row}");
    }
}

/// Each invariant names a test or a lint, by its function or key and the file.
#[test]
fn every_invariant_names_what_enforces_it() {
    let document = read("ARCHITECTURE.md");
    let mut items: Vec<String> = Vec::new();
    for line in part(&document, "## Invariants").lines() {
        let is_item = line.split_once(". ").is_some_and(|(number, _)| number.parse::<usize>().is_ok());
        match items.last_mut() {
            _ if is_item => items.push(line.to_owned()),
            Some(item) => *item = format!("{item} {line}"),
            None => {}
        }
    }
    assert!(items.len() > 15, "{items:?}");
    for item in items {
        assert!(check("ARCHITECTURE.md", &item) > 0, "no test or lint enforces: {item}");
    }
}

//! The tables of tests/README.md by which `scripts/test.sh` chooses the tests of `make test`.

use std::path::{Path, PathBuf};

use crate::recipes::check;
use crate::{ROOT, read};

/// A row: the rung, the name of the test, and the rest.
struct Row {
    rung: String,
    test: String,
    rest: String,
}

/// The rows of a table.
fn rows(table: &str) -> Vec<Row> {
    let page = read("tests/README.md");
    let (_, after) = page.split_once(&format!("<!-- {table}: begin -->")).expect("a table");
    let (lines, _) = after.split_once(&format!("<!-- {table}: end -->")).expect("its end");
    let rows: Vec<Row> = lines.lines().filter(|line| line.starts_with("| ")).skip(1).map(row).collect();
    assert!(!rows.is_empty(), "no rows in {table}");
    rows
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').splitn(3, '|').map(str::trim).collect();
    let [rung, test, rest] = cells[..] else { unreachable!("three cells or more: {line}") };
    Row { rung: rung.to_owned(), test: test.trim_matches('`').to_owned(), rest: rest.to_owned() }
}

/// The file with a test of a rung, and the name of its function.
fn source<'a>(rung: &str, test: &'a str) -> (PathBuf, &'a str) {
    let (modules, name) = test.rsplit_once("::").expect("a test in a module");
    let path = modules.replace("::", "/");
    let candidates = [format!("tests/{rung}/{path}.rs"), format!("tests/{path}.rs"), format!("tests/{rung}.rs")];
    let found = candidates.iter().map(|path| Path::new(ROOT).join(path)).find(|path| path.exists());
    (found.unwrap_or_else(|| candidates[0].clone().into()), name)
}

fn assert_exists(Row { rung, test, .. }: &Row) {
    let (path, name) = source(rung, test);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let is_there = text.split("#[test]\n").skip(1).any(|after| after.starts_with(&format!("fn {name}()")));
    assert!(is_there, "{rung}: there is no test {test} in {}", path.display());
}

#[test]
fn each_test_that_only_test_all_runs_names_one_that_make_test_runs() {
    let moved = rows("moved");
    for row in &moved {
        assert_exists(row);
        assert!(check("tests/README.md", &row.rest) > 0, "{}: which test shows it in `make test`?", row.test);
        let is_moved = |name: &str| moved.iter().any(|other| other.test.ends_with(&format!("::{name}")));
        let shown_by = row.rest.split('`').skip(1).step_by(2).find(|code| is_moved(code));
        assert_eq!(shown_by, None, "{}: only `make test-all` runs it, too", row.test);
    }
}

/// A test that asks how much of it is to run is in the table, at least by its file.
#[test]
fn each_file_with_shortened_tests_is_in_the_table() {
    let shortened = rows("shortened");
    shortened.iter().for_each(assert_exists);
    let all = shortened.into_iter().chain(rows("moved"));
    let listed: Vec<PathBuf> = all.map(|row| source(&row.rung, &row.test).0).collect();
    let mut folders = vec![Path::new(ROOT).join("tests")];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let is_rust = entry.extension().is_some_and(|extension| extension == "rs");
            let text = if is_rust { std::fs::read_to_string(&entry).expect("text") } else { String::new() };
            let asks = ["extent::is_all()", "in crash_points(", "crash_points(MANY)", "at_every_step("];
            let is_asking = asks.iter().any(|call| text.contains(call)) && text.contains("#[test]");
            if is_asking && !entry.ends_with("only_in_test_all.rs") {
                count += 1;
                assert!(listed.contains(&entry), "the table of shortened tests has none of {}", entry.display());
            }
        }
    }
    assert!(count > 4, "{count} files");
}

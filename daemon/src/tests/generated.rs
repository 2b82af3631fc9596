//! Documents that are generated from tables in the code: tests compare them, `UPDATE=1` rewrites them.

use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Checks that the file at this path in the repository is exactly `expected`.
pub(crate) fn is_whole_file(path: &str, expected: &str) {
    let path = Path::new(ROOT).join(path);
    if is_update() {
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs from the code: run this test with UPDATE=1", path.display());
}

/// Checks that the part of the file between the lines with these beginnings is exactly `expected`.
pub(crate) fn is_part_of_file(path: &str, (begin, end): (&str, &str), expected: &str) {
    let path = Path::new(ROOT).join(path);
    let found = fs::read_to_string(&path).unwrap();
    let after = |line: &str| {
        let start = found.find(&format!("\n{line}")).unwrap_or_else(|| panic!("{}: no line {line}", path.display()));
        (start + 1, found[start + 1..].find('\n').map_or(found.len(), |length| start + length + 2))
    };
    let (start, end) = (after(begin).1, after(end).0);
    if is_update() {
        fs::write(&path, format!("{}{expected}{}", &found[..start], &found[end..])).unwrap();
        return;
    }
    let path = path.display();
    assert!(
        found[start..end] == *expected,
        "{path}, after {begin}, differs from the code: run this test with UPDATE=1"
    );
}

pub(crate) fn is_update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

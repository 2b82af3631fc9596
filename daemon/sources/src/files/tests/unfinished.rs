use std::path::Path;

use super::*;

const ONE: &str = "[[service]]\nname = \"a/one\"\nfrontends = [\"198.51.100.1:80\"]\nbackends = [\"192.0.2.1:80\"]\n";

fn version(text: &str, inode: Option<u64>) -> Valid {
    Valid::parse(Path::new("/s/a.toml"), text.as_bytes(), inode).unwrap()
}

fn found(before: &str, new: &str, inode: u64) -> Option<Unfinished> {
    Unfinished::find(&version(before, Some(1)), &version(new, Some(inode)))
}

#[test]
fn what_takes_nothing_away_is_finished() {
    let more = format!("{ONE}# comment\n");
    assert_eq!(found(&more, ONE, 1), None);
    assert_eq!(found(ONE, &format!("{ONE}# comment"), 1), None);
}

#[test]
fn a_file_that_was_renamed_is_complete_whatever_it_says() {
    let more = format!("# comment\n{ONE}");
    assert_eq!(found(&more, "# comment\n", 1), Some(Unfinished::Beginning));
    assert_eq!(found(&more, "# comment\n", 2), None);
    let stored_by_an_earlier_version = version(&more, None);
    assert_eq!(
        Unfinished::find(&stored_by_an_earlier_version, &version("# comment\n", Some(2))),
        Some(Unfinished::Beginning)
    );
}

#[test]
fn who_never_ends_the_last_line_has_finished() {
    assert_eq!(found(ONE, "# none", 1), Some(Unfinished::MidLine));
    assert_eq!(found(ONE.trim_end(), "# none", 1), None);
    // Tools that replace the file may leave out the end of the last line.
    assert_eq!(found(ONE, "# none", 2), None);
}

/// Backends, frontends and services.
#[test]
fn everything_that_a_file_describes_counts() {
    let fewer = ONE.replace("[\"192.0.2.1:80\"]\n", "[]");
    assert_eq!(found(ONE, &fewer, 1), Some(Unfinished::MidLine));
    let two = ONE.replace("[\"198.51.100.1:80\"]", "[\"198.51.100.1:80\", \"198.51.100.2:80\"]");
    assert_eq!(found(&two, ONE.trim_end(), 1), Some(Unfinished::MidLine));
    let named = ONE.replace("192.0.2.1:80", "web.example.com:80");
    let fewer = named.replace("[\"web.example.com:80\"]\n", "[]");
    assert_eq!(found(&named, &fewer, 1), Some(Unfinished::MidLine));
}

use std::fs;

use super::*;

#[test]
fn what_changes_is_appended_until_the_file_is_twice_as_long() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("state/values.jsonl");
    let line = |number: u64| format!("{number:>1023}\n").into_bytes();
    let (mut lines, mut written) = (Lines::default(), Vec::new());
    for number in 0..200 {
        let everything = |to: &mut dyn Write| to.write_all(&line(number));
        lines.write(&path, Some(&line(number)), everything).expect("written");
        written.push(fs::metadata(&path).expect("a file").len());
        let text = fs::read(&path).expect("read");
        assert!(text.ends_with(&line(number)), "{number}");
    }
    let times = written.windows(2).filter(|lengths| lengths[1] < lengths[0]).count();
    assert_eq!((written[127], written[128], times), (2 * SHORT, 1_024, 1));
}

#[test]
fn a_file_that_is_not_as_it_was_left_is_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("values.jsonl");
    let mut lines = Lines::default();
    let mut write = |changed: Option<&[u8]>| {
        lines
            .write(&path, changed, |to| to.write_all(b"everything\n"))
            .map(|()| fs::read_to_string(&path).expect("read"))
    };
    assert_eq!(write(Some(b"first\n")).expect("written"), "everything\n");
    assert_eq!(write(Some(b"second\n")).expect("written"), "everything\nsecond\n");
    assert_eq!(write(None).expect("written"), "everything\n");
    for spoil in [|path: &Path| fs::write(path, "half a li"), |path: &Path| fs::remove_file(path)] {
        spoil(&path).expect("spoiled");
        assert_eq!(write(Some(b"third\n")).expect("written"), "everything\n");
    }
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    lines.write(&path, Some(b"fourth\n"), |_| Ok(())).expect_err("it is a directory");
    fs::remove_dir(&path).expect("removed");
    lines.write(&path, Some(b"fifth\n"), |to| to.write_all(b"everything\n")).expect("written");
    assert_eq!(fs::read_to_string(&path).expect("read"), "everything\n");
}

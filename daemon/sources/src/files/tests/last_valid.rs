use super::*;

fn version(text: &str) -> Option<Version> {
    Some(Version { text: text.into(), inode: Some(7) })
}

fn last(text: &str) -> LastValid {
    let files =
        [("/s/a.toml", version(text)), ("/s/b.toml", None)].map(|(path, version)| (PathBuf::from(path), version));
    LastValid { directory: "/s".into(), identity: Some((1, 2)), files: files.into_iter().collect() }
}

async fn load(state_directory: &Path) -> Option<LastValid> {
    begin(state_directory).wait().await
}

async fn stored(state_directory: &Path, last: LastValid) {
    store(state_directory).close(last).await;
}

/// A kill -9 may follow at once.
#[tokio::test]
async fn it_is_stored_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let mut stored = store(scratch.path());
    stored.save(last("new"));
    let is_stored = || scratch.path().join(NAME).exists();
    assert_eq!(LIMITS.every, Duration::ZERO);
    // The disk may be busy.
    for _ in 0..6_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if is_stored() {
            return;
        }
    }
    panic!("it is not stored");
}

#[tokio::test]
async fn what_is_stored_is_loaded() {
    let scratch = tempfile::tempdir().unwrap();
    assert_eq!(load(scratch.path()).await, None);
    stored(scratch.path(), last("\u{0}\"ü\n")).await;
    assert_eq!(load(scratch.path()).await, Some(last("\u{0}\"ü\n")));
}

fn write_to(path: &Path, last: &LastValid, before: Option<Written>) -> Written {
    let written = write(path, Arc::new(last.clone()), before).unwrap();
    assert_eq!(read(path).unwrap().as_ref(), Some(last));
    written
}

/// One comment in one of 2,000 files cost 8 MB of writing.
#[test]
fn a_change_of_one_file_writes_that_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(NAME);
    let size = || fs::metadata(&path).unwrap().len();
    let mut last = last("x");
    for n in 0..1000 {
        last.files.insert(format!("/s/{n}.toml").into(), version(&"x".repeat(1000)));
    }
    let written = write_to(&path, &last, None);
    let whole = size();
    last.files.insert("/s/a.toml".into(), version("new"));
    last.files.remove(Path::new("/s/0.toml"));
    let mut written = write_to(&path, &last, Some(written));
    assert!(size() < whole + 200, "{} after {whole}", size());
    // Outdated lines do not add up without end.
    for n in 0..2000 {
        last.files.insert("/s/a.toml".into(), version(&format!("{n}{}", "x".repeat(1000))));
        written = write(&path, Arc::new(last.clone()), Some(written)).unwrap();
        assert!(size() <= 2 * whole + 100_000);
    }
    assert_eq!(read(&path).unwrap(), Some(last));
}

#[test]
fn a_file_that_is_not_as_it_was_left_is_written_again() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(NAME);
    let written = write_to(&path, &last("one"), None);
    fs::remove_file(&path).unwrap();
    let written = write_to(&path, &last("two"), Some(written));
    // Another directory.
    write_to(&path, &LastValid { identity: Some((3, 4)), ..last("two") }, Some(written));
}

#[test]
fn a_line_that_was_not_written_completely_costs_only_that_line() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(NAME);
    let written = write_to(&path, &last("one"), None);
    write_to(&path, &last("two"), Some(written));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 1]).unwrap();
    assert_eq!(read(&path).unwrap(), Some(last("one")));
    fs::write(&path, text.replacen("\"/s/a.toml\"", "oops", 1)).unwrap();
    assert_eq!(read(&path).unwrap(), Some(last("two")));
}

#[test]
fn the_file_of_an_earlier_version_is_read_once() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, former) = (scratch.path().join(NAME), scratch.path().join(FORMER));
    let text = r#"{"version": 1, "boot": "b", "directory": "/s", "identity": [1, 2], "files": {"/s/a.toml": "x", "/s/b.toml": null}}"#;
    fs::write(&former, text).unwrap();
    let mut expected = last("x");
    expected.files.insert("/s/a.toml".into(), Some(Version { text: "x".into(), inode: None }));
    assert_eq!(read(&path).unwrap(), Some(expected));
    write_to(&path, &last("new"), None);
    assert!(!former.exists());
}

/// A version that is older than what was served must not come back.
#[tokio::test]
async fn a_version_that_cannot_be_stored_leaves_no_older_one() {
    let scratch = tempfile::tempdir().unwrap();
    stored(scratch.path(), last("old")).await;
    stored(scratch.path(), last(&"x".repeat(MAX_TEXT + 1))).await;
    assert_eq!(load(scratch.path()).await, None);
}

#[tokio::test]
async fn a_file_that_is_no_state_is_kept_aside() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(NAME);
    fs::write(&path, "{}").unwrap();
    assert_eq!(load(scratch.path()).await, None);
    assert!(state_file::corrupt_path(&path).exists());
}

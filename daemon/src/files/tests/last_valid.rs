use super::*;

fn last(text: &str) -> LastValid {
    let texts = BTreeMap::from([("/s/a.toml".into(), Some(text.into())), ("/s/b.toml".into(), None)]);
    LastValid { directory: "/s".into(), identity: Some((1, 2)), texts }
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
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if is_stored() {
            return;
        }
    }
    panic!("it is not stored");
}

#[tokio::test]
async fn what_is_stored_is_loaded_for_the_same_directory() {
    let scratch = tempfile::tempdir().unwrap();
    assert_eq!(load(scratch.path(), "/s".as_ref()).await, None);
    stored(scratch.path(), last("\u{0}\"ü")).await;
    assert_eq!(load(scratch.path(), "/s".as_ref()).await, Some(last("\u{0}\"ü")));
    assert_eq!(load(scratch.path(), "/other".as_ref()).await, None);
}

/// A version that is older than what was served must not come back.
#[tokio::test]
async fn a_version_that_cannot_be_stored_leaves_no_older_one() {
    let scratch = tempfile::tempdir().unwrap();
    stored(scratch.path(), last("old")).await;
    stored(scratch.path(), last(&"x".repeat(MAX_TEXT + 1))).await;
    assert_eq!(load(scratch.path(), "/s".as_ref()).await, None);
}

#[tokio::test]
async fn a_file_that_is_no_state_is_kept_aside() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(NAME);
    fs::write(&path, "{}").unwrap();
    assert_eq!(load(scratch.path(), "/s".as_ref()).await, None);
    assert!(state_file::corrupt_path(&path).exists());
}

use super::*;

/// A directory for this test, on an ordinary file system.
fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("nodelb-versions-{}-{name}", std::process::id()));
    drop(fs::remove_dir_all(&directory));
    directory
}

/// A cleanup without a pin directory must stop: a daemon that starts immediately afterwards would lose its pins.
#[test]
fn what_is_absent_is_not_locked() {
    let directory = scratch("absent");
    assert!(Lock::take(&directory).unwrap().is_none());
    fs::create_dir(&directory).unwrap();
    let lock = Lock::take(&directory).unwrap();
    assert!(lock.is_some());
    assert!(matches!(Lock::take(&directory), Err(OpenError::Busy { .. })));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_was_made_again_is_locked_again() {
    let directory = scratch("again");
    fs::create_dir_all(directory.join("v1")).unwrap();
    let mut lock = Lock::take(&directory).unwrap().unwrap();
    lock.extend(&directory).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir_all(directory.join("v1")).unwrap();
    assert!(Lock::take(&directory).unwrap().is_some(), "the old lock is of directories that are gone");
    lock.extend(&directory).unwrap();
    assert!(matches!(Lock::take(&directory), Err(OpenError::Busy { .. })));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn every_layout_has_one_reader_and_todays_is_the_last() {
    let layouts: Vec<u32> = READERS.iter().map(|reader| reader.layout).collect();
    assert!(layouts.is_sorted_by(|a, b| a < b), "{layouts:?}");
    assert_eq!(layouts.last(), Some(&LAYOUT));
    assert!(reader(LAYOUT + 1).is_none());
}

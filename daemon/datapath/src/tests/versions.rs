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
fn a_lock_ends_with_its_owner_also_while_a_child_has_the_file_open() {
    let directory = scratch("inherited");
    fs::create_dir_all(directory.join("v1")).unwrap();
    let lock = Lock::take(&directory).unwrap().unwrap();
    let inherited: Vec<_> = lock.files.iter().map(|file| file.try_clone().unwrap()).collect();
    drop(lock);
    assert!(Lock::take(&directory).unwrap().is_some());
    drop(inherited);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn every_layout_has_one_reader_and_todays_is_the_last() {
    let layouts: Vec<u32> = READERS.iter().map(|reader| reader.layout).collect();
    assert!(layouts.is_sorted_by(|a, b| a < b), "{layouts:?}");
    assert_eq!(layouts.last(), Some(&LAYOUT));
    assert!(reader(LAYOUT + 1).is_none());
}

#[test]
fn a_directory_that_others_may_change_is_not_used_and_one_that_they_may_lock_is_closed_to_them() {
    let directory = scratch("private");
    let version = directory.join("v1");
    fs::create_dir_all(&version).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for path in [&directory, &version] {
        fs::set_permissions(path, Permissions::from_mode(0o757)).unwrap();
        let refused = Lock::take(&directory).unwrap_err();
        assert!(matches!(&refused, OpenError::NotOwn { mode: 0o757, directory, .. } if directory == path), "{refused}");
        assert_eq!(mode(path), 0o757, "it is not changed");
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let lock = Lock::take(&directory).unwrap();
    assert_eq!((lock.is_some(), mode(&directory), mode(&version)), (true, 0o700, 0o700));
    fs::remove_dir_all(&directory).unwrap();
}

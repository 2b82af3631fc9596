use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;

use super::*;

#[test]
fn a_change_shows_through_symbolic_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("one"), "1").unwrap();
    fs::write(path("two"), "2").unwrap();
    symlink(path("one"), path("current")).unwrap();
    let mut reading = Reading::default();
    assert!(reading.is_outdated(), "nothing read yet");
    assert_eq!(reading.read(&path("current")).unwrap().content, b"1");
    assert!(!reading.is_outdated());
    symlink(path("two"), path("next")).unwrap();
    fs::rename(path("next"), path("current")).unwrap();
    assert!(reading.is_outdated());
    let mut reading = Reading::default();
    assert_eq!(reading.read(&path("current")).unwrap().content, b"2");
    fs::remove_file(path("two")).unwrap();
    assert!(reading.is_outdated());
}

#[test]
fn what_cannot_be_a_credential_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    nix::unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
    fs::write(path("large"), vec![0; (1 << 20) + 1]).unwrap();
    let mut reading = Reading::default();
    for (name, expected) in
        [("pipe", "not a regular"), ("large", "larger than"), (".", "not a reg"), ("none", "No such")]
    {
        let error = reading.read(&path(name)).unwrap_err().to_string();
        assert!(error.contains(&format!("{name} cannot be read: ")) && error.contains(expected), "{error}");
    }
    assert!(!reading.is_outdated(), "a missing file that stays missing is no news");
    fs::write(path("none"), "").unwrap();
    assert!(reading.is_outdated());
}

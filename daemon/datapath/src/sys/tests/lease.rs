use std::fs::{File, OpenOptions, hard_link};
use std::os::fd::AsFd;

use super::*;

#[test]
fn a_file_is_open_for_writing_until_its_last_writer_has_closed_it() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, link) = (scratch.path().join("a"), scratch.path().join("b"));
    let writer = File::create(&path).unwrap();
    hard_link(&path, &link).unwrap();
    let reader = File::open(&link).unwrap();
    assert_eq!(is_open_for_writing(reader.as_fd()), Some(true), "by another name, before anything is written");
    let other = OpenOptions::new().append(true).open(&path).unwrap();
    drop(writer);
    assert_eq!(is_open_for_writing(reader.as_fd()), Some(true));
    drop(other);
    assert_eq!(is_open_for_writing(reader.as_fd()), Some(false));
    // The lease is given back: a writer does not wait.
    drop(OpenOptions::new().write(true).open(&path).unwrap());
    assert_eq!(is_open_for_writing(reader.as_fd()), Some(false), "again");
}

/// Writers that begin while the lease is held make the kernel send a signal.
#[test]
fn writers_that_begin_meanwhile_end_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a");
    std::fs::write(&path, "x").unwrap();
    let reader = File::open(&path).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..20_000 {
                drop(OpenOptions::new().write(true).open(&path).unwrap());
            }
        });
        while !writer.is_finished() {
            assert!(is_open_for_writing(reader.as_fd()).is_some());
        }
    });
}

#[test]
fn what_is_no_file_has_no_lease() {
    let (reader, _writer) = io::pipe().unwrap();
    assert_eq!(is_open_for_writing(reader.as_fd()), None);
}

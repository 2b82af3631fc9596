use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use super::{Error, Socket};

#[test]
fn a_socket_is_made_for_few_and_removed_at_the_end() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nodelb.sock");
    let socket = Socket::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    UnixStream::connect(&path).unwrap();
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn one_that_was_left_behind_is_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nodelb.sock");
    drop(UnixListener::bind(&path).unwrap());
    let _socket = Socket::open(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn foreign_files_are_not_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nodelb.sock");
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(Socket::open(&path), Err(Error::InUse)));
    UnixStream::connect(&path).unwrap();
    drop(other);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::open(&path), Err(Error::Foreign)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(scratch.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(Socket::open(&path), Err(Error::Foreign)));
    assert!(matches!(Socket::open(&scratch.path().join("none/nodelb.sock")), Err(Error::NoDirectory)));
}

#[test]
fn the_next_daemons_socket_is_not_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nodelb.sock");
    let first = Socket::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = Socket::open(&path).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}

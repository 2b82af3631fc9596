//! The results of system calls.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

pub(super) fn check(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

pub(super) fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a non-negative result is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

//! Whether a file is open for writing: the kernel tells it to those who ask for a lease.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Of asm-generic/fcntl.h; the crate libc does not have it.
const F_SETSIG: i32 = 10;

/// Whether any process has the file open, or mapped, for writing. `None` if the kernel does not tell: the file belongs to
/// another user, and the caller lacks CAP_LEASE, or its file system has no leases. `file` must be open only for reading.
///
/// A program that opens the file for writing at this very moment waits until the lease is given back, some microseconds
/// later; with `O_NONBLOCK`, its open fails with `EWOULDBLOCK`.
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Option<bool> {
    let set = |what: i32, value: i32| {
        // SAFETY: the descriptor is open for the call, and these commands take a number.
        let status = unsafe { libc::fcntl(file.as_raw_fd(), what, value) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // Such a program also makes the kernel send a signal, by default SIGIO, which would end this process. SIGURG is ignored.
    set(F_SETSIG, libc::SIGURG).ok()?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        // It cannot fail; otherwise, closing the file gives the lease back.
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK).ok().map(|()| false),
        Err(error) => (error.raw_os_error() == Some(libc::EAGAIN)).then_some(true),
    }
}

#[cfg(test)]
#[path = "tests/lease.rs"]
mod tests;

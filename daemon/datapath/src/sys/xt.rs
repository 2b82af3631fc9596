//! Reads the rules of iptables-legacy and ip6tables-legacy. Each function makes one system call, and takes CAP_NET_ADMIN.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reads an option of a socket into the buffer, which has the question; returns the length of the answer.
pub(crate) fn read_option(socket: BorrowedFd<'_>, level: i32, option: i32, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the call; the kernel reads and writes at most `length` bytes of the buffer, and
    // writes the length.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}

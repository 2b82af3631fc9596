//! The results of system calls, and what is pinned.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(super) fn check(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

pub(super) fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a non-negative result is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Opens what is pinned at the path; `None` if it is not of a kind that the kernel shows as one of these.
pub(super) fn open_as(path: &Path, kinds: &[&str]) -> io::Result<Option<OwnedFd>> {
    // Maps, programs and links look like files; the kernel refuses to open anything else.
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let object = open_pinned(path)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd()))?;
    let is_wanted = kinds.iter().any(|it| name.as_os_str().as_bytes() == it.as_bytes());
    Ok(is_wanted.then_some(object))
}

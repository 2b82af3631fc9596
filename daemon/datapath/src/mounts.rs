//! The mounts in `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{OpenError, failed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The mounted part of the file system: `/` for all of it; for a namespace, its name.
    pub root: &'a str,
    point: &'a str,
}

impl Mount<'_> {
    pub fn point(&self) -> PathBuf {
        unescape(self.point)
    }
}

pub(crate) fn mountinfo() -> Result<String, OpenError> {
    let path = Path::new("/proc/self/mountinfo");
    fs::read_to_string(path).map_err(failed("reading", path))
}

/// The mounts of this type of file system, in the order of mounting. Malformed lines are left out.
pub fn by_type<'a>(mountinfo: &'a str, kind: &'a str) -> impl Iterator<Item = Mount<'a>> {
    mountinfo.lines().filter_map(move |line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (after.split(' ').next()? == kind).then_some(Mount { root, point })
    })
}

/// Decodes the octal escapes of the kernel.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let octal = more.first_chunk::<3>().filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
#[path = "tests/mounts.rs"]
mod tests;

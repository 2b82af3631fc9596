//! The cgroup v2 of this process. Any user may find out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether this process is neither in the cgroup nor in one below it. False if that cannot be determined, because the
/// cgroup belongs to another hierarchy or namespace.
pub fn is_outside(cgroup: &Path) -> bool {
    let (Ok(wanted), Some(own)) = (fs::metadata(cgroup), own()) else { return false };
    let is_it =
        |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()));
    let is_comparable = fs::metadata(&own).is_ok_and(|found| found.dev() == wanted.dev());
    is_comparable && !own.ancestors().any(is_it)
}

/// The cgroup of this process: below the mount point, the path of `/proc/self/cgroup` after the root of the mount.
pub fn own() -> Option<PathBuf> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    path_in(&cgroup, &mounts()?)
}

/// The mount point that shows the whole hierarchy.
pub fn root() -> Option<PathBuf> {
    path_in("0::/", &mounts()?)
}

fn mounts() -> Option<String> {
    fs::read_to_string("/proc/self/mountinfo").ok()
}

fn path_in(cgroup: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A part of the hierarchy may be mounted elsewhere.
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ").then(|| Path::new(point).join(below))
    })
}

#[cfg(test)]
#[path = "tests/cgroup.rs"]
mod tests;

//! Whether this command is in the cgroup with the processes that use services. Any user may find out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the daemon's cgroup if this command is not in it; `None` if it is, or if that cannot be determined.
pub(super) fn outside(of_daemon: &str) -> Option<String> {
    let daemon = Path::new(of_daemon);
    if !daemon.is_absolute() {
        return None;
    }
    let wanted = fs::metadata(daemon).ok()?;
    let own = own()?;
    let is_it =
        |path: &Path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()));
    let is_inside = fs::metadata(&own).is_ok() && own.ancestors().any(is_it);
    // A cgroup of another hierarchy or namespace cannot be compared.
    let is_comparable = fs::metadata(&own).is_ok_and(|found| found.dev() == wanted.dev());
    (is_comparable && !is_inside).then(|| of_daemon.to_owned())
}

/// Returns the cgroup v2 of this process: below the mount point, the path of `/proc/self/cgroup` after the root of the
/// mount.
fn own() -> Option<PathBuf> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    path_in(&cgroup, &mounts)
}

fn path_in(cgroup: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then_some((root, point))
    });
    let (root, point) = mount?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

#[cfg(test)]
#[path = "tests/cgroup.rs"]
mod tests;

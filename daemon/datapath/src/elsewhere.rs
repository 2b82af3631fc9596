//! Other pin directories whose links are on the same cgroup: of a nodelb that was told another directory since, or of one
//! that runs beside this one. Their programs translate too, each by its own maps. Which programs are attached the kernel
//! tells only who has CAP_SYS_ADMIN; which links are pinned anybody can look up who may read the BPF file systems.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::attach;
use crate::mounts;
use crate::versions;

/// How deep below a mount they are looked for.
const DEPTH: usize = 3;

/// How many directories are looked at: others may have very many.
const DIRECTORIES: usize = 1024;

/// The pin directories other than this one with a link on this cgroup.
pub(crate) fn attached(own: &Path, cgroup: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let mut search = Search { cgroup, seen: identity(own).into_iter().collect(), found: Vec::new() };
    for mount in mounts::of_kind(mountinfo, "bpf") {
        search.look(&mount.point(), DEPTH);
    }
    search.found.sort_unstable();
    search.found
}

struct Search<'a> {
    cgroup: &'a Path,
    /// The same directory may be mounted at several places.
    seen: BTreeSet<(u64, u64)>,
    found: Vec<PathBuf>,
}

impl Search<'_> {
    fn look(&mut self, directory: &Path, depth: usize) {
        let is_new = self.seen.len() < DIRECTORIES && identity(directory).is_some_and(|it| self.seen.insert(it));
        if !is_new {
            return;
        }
        let versions = versions::all(directory).unwrap_or_default();
        if versions.iter().any(|(_, version)| attach::has_link_on(&version.join("links"), self.cgroup)) {
            self.found.push(directory.to_path_buf());
        }
        let Some(depth) = depth.checked_sub(1) else { return };
        let below = fs::read_dir(directory).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            self.look(&entry.path(), depth);
        }
    }
}

fn identity(directory: &Path) -> Option<(u64, u64)> {
    fs::metadata(directory).ok().map(|found| (found.dev(), found.ino()))
}

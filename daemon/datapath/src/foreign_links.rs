//! Other pin directories with links on the same cgroup: of a nodelb that was configured with another directory before,
//! or of one that runs at the same time. Their programs translate too, each by its own maps. The kernel lists attached
//! programs only to a process with CAP_SYS_ADMIN, but any process that may read the BPF file systems can look up pinned
//! links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::attach::{self, Links};
use crate::mounts;
use crate::pinned_links::identity;
use crate::probe;
use crate::versions;

/// How many levels below a mount are searched.
const DEPTH: usize = 3;

/// How many directories are searched: other programs may have very many.
const DIRECTORIES: usize = 1024;

impl Links {
    /// Other pin directories with programs on the same cgroup. Searches every BPF file system that this process can
    /// reach.
    pub fn foreign_pin_directories(&self) -> Vec<PathBuf> {
        let mountinfo = mounts::mountinfo().unwrap_or_default();
        // The first component of `nodelb/v1/links`.
        let own = self.directory.ancestors().nth(2).unwrap_or(&self.directory);
        attached(own, &self.attachment.cgroup, &mountinfo)
    }

    /// The programs of the links that are pinned there, each with the pin directory.
    pub(crate) fn foreign_programs(&self) -> BTreeMap<u32, PathBuf> {
        let mut found = BTreeMap::new();
        for directory in self.foreign_pin_directories() {
            let versions = versions::all(&directory).unwrap_or_default();
            let programs = versions.iter().flat_map(|(_, version)| attach::programs_in(&version.join("links")));
            found.extend(programs.map(|id| (id, directory.clone())));
        }
        found
    }
}

/// The pin directories, other than `own`, with programs on the same cgroup: by default, on the root of cgroup v2. For a
/// process that has attached none.
pub fn foreign_pin_directories(own: &Path, cgroup: Option<&Path>) -> Vec<PathBuf> {
    let cgroup = cgroup.map_or_else(|| probe::cgroup_root().ok(), |cgroup| Some(cgroup.to_path_buf()));
    let mountinfo = mounts::mountinfo().unwrap_or_default();
    cgroup.map(|cgroup| attached(own, &cgroup, &mountinfo)).unwrap_or_default()
}

/// The pin directories, other than `own`, that have a link on this cgroup.
pub(crate) fn attached(own: &Path, cgroup: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let mut search = Search { seen: identity(own).into_iter().collect(), cgroup, found: Vec::new() };
    for mount in mounts::by_type(mountinfo, "bpf") {
        search.search(&mount.point(), DEPTH);
    }
    search.found.sort_unstable();
    search.found
}

struct Search<'a> {
    /// Device and inode of each directory seen: a directory may be mounted several times.
    seen: BTreeSet<(u64, u64)>,
    cgroup: &'a Path,
    found: Vec<PathBuf>,
}

impl Search<'_> {
    fn search(&mut self, directory: &Path, depth: usize) {
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
            self.search(&entry.path(), depth);
        }
    }
}

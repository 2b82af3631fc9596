//! Other pin directories with links on the same cgroup: of a nodelb that was configured with another directory before,
//! or of one that runs at the same time. Their programs translate too, each by its own maps. The kernel lists attached
//! programs only to a process with CAP_SYS_ADMIN, but any process that may read the BPF file systems can look up pinned
//! links.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::attach::{self, Links};
use crate::mounts;
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
}

/// The pin directories, other than `own`, that have a link on this cgroup.
pub(crate) fn attached(own: &Path, cgroup: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let seen = identity(own).into_iter().collect();
    let visit = |directory: &Path, versions: &[PathBuf]| {
        if versions.iter().any(|version| attach::has_link_on(&version.join("links"), cgroup)) {
            found.push(directory.to_path_buf());
        }
    };
    Search { seen, directories: DIRECTORIES, visit }.search_all(mountinfo, DEPTH);
    found.sort_unstable();
    found
}

/// The ids of all links that are pinned in any mounted BPF file system under nodelb's names, at any depth.
pub(crate) fn pinned_links(mountinfo: &str) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let visit = |_: &Path, versions: &[PathBuf]| {
        ids.extend(versions.iter().flat_map(|version| attach::links_in(&version.join("links"))));
    };
    Search { seen: BTreeSet::new(), directories: usize::MAX, visit }.search_all(mountinfo, usize::MAX);
    ids
}

struct Search<V> {
    /// Device and inode of each directory seen: a directory may be mounted several times.
    seen: BTreeSet<(u64, u64)>,
    /// The maximum number of directories in it.
    directories: usize,
    /// Called with each directory and the versions in it, possibly none.
    visit: V,
}

impl<V: FnMut(&Path, &[PathBuf])> Search<V> {
    fn search_all(&mut self, mountinfo: &str, depth: usize) {
        for mount in mounts::by_type(mountinfo, "bpf") {
            self.search(&mount.point(), depth);
        }
    }

    fn search(&mut self, directory: &Path, depth: usize) {
        let is_new = self.seen.len() < self.directories && identity(directory).is_some_and(|it| self.seen.insert(it));
        if !is_new {
            return;
        }
        let versions = versions::all(directory).unwrap_or_default();
        let versions: Vec<PathBuf> = versions.into_iter().map(|(_, version)| version).collect();
        (self.visit)(directory, &versions);
        let Some(depth) = depth.checked_sub(1) else { return };
        let below = fs::read_dir(directory).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            self.search(&entry.path(), depth);
        }
    }
}

fn identity(directory: &Path) -> Option<(u64, u64)> {
    fs::metadata(directory).ok().map(|found| (found.dev(), found.ino()))
}

//! Where links are pinned: in every BPF file system that a process of this machine sees.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkInfo;

use crate::mounts;
use crate::sys;

/// A pin of a link.
#[derive(Debug)]
pub(crate) struct LinkPin {
    pub(crate) path: PathBuf,
    /// Whether this process reaches it without `/proc`.
    pub(crate) is_visible: bool,
}

/// The links that are pinned in a BPF file system of the mount namespace of any process, under any name, by their ids. Each
/// link once, with the pin that this process sees if there is one. Other mount namespaces can only be read with
/// CAP_SYS_PTRACE.
pub(crate) fn everywhere() -> BTreeMap<u32, LinkPin> {
    let mut search = Search::default();
    for (root, process) in views() {
        let mountinfo = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        for mount in mounts::by_type(&mountinfo, "bpf") {
            let point = mount.point();
            search.look(&root.join(point.strip_prefix("/").unwrap_or(&point)), root == Path::new("/"));
        }
    }
    search.found
}

/// The file systems as the processes see them: the path of the root, and the directory in `/proc` with the mounts. First
/// those of this process.
fn views() -> Vec<(PathBuf, PathBuf)> {
    let own = PathBuf::from("/proc/self");
    let mut seen: BTreeSet<_> = view(&own).into_iter().collect();
    let mut views = vec![(PathBuf::from("/"), own)];
    for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
        if view(&process).is_some_and(|view| seen.insert(view)) {
            views.push((process.join("root"), process));
        }
    }
    views
}

/// The mount namespace of a process, and its root directory.
fn view(process: &Path) -> Option<(OsString, (u64, u64))> {
    let namespace = fs::read_link(process.join("ns/mnt")).ok()?;
    Some((namespace.into_os_string(), identity(&process.join("root"))?))
}

#[derive(Debug, Default)]
struct Search {
    /// Device and inode of each directory seen: a file system may be mounted several times.
    seen: BTreeSet<(u64, u64)>,
    found: BTreeMap<u32, LinkPin>,
}

impl Search {
    fn look(&mut self, directory: &Path, is_visible: bool) {
        if !identity(directory).is_some_and(|it| self.seen.insert(it)) {
            return;
        }
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.look(&path, is_visible);
            } else if let Ok(Some(link)) = sys::open_link(&path)
                && let Ok(info) = LinkInfo::from_fd(link.as_fd())
            {
                self.found.entry(info.id).or_insert(LinkPin { path, is_visible });
            }
        }
    }
}

pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

//! Finds the machine's network namespaces: through the processes in them, and through the mounts that keep them alive.
//! Owns the search, entering a namespace and returning from it; keeps no state between searches.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use nodelb_datapath::mounts::{self, Mount};

pub(super) type Inode = u64;

/// The original namespace of this process, to which it returns: a process that stayed in a pod's namespace would keep
/// it alive.
pub(super) struct Home {
    namespace: File,
    pub(super) inode: Inode,
}

impl Home {
    pub(super) fn here() -> io::Result<Self> {
        let namespace = File::open("/proc/self/ns/net")?;
        let inode = namespace.metadata()?.ino();
        Ok(Self { namespace, inode })
    }

    /// Checks that this process is in its original namespace.
    ///
    /// # Errors
    /// If it is not: the process must then end.
    pub(super) fn check(&self) -> io::Result<()> {
        match fs::metadata("/proc/self/ns/net")?.ino() == self.inode {
            true => Ok(()),
            false => Err(io::Error::other("cannot return to the network namespace of the host")),
        }
    }

    /// Runs `work` in the namespace with this number, which was found at `path`. Takes CAP_SYS_ADMIN, unless it is the
    /// original namespace.
    ///
    /// # Errors
    /// If the namespace is gone, cannot be entered, or cannot be left ([`Self::check`]).
    pub(super) fn visit<T>(&self, inode: Inode, path: &Path, work: impl FnOnce() -> T) -> io::Result<T> {
        if inode == self.inode {
            return Ok(work());
        }
        let namespace = File::open(path)?;
        if namespace.metadata()?.ino() != inode {
            // The process has ended, and another one has its number.
            return Err(io::ErrorKind::NotFound.into());
        }
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        let result = work();
        setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(result)
    }
}

/// A path to each namespace that has a process or a mount.
pub(super) fn all(home: &Home) -> io::Result<BTreeMap<Inode, PathBuf>> {
    let mut found = BTreeMap::from([(home.inode, PathBuf::from("/proc/self/ns/net"))]);
    for (inode, path) in mounted()?.into_iter().chain(processes()?) {
        found.entry(inode).or_insert(path);
    }
    Ok(found)
}

/// A path to each of these namespaces; those that are not found are missing from the result. Stops as soon as all are
/// found.
pub(super) fn find(home: &Home, wanted: &BTreeSet<Inode>) -> io::Result<BTreeMap<Inode, PathBuf>> {
    let mut found = BTreeMap::new();
    if wanted.contains(&home.inode) {
        found.insert(home.inode, PathBuf::from("/proc/self/ns/net"));
    }
    let mut missing: BTreeSet<Inode> = wanted.iter().copied().filter(|inode| *inode != home.inode).collect();
    let mut take = |missing: &mut BTreeSet<Inode>, (inode, path): (Inode, PathBuf)| {
        if missing.remove(&inode) {
            found.insert(inode, path);
        }
        missing.is_empty()
    };
    if missing.is_empty() || mounted()?.into_iter().any(|each| take(&mut missing, each)) {
        return Ok(found);
    }
    // A thread may be in another namespace than its process.
    let _ = processes()?.any(|each| take(&mut missing, each)) || threads()?.any(|each| take(&mut missing, each));
    Ok(found)
}

fn processes() -> io::Result<impl Iterator<Item = (Inode, PathBuf)>> {
    Ok(numbered(Path::new("/proc"))?.filter_map(|process| of_task(&process)))
}

fn threads() -> io::Result<impl Iterator<Item = (Inode, PathBuf)>> {
    let tasks = |process: PathBuf| numbered(&process.join("task")).into_iter().flatten();
    Ok(numbered(Path::new("/proc"))?.flat_map(tasks).filter_map(|task| of_task(&task)))
}

/// The numeric entries of a directory: processes of `/proc`, threads of a process.
fn numbered(directory: &Path) -> io::Result<impl Iterator<Item = PathBuf> + use<>> {
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let entries = fs::read_dir(directory)?.filter_map(Result::ok);
    Ok(entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path()))
}

/// The namespace of a task; `None` if it has ended or may not be read.
fn of_task(task: &Path) -> Option<(Inode, PathBuf)> {
    let path = task.join("ns/net");
    let inode = inode_of(fs::read_link(&path).ok()?.to_str()?)?;
    Some((inode, path))
}

/// The mounted namespaces that can be reached. A container runtime may hide its mounts; then the processes in the
/// namespaces lead to them.
fn mounted() -> io::Result<Vec<(Inode, PathBuf)>> {
    let mut mounted = parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?);
    mounted.retain(|(inode, path)| fs::metadata(path).is_ok_and(|file| file.ino() == *inode));
    Ok(mounted)
}

fn parse_mounts(mountinfo: &str) -> Vec<(Inode, PathBuf)> {
    let namespace = |mount: Mount<'_>| Some((inode_of(mount.root)?, mount.point()));
    mounts::by_type(mountinfo, "nsfs").filter_map(namespace).collect()
}

/// The inode in a name, such as 4026531840 in `net:[4026531840]`.
fn inode_of(name: &str) -> Option<Inode> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
#[path = "tests/namespaces.rs"]
mod tests;

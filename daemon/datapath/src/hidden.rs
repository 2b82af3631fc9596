//! Links of nodelb with unreachable pins: a bpffs that is mounted over the pin directory hides them, and their programs
//! keep translating by maps that no process updates any more. Only the kernel knows these links, and reports them only
//! to a process with CAP_SYS_ADMIN. Therefore only a command may do this, never the daemon.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::{LinkInfo, ProgInfoIter};

use crate::attach;
use crate::error::OpenError;
use crate::pinned_links;
use crate::probe;
use crate::sys;

/// A link that runs a program of nodelb, and that no BPF file system shows in the mount namespace of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenLink {
    pub id: u32,
    pub hook: &'static str,
    pub program: u32,
    /// What another nodelb has it in use by, if anything.
    pub user: Option<LinkUser>,
}

/// A nodelb that runs, or will run again, in another mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkUser {
    /// The process with this id holds the link open.
    Process(u32),
    /// The link is pinned at this path, which leads through `/proc` into a mount namespace.
    Pin(PathBuf),
}

/// Links that run nodelb's programs on the cgroup, or on the root of cgroup v2, and that no BPF file system shows here.
/// First those that translate destinations.
///
/// # Errors
/// If links cannot be looked up, which takes CAP_SYS_ADMIN.
pub fn hidden_links(cgroup: Option<&Path>) -> Result<Vec<HiddenLink>, OpenError> {
    let cgroup = match cgroup {
        Some(cgroup) => cgroup.to_path_buf(),
        None => probe::cgroup_root()?,
    };
    let mut found = find(&cgroup).map_err(|error| no_lookup(&error))?;
    found.sort_by_key(|link| std::cmp::Reverse(attach::all_hooks().position(|hook| hook.name == link.hook)));
    Ok(found)
}

/// Detaches those of the links that have no user by now, in their order, and returns them.
///
/// # Errors
/// If a link cannot be looked up or detached.
pub fn detach_hidden(cgroup: Option<&Path>, links: &[HiddenLink]) -> Result<Vec<HiddenLink>, OpenError> {
    let mut now = hidden_links(cgroup)?;
    now.retain(|link| link.user.is_none() && links.contains(link));
    for link in &now {
        let opened = sys::link_by_id(link.id).map_err(|error| no_lookup(&error))?;
        sys::link_detach(opened.as_fd()).map_err(|error| no_lookup(&error))?;
    }
    Ok(now)
}

fn no_lookup(error: &io::Error) -> OpenError {
    OpenError::NoLookup { reason: error.to_string() }
}

fn find(cgroup: &Path) -> io::Result<Vec<HiddenLink>> {
    let (ids, pins, programs, holders) = (sys::link_ids()?, pinned_links::everywhere(), programs(), holders());
    let mut found = Vec::new();
    for id in ids {
        let link = match sys::link_by_id(id) {
            // It has ended, or it is just being made (EAGAIN).
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => continue,
            link => link?,
        };
        let (Some(hook), Ok(info)) = (attach::hook_on(link.as_fd(), cgroup), LinkInfo::from_fd(link.as_fd())) else {
            continue;
        };
        let pin = pins.get(&id);
        if programs.get(&info.prog_id).is_none_or(|name| name != hook) || pin.is_some_and(|pin| pin.is_visible) {
            continue;
        }
        let holder = holders.get(&id).copied().map(LinkUser::Process);
        let user = holder.or_else(|| pin.map(|pin| LinkUser::Pin(pin.path.clone())));
        found.push(HiddenLink { id, hook, program: info.prog_id, user });
    }
    Ok(found)
}

/// The programs of nodelb, of any version: name by id.
fn programs() -> BTreeMap<u32, String> {
    let named = ProgInfoIter::default().filter(|program| attach::all_hooks().any(|hook| *hook.name == *program.name));
    let of_nodelb = named.filter(|program| sys::btf::of_id(program.btf_id).is_ok_and(|btf| is_of_nodelb(&btf)));
    of_nodelb.map(|program| (program.id, program.name.to_string_lossy().into_owned())).collect()
}

/// Where the source files of nodelb's programs are, wherever it is built: `-ffile-prefix-map` in `build.rs`.
const SOURCES: &[u8] = b"/nodelb/bpf/";

/// Whether a program is nodelb's, by its types: among their strings are the source files of its lines. Names of programs
/// and maps are no evidence, because other software uses the same.
fn is_of_nodelb(btf: &[u8]) -> bool {
    btf.split(|byte| *byte == 0).any(|string| string.starts_with(SOURCES))
}

/// The prefix of the names of BPF links, maps and programs in `/proc/PID/fd`. Only links have a link id in `fdinfo`.
const BPF: &[u8] = b"anon_inode:bpf";

/// The process that holds each link open, if `/proc` shows it.
fn holders() -> BTreeMap<u32, u32> {
    let mut holders = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for file in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            // The kernel shows `bpf_link` for a link that was created here, and `bpf-link` for one that was opened
            // through its pin.
            let is_bpf = fs::read_link(file.path()).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(BPF));
            if is_bpf && let Some(link) = link_of(&process.path().join("fdinfo").join(file.file_name())) {
                holders.insert(link, pid);
            }
        }
    }
    holders
}

/// The id of the link behind a descriptor, from the kernel's description in `/proc/PID/fdinfo`.
fn link_of(fdinfo: &Path) -> Option<u32> {
    let text = fs::read_to_string(fdinfo).ok()?;
    text.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
}

#[cfg(test)]
#[path = "tests/hidden.rs"]
mod tests;

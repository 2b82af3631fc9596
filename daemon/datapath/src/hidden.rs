//! Links of nodelb with unreachable pins: a bpffs that is mounted over the pin directory hides them, and their programs
//! keep translating by maps that no process updates any more. Only the kernel knows these links, and reports them only
//! to a process with CAP_SYS_ADMIN. Therefore only a command may do this, never the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::query::{LinkInfo, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};

use crate::attach;
use crate::error::OpenError;
use crate::foreign_links;
use crate::load::PERSISTENT;
use crate::maps::NAMES;
use crate::mounts;
use crate::outside;
use crate::probe;
use crate::sys;

/// A link of nodelb without a reachable pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenLink {
    pub id: u32,
    pub hook: &'static str,
    pub program: u32,
    /// Id of a process that holds it open, if any: possibly a daemon in another mount namespace.
    pub holder: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenReport {
    pub detached: Vec<HiddenLink>,
    /// Links that were left attached because a process holds them open.
    pub held: Vec<HiddenLink>,
}

/// Detaches nodelb's programs from the cgroup, or from the root of cgroup v2, if their link is pinned in no mounted BPF
/// file system and no process holds it open.
///
/// If links cannot be looked up, which takes CAP_SYS_ADMIN, or if a link cannot be detached.
pub fn detach_hidden(cgroup: Option<&Path>) -> Result<HiddenReport, OpenError> {
    let cgroup = match cgroup {
        Some(cgroup) => cgroup.to_path_buf(),
        None => probe::cgroup_root()?,
    };
    let visible = foreign_links::pinned_links(&mounts::mountinfo()?);
    let mut found = find(&cgroup, &visible).map_err(|error| no_lookup(&error))?;
    // First stop translating destinations, then stop translating answers back.
    found.sort_by_key(|link| std::cmp::Reverse(attach::all_hooks().position(|hook| hook.name == link.hook)));
    let mut report = HiddenReport::default();
    for link in found {
        if link.holder.is_some() {
            report.held.push(link);
            continue;
        }
        let opened = sys::link_by_id(link.id).map_err(|error| no_lookup(&error))?;
        sys::link_detach(opened.as_fd()).map_err(|error| no_lookup(&error))?;
        report.detached.push(link);
    }
    Ok(report)
}

fn no_lookup(error: &io::Error) -> OpenError {
    OpenError::NoLookup { reason: error.to_string() }
}

/// The links on this cgroup that run programs of nodelb, except the visible ones.
fn find(cgroup: &Path, visible: &BTreeSet<u32>) -> io::Result<Vec<HiddenLink>> {
    let (ids, programs, holders) = (sys::link_ids()?, programs(), holders());
    let mut found = Vec::new();
    for id in ids.into_iter().filter(|id| !visible.contains(id)) {
        let link = match sys::link_by_id(id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            link => link?,
        };
        let (Some(hook), Ok(info)) = (attach::hook_on(link.as_fd(), cgroup), LinkInfo::from_fd(link.as_fd())) else {
            continue;
        };
        if programs.get(&info.prog_id).is_some_and(|name| name == hook) {
            found.push(HiddenLink { id, hook, program: info.prog_id, holder: holders.get(&id).copied() });
        }
    }
    Ok(found)
}

/// The programs that use a map with one of nodelb's names: name by id.
fn programs() -> BTreeMap<u32, String> {
    let maps = MapInfoIter::default().filter(|map| {
        let name = map.name.to_string_lossy();
        PERSISTENT.iter().chain(&NAMES).chain(&outside::NAMES).any(|known| *known == name)
    });
    let maps: BTreeSet<u32> = maps.map(|map| map.id).collect();
    let programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let of_nodelb = programs.filter(|program| program.map_ids.iter().any(|id| maps.contains(id)));
    of_nodelb.map(|program| (program.id, program.name.to_string_lossy().into_owned())).collect()
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

//! Links of nodelb whose pins cannot be reached: a bpffs that was mounted over the pin directory hides them, and their
//! programs go on translating by maps that no process writes any more. Only the kernel knows them, and says so only to a
//! process with CAP_SYS_ADMIN: this is a command's work, never the daemon's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::query::{LinkInfo, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};

use crate::attach;
use crate::elsewhere;
use crate::error::OpenError;
use crate::load::LASTING;
use crate::maps::NAMES;
use crate::probe;
use crate::sys;

/// A link of nodelb that is pinned nowhere within reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenLink {
    /// Its id, as `bpftool link` shows it.
    pub id: u32,
    /// Which hook it is attached to.
    pub hook: &'static str,
    /// The id of its program.
    pub program: u32,
    /// The process that holds it open, if one does: a daemon in another mount namespace, perhaps.
    pub holder: Option<u32>,
}

/// What [`detach_hidden`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenReport {
    /// Detached.
    pub detached: Vec<HiddenLink>,
    /// Left, because a process holds them.
    pub held: Vec<HiddenLink>,
}

/// Detaches nodelb's programs from the cgroup, or the root of cgroup v2, where no link in any mounted BPF file system leads
/// to them and no process holds them.
///
/// # Errors
/// When links cannot be looked up, which takes CAP_SYS_ADMIN, or one cannot be detached.
pub fn detach_hidden(cgroup: Option<&Path>) -> Result<HiddenReport, OpenError> {
    let cgroup = match cgroup {
        Some(cgroup) => cgroup.to_path_buf(),
        None => probe::cgroup_root()?,
    };
    let (visible, holders) = (elsewhere::pinned_links(&probe::mountinfo()?), holders());
    let mut found = find(&cgroup, &visible).map_err(|error| no_lookup(&error))?;
    // Connections are no longer turned before answers are no longer turned back.
    found.sort_by_key(|link| std::cmp::Reverse(attach::all_hooks().position(|hook| hook.name == link.hook)));
    let mut report = HiddenReport::default();
    for mut link in found {
        link.holder = holders.get(&link.id).copied();
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

/// The links on this cgroup that run programs of nodelb, but for these.
fn find(cgroup: &Path, visible: &BTreeSet<u32>) -> io::Result<Vec<HiddenLink>> {
    let (ids, programs) = (sys::link_ids()?, programs());
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
            found.push(HiddenLink { id, hook, program: info.prog_id, holder: None });
        }
    }
    Ok(found)
}

/// The programs that use a map of one of nodelb's names, by id: each with its name.
fn programs() -> BTreeMap<u32, String> {
    let maps = MapInfoIter::default().filter(|map| {
        let name = map.name.to_string_lossy();
        LASTING.iter().chain(&NAMES).any(|known| *known == name)
    });
    let maps: BTreeSet<u32> = maps.map(|map| map.id).collect();
    let programs = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true));
    let of_nodelb = programs.filter(|program| program.map_ids.iter().any(|id| maps.contains(id)));
    of_nodelb.map(|program| (program.id, program.name.to_string_lossy().into_owned())).collect()
}

/// How the names of the descriptors of links, maps and programs begin, in `/proc/PID/fd`; of these only links have an id of
/// a link in `fdinfo`.
const BPF: &[u8] = b"anon_inode:bpf";

/// Which process holds which link open, as far as `/proc` shows it.
fn holders() -> BTreeMap<u32, u32> {
    let mut holders = BTreeMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for file in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            // The kernel writes `bpf_link` for a link that was created here, and `bpf-link` for one that was opened by its pin.
            let is_bpf = fs::read_link(file.path()).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(BPF));
            if is_bpf && let Some(link) = link_of(&process.path().join("fdinfo").join(file.file_name())) {
                holders.insert(link, pid);
            }
        }
    }
    holders
}

/// The id of the link that a descriptor is of, as the kernel describes it in `/proc/PID/fdinfo`.
fn link_of(fdinfo: &Path) -> Option<u32> {
    let text = fs::read_to_string(fdinfo).ok()?;
    text.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
}

//! Checks whether this machine permits nodelb to work, and if not, what exactly prevents it. Changes nothing.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

use crate::attach;
use crate::error::{OpenError, failed};
use crate::features::{Feature, Findings, FoundBy, REQUIRED, Required};
use crate::mounts::{self, Mount};
use crate::skeleton::KERNEL_TYPES;
use crate::sys;

/// The capabilities that loading, attaching and pinning need.
const CAPABILITIES: [(Capability, &str); 3] = [
    (Capability::CAP_BPF, "CAP_BPF"),
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    // Without it the verifier hardens programs against speculation and rejects some loops.
    (Capability::CAP_PERFMON, "CAP_PERFMON"),
];

/// The optional kernel features that the programs use; [`crate::features::OPTIONAL`] describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) set_retval: bool,
    /// [`Feature::RefuseBind`]: in this process's network namespace.
    pub(crate) bind_refusal: bool,
    /// The cookie that identifies the network namespace of this process to programs. It owns the node's loopback
    /// addresses. `None` without [`Feature::Netns`].
    pub(crate) netns: Option<u64>,
    pub(crate) mptcp: bool,
}

impl Features {
    /// The features that were found and those that are missing.
    pub(crate) fn findings(&self) -> Findings {
        let mut findings = Findings::default();
        findings.note(Feature::RefuseConnect, self.set_retval);
        findings.note(Feature::RefuseBind, self.bind_refusal);
        findings.note(Feature::Netns, self.netns.is_some());
        findings.note(Feature::Mptcp, self.mptcp);
        findings
    }
}

/// Checks everything that can be checked before loading, cheapest checks first.
pub(crate) fn check(pin_directory: &Path, cgroup: Option<&Path>) -> Result<(Features, PathBuf), OpenError> {
    let missing = missing_capabilities()?;
    if !missing.is_empty() {
        return Err(OpenError::NotPermitted { missing });
    }
    check_bpffs(pin_directory)?;
    let cgroup = match cgroup {
        Some(path) => path.to_path_buf(),
        None => cgroup_root()?,
    };
    check_cgroup(&cgroup)?;
    // Before anything is created.
    if let Some(exclusive) = attach::exclusive(&cgroup) {
        return Err(exclusive);
    }
    let lacks = |required: &&Required| match required.found_by {
        FoundBy::Helper(function) => !at_connect(function),
        FoundBy::Capabilities | FoundBy::Trying => false,
    };
    if let Some(Required { name, since, .. }) = REQUIRED.iter().find(lacks) {
        return Err(OpenError::Lacks { what: format!("{name} ({since})") });
    }
    Ok((features(), cgroup))
}

fn features() -> Features {
    // A kernel without MPTCP or without BTF has the function but rejects programs that call it.
    let has_mptcp = ["/proc/sys/net/mptcp", KERNEL_TYPES].into_iter().all(|path| Path::new(path).exists());
    let netns = own_netns();
    Features {
        set_retval: at_connect(libbpf_sys::BPF_FUNC_set_retval),
        bind_refusal: netns.is_some() && at_connect(libbpf_sys::BPF_FUNC_set_retval),
        netns,
        mptcp: has_mptcp && at_connect(libbpf_sys::BPF_FUNC_skc_to_mptcp_sock),
    }
}

/// Whether programs at the connect, sendmsg and bind hooks may call the function.
fn at_connect(function: libbpf_sys::bpf_func_id) -> bool {
    sys::has_function(libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR, function)
}

fn own_netns() -> Option<u64> {
    let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    sys::netns_cookie(any.as_fd()).ok()
}

fn missing_capabilities() -> Result<Vec<&'static str>, OpenError> {
    let status = Path::new("/proc/self/status");
    let effective = caps::read(None, CapSet::Effective).map_err(failed("reading capabilities from", status))?;
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
    let implied =
        |capability| capability != Capability::CAP_NET_ADMIN && effective.contains(&Capability::CAP_SYS_ADMIN);
    let lacking =
        CAPABILITIES.iter().filter(|&&(capability, _)| !effective.contains(&capability) && !implied(capability));
    Ok(lacking.map(|&(_, name)| name).collect())
}

fn check_bpffs(pin_directory: &Path) -> Result<(), OpenError> {
    // One system call for each directory: `nodelb cleanup` may remove it at any time.
    let existing = pin_directory.ancestors().find_map(|directory| statfs(directory).ok());
    if existing.is_none_or(|found| found.filesystem_type() != BPF_FS_MAGIC) {
        return Err(OpenError::NoBpffs { directory: pin_directory.to_path_buf() });
    }
    let mountinfo = mounts::mountinfo()?;
    if fs::canonicalize(pin_directory).is_ok_and(|place| is_whole_bpffs(&mountinfo, &place)) {
        return Err(OpenError::WholeBpffs { directory: pin_directory.to_path_buf() });
    }
    Ok(())
}

/// Whether the root of a bpffs is mounted at the path; a directory of a bpffs that is mounted on itself
/// (`ReadWritePaths=`) does not count.
fn is_whole_bpffs(mountinfo: &str, place: &Path) -> bool {
    mounts::by_type(mountinfo, "bpf").any(|mount| mount.root == "/" && mount.point() == place)
}

fn check_cgroup(path: &Path) -> Result<(), OpenError> {
    let bad = |reason: String| OpenError::BadCgroup { path: path.to_path_buf(), reason };
    let found = statfs(path).map_err(|error| bad(error.desc().into()))?;
    if found.filesystem_type() == CGROUP2_SUPER_MAGIC && path.is_dir() {
        Ok(())
    } else {
        Err(bad("it is on another file system".into()))
    }
}

/// The mount point of cgroup v2, with or without v1.
pub(crate) fn cgroup_root() -> Result<PathBuf, OpenError> {
    find_cgroup_root(&mounts::mountinfo()?).ok_or(OpenError::NoCgroup2)
}

/// The first cgroup v2 mount that shows the whole hierarchy, otherwise the first of any.
fn find_cgroup_root(mountinfo: &str) -> Option<PathBuf> {
    let found: Vec<_> = mounts::by_type(mountinfo, "cgroup2").collect();
    let whole = found.iter().find(|mount| mount.root == "/");
    whole.or_else(|| found.first()).map(Mount::point)
}

#[cfg(test)]
#[path = "tests/probe.rs"]
mod tests;

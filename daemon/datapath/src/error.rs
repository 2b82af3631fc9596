//! Why the kernel side cannot start. Each variant is a different thing for the operator to do.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Why [`crate::KernelDatapath::open`] or [`crate::cleanup`] did not succeed. Traffic is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process lacks capabilities.
    #[error(
        "BPF programs cannot be loaded: {} missing; start nodelb as root or give its unit \
         AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON",
        are(.missing)
    )]
    NotPermitted {
        /// Their names.
        missing: Vec<&'static str>,
    },
    /// The capabilities are there and bpf(2) is refused all the same.
    #[error(
        "bpf(2) is refused ({reason}) although the capabilities are there: a seccomp filter (SystemCallFilter=bpf allows \
         it), a container runtime or kernel lockdown forbids it"
    )]
    Forbidden {
        /// What the kernel said.
        reason: String,
    },
    /// The pin directory is on another kind of file system.
    #[error("{} is not on a bpffs: mount -t bpf bpf /sys/fs/bpf", directory.display())]
    NoBpffs {
        /// The pin directory.
        directory: PathBuf,
    },
    /// The pin directory is a whole bpffs, which others use too.
    #[error(
        "{} is where a whole bpffs is mounted, which is not nodelb's alone: datapath.pin-directory is a directory in it, \
         such as {}",
        directory.display(), directory.join("nodelb").display()
    )]
    WholeBpffs {
        /// The pin directory.
        directory: PathBuf,
    },
    /// No cgroup v2 hierarchy is mounted.
    #[error("no cgroup v2 is mounted: mount -t cgroup2 none /sys/fs/cgroup (or at another place, beside v1)")]
    NoCgroup2,
    /// The cgroup to attach to is not one.
    #[error("{} is not a cgroup v2 directory: {reason}", path.display())]
    BadCgroup {
        /// As configured or found.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another program has a hook of the cgroup to itself.
    #[error(
        "program {program}{} is attached to {} at {hook} without BPF_F_ALLOW_MULTI: the kernel lets no other program onto \
         this hook {}. See whose it is with bpftool prog show id {program}; have its owner attach it with BPF_F_ALLOW_MULTI, \
         or take it away with bpftool cgroup detach {} {hook} id {program}. Nothing of nodelb is attached or pinned",
        named(.name), cgroup.display(), if *is_here { "there" } else { "there or in a cgroup below" }, cgroup.display()
    )]
    Exclusive {
        /// The hook, by the name that bpftool has for it.
        hook: &'static str,
        /// The cgroup it is attached to: nodelb's, or one above.
        cgroup: PathBuf,
        /// Whether that is nodelb's.
        is_here: bool,
        /// The id of the program.
        program: u32,
        /// Its name, if this process may look it up.
        name: Option<String>,
    },
    /// The kernel interprets programs instead of compiling them.
    #[error(
        "the BPF JIT is off, and the kernel takes nodelb's programs only with it ({reason}): set \
         net.core.bpf_jit_enable to 1 with sysctl(8), and find in /etc/sysctl.d what set it to 0; a kernel that has no \
         such setting lacks CONFIG_BPF_JIT"
    )]
    NoJit {
        /// What the load returned.
        reason: String,
    },
    /// Links cannot be looked up by id.
    #[error(
        "links cannot be looked up by id ({reason}): that takes CAP_SYS_ADMIN; run nodelb cleanup --hidden as root"
    )]
    NoLookup {
        /// What the kernel said.
        reason: String,
    },
    /// The kernel is too old, or built without something.
    #[error("this kernel lacks {what}: nodelb needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF")]
    Lacks {
        /// What, and since when kernels have it.
        what: String,
    },
    /// The kernel refused a program.
    #[error("the kernel refuses nodelb's BPF programs ({reason}); the end of what it says:\n{log}")]
    Refused {
        /// What the load returned.
        reason: String,
        /// The last lines of the verifier's log.
        log: String,
        /// Whether the same programs may be taken another time: memory or file descriptors are short, say.
        may_pass: bool,
    },
    /// Another process holds the pins.
    #[error("another nodelb works with {}: only one can; stop it first", directory.display())]
    Busy {
        /// The pin directory.
        directory: PathBuf,
    },
    /// The maps are of a newer version of nodelb.
    #[error(
        "{} holds maps of layout {found}, which a newer nodelb made; this one ({}) knows layout {known} and leaves \
         everything as it is: connections go on by the last state of the newer one. Install that version again, or start \
         this one afresh after nodelb cleanup (of either version): then service addresses do not work until it has started",
        directory.display(), env!("CARGO_PKG_VERSION")
    )]
    NewerLayout {
        /// The layout of the maps.
        found: u32,
        /// The layout of this version.
        known: u32,
        /// The pin directory.
        directory: PathBuf,
    },
    /// The maps are of an older version of nodelb that this one cannot read.
    #[error(
        "{} holds maps of layout {found}, which an older nodelb made; this one ({}) has layout {known}, cannot read those, \
         and leaves everything as it is: connections go on by the last state of the older one. Install a version in between \
         first, or start this one afresh after nodelb cleanup: then service addresses do not work until it has started",
        directory.display(), env!("CARGO_PKG_VERSION")
    )]
    UnknownLayout {
        /// The layout of the maps.
        found: u32,
        /// The layout of this version.
        known: u32,
        /// The pin directory.
        directory: PathBuf,
    },
    /// The limits were lowered below what is in use.
    #[error(
        "map {map} has more entries in use than the {limit} it would have room for: raise datapath.max-{map}; the maps \
         and all connections stay as they are"
    )]
    TooSmall {
        /// Which map.
        map: &'static str,
        /// The configured limit.
        limit: u32,
    },
    /// Anything else.
    #[error("{action} {}: {reason}", object.display())]
    Failed {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        object: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Turns an error into [`OpenError::Failed`].
pub(crate) fn failed<E: Display>(action: &'static str, object: &Path) -> impl FnOnce(E) -> OpenError {
    move |error| OpenError::Failed { action, object: object.to_path_buf(), reason: error.to_string() }
}

fn named(name: &Option<String>) -> String {
    name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default()
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

//! The reasons why the kernel side cannot start. Each variant needs a different action by the administrator.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::ErrorKind;
use nodelb_core::datapath::{MapError, size_key};

/// The error of [`crate::KernelDatapath::open`] or [`crate::cleanup`]. Traffic is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "BPF programs cannot be loaded: {} missing; start nodelb as root or give its unit \
         AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON",
        are(.missing)
    )]
    NotPermitted { missing: Vec<&'static str> },
    #[error(
        "the kernel refuses bpf(2) ({reason}) although the process has the capabilities: a seccomp filter \
         (SystemCallFilter=bpf allows it), a container runtime or kernel lockdown forbids it"
    )]
    Forbidden { reason: String },
    #[error("{} is not on a bpffs: mount -t bpf -o mode=0700 bpf /sys/fs/bpf", directory.display())]
    NoBpffs { directory: PathBuf },
    #[error(
        "{} belongs to uid {owner} and has mode {mode:04o}: who may change it decides what connections reach, so nodelb does \
         not use it. Find out who made it, remove it with rm -r, and start nodelb again; mount -o remount,mode=0700 \
         /sys/fs/bpf lets root alone create directories there",
        directory.display()
    )]
    NotOwn { directory: PathBuf, owner: u32, mode: u32 },
    #[error(
        "{} is the mount point of a bpffs, which other programs use too: set datapath.pin-directory to a directory in it, \
         such as {}",
        directory.display(), directory.join("nodelb").display()
    )]
    WholeBpffs { directory: PathBuf },
    #[error("no cgroup v2 is mounted: mount -t cgroup2 none /sys/fs/cgroup (or at another path, next to v1)")]
    NoCgroup2,
    #[error("{} is not a cgroup v2 directory: {reason}", path.display())]
    BadCgroup { path: PathBuf, reason: String },
    #[error(
        "program {program}{} is attached to {} at {hook} without BPF_F_ALLOW_MULTI: the kernel attaches no other program to \
         this hook {}. Find its owner with bpftool prog show id {program}; have it attached with BPF_F_ALLOW_MULTI, or remove \
         it with bpftool cgroup detach {} {hook} id {program}. nodelb has attached and pinned nothing",
        named(.name), cgroup.display(), if *is_here { "there" } else { "there or in a cgroup below" }, cgroup.display()
    )]
    Exclusive {
        hook: &'static str,
        /// The cgroup that the program is attached to: nodelb's, or one above it.
        cgroup: PathBuf,
        /// Whether it is nodelb's cgroup.
        is_here: bool,
        program: u32,
        /// Name of the program, if this process may look it up.
        name: Option<String>,
    },
    #[error(
        "{hook} of {} has {} programs, and the kernel allows no more at a hook of a cgroup: nodelb's program cannot be \
         attached there. They are {}. Find their owner with bpftool cgroup show {}: software that attaches a program at each \
         start and never detaches it fills the hook. Remove what is not needed with bpftool cgroup detach {} {hook} id \
         PROGRAM, or, if a link holds it, with bpftool link detach id LINK",
        cgroup.display(), programs.len(), by_name(programs), cgroup.display(), cgroup.display()
    )]
    Full {
        hook: &'static str,
        cgroup: PathBuf,
        /// The ids of the programs, with their names if this process may look them up.
        programs: Vec<(u32, Option<String>)>,
    },
    #[error(
        "the BPF JIT is off, and the kernel accepts nodelb's programs only with it ({reason}): set \
         net.core.bpf_jit_enable to 1 with sysctl(8), and check which file in /etc/sysctl.d sets it to 0; a kernel without \
         this setting lacks CONFIG_BPF_JIT"
    )]
    NoJit { reason: String },
    #[error(
        "links cannot be looked up by id ({reason}): this requires CAP_SYS_ADMIN; run nodelb cleanup --hidden as root"
    )]
    NoLookup { reason: String },
    /// The kernel is too old, or lacks a configuration option.
    #[error("this kernel lacks {what}: nodelb needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF")]
    Lacks {
        /// The missing feature, and the first kernel with it.
        what: String,
    },
    #[error("the kernel rejects nodelb's BPF programs ({reason}); the end of its log:\n{log}")]
    Refused {
        reason: String,
        log: String,
        /// Whether a later attempt may succeed, for example when memory or file descriptors were short.
        may_pass: bool,
    },
    #[error(
        "the kernel does not create the map {map} ({reason}): give nodelb more memory{} (\"Memory\" in docs/operations.md)",
        lower(map)
    )]
    NoMap { map: String, reason: String },
    #[error("another nodelb is running and uses {}; stop it first", directory.display())]
    Busy { directory: PathBuf },
    #[error(
        "{} contains maps of layout {found} from a newer nodelb; this version ({}) supports layout {known} and changes \
         nothing: connections keep working with the last state of the newer version. Install that version again, or run \
         nodelb cleanup (of either version) and start this one: service addresses do not work until it has started",
        directory.display(), env!("CARGO_PKG_VERSION")
    )]
    NewerLayout { found: u32, known: u32, directory: PathBuf },
    #[error(
        "{} contains maps of layout {found} from an older nodelb; this version ({}) uses layout {known}, cannot read them, \
         and changes nothing: connections keep working with the last state of the older version. Install a version in between \
         first, or run nodelb cleanup and start this one: service addresses do not work until it has started",
        directory.display(), env!("CARGO_PKG_VERSION")
    )]
    UnknownLayout { found: u32, known: u32, directory: PathBuf },
    #[error(
        "map {map} has more than {limit} entries in use: raise {key}; the maps and all connections are unchanged",
        key = size_key(map)
    )]
    TooSmall { map: &'static str, limit: u32 },
    #[error("{action} {}: {reason}", object.display())]
    Failed { action: &'static str, object: PathBuf, reason: String },
}

pub(crate) fn failed<E: Display>(action: &'static str, object: &Path) -> impl FnOnce(E) -> OpenError {
    move |error| OpenError::Failed { action, object: object.to_path_buf(), reason: error.to_string() }
}

fn named(name: &Option<String>) -> String {
    name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default()
}

/// The number of ids that an error lists for a name.
const IDS: usize = 4;

/// The programs by their names, the most frequent name first.
fn by_name(programs: &[(u32, Option<String>)]) -> String {
    let mut names = BTreeMap::<_, Vec<String>>::new();
    for (id, name) in programs {
        names.entry(name).or_default().push(id.to_string());
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, ids)| std::cmp::Reverse(ids.len()));
    let of_name = |(name, ids): (&Option<String>, Vec<String>)| {
        let name = name.as_deref().unwrap_or("of a name that only root can see");
        let more = ids.len().saturating_sub(IDS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let noun = if ids.len() == 1 { "id" } else { "ids" };
        format!("{} {name} ({noun} {}{more})", ids.len(), ids[..ids.len().min(IDS)].join(", "))
    };
    names.into_iter().map(of_name).collect::<Vec<_>>().join("; ")
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

/// The key that makes the map smaller, if there is one, as the end of a sentence.
fn lower(map: &str) -> String {
    let key = match map {
        "half_open" => "packets.max-handshakes".into(),
        "connections" | "fragments" => format!("packets.max-{map}"),
        "counters" | "outside_counters" => size_key("services"),
        "frontends" | "services" | "slots" | "affinity" | "outside" | "source_ranges" => size_key(map),
        _ => return String::new(),
    };
    format!(", or lower {key}")
}

/// Makes the error for a map that cannot be read or written.
pub(crate) fn map_failed(map: &'static str) -> impl Fn(io::Error) -> MapError {
    move |error| MapError::Failed { map, reason: error.to_string() }
}

/// Converts the error and keeps the system's error number, which callers check: libbpf-rs exposes only the kind.
pub(crate) fn into_io(error: libbpf_rs::Error) -> io::Error {
    let number = match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EPERM,
        ErrorKind::TooBig => libc::E2BIG,
        ErrorKind::Unsupported => libc::ENOSYS,
        _ => return io::Error::other(error),
    };
    io::Error::from_raw_os_error(number)
}

#[cfg(test)]
#[path = "tests/error.rs"]
mod tests;

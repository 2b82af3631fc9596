//! The hooks: which programs are attached where, and keeping them attached. A link is pinned, so that it outlives the
//! process, and changes its program in one step, so that there is no moment without one.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libbpf_rs::Program;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_sys::bpf_attach_type;

use crate::error::{OpenError, failed};
use crate::pins::Pins;
use crate::sys;

/// A place in the kernel and the program of `bpf/sock.bpf.c` that runs there; they have the same name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static str,
    attach_type: bpf_attach_type,
}

/// In the order in which they are attached: what turns addresses back comes before what turns them, so that a socket
/// translated in between sees the service's address.
pub(crate) const HOOKS: [Hook; 10] = [
    Hook { name: "recvmsg4", attach_type: libbpf_sys::BPF_CGROUP_UDP4_RECVMSG },
    Hook { name: "recvmsg6", attach_type: libbpf_sys::BPF_CGROUP_UDP6_RECVMSG },
    Hook { name: "getpeername4", attach_type: libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME },
    Hook { name: "getpeername6", attach_type: libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME },
    Hook { name: "connect4", attach_type: libbpf_sys::BPF_CGROUP_INET4_CONNECT },
    Hook { name: "connect6", attach_type: libbpf_sys::BPF_CGROUP_INET6_CONNECT },
    Hook { name: "sendmsg4", attach_type: libbpf_sys::BPF_CGROUP_UDP4_SENDMSG },
    Hook { name: "sendmsg6", attach_type: libbpf_sys::BPF_CGROUP_UDP6_SENDMSG },
    Hook { name: "post_bind4", attach_type: libbpf_sys::BPF_CGROUP_INET4_POST_BIND },
    Hook { name: "post_bind6", attach_type: libbpf_sys::BPF_CGROUP_INET6_POST_BIND },
];

/// What became of a hook's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It was pinned and attached to the right cgroup; it runs the new program now.
    Updated,
    /// There was none.
    Created,
    /// The pinned one was attached elsewhere, to a cgroup that is gone, or was no link; a new one took its place.
    Replaced,
}

/// What is wrong with a hook's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFault {
    /// Which hook.
    pub hook: &'static str,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hook {}: {}", self.hook, self.reason)
    }
}

/// The loaded programs, in the order of [`HOOKS`], and the cgroup they belong to.
#[derive(Debug)]
pub(crate) struct Attachment {
    programs: Vec<OwnedFd>,
    cgroup: PathBuf,
}

impl Attachment {
    pub(crate) fn new(programs: Vec<OwnedFd>, cgroup: PathBuf) -> Self {
        debug_assert_eq!(programs.len(), HOOKS.len(), "a program for each hook");
        Self { programs, cgroup }
    }

    /// Sees to it that every hook runs this attachment's program.
    pub(crate) fn attach(&self, pins: &Pins) -> Result<Vec<(&'static str, LinkState)>, OpenError> {
        let cgroup = Cgroup::open(&self.cgroup)?;
        let each = HOOKS.iter().zip(&self.programs);
        each.map(|(hook, program)| {
            let state = attach(*hook, program.as_fd(), &cgroup, pins);
            Ok((hook.name, state.map_err(failed("attaching", &pins.link(hook.name)))?))
        })
        .collect()
    }

    /// What is wrong with the links; nothing, usually. Costs a few system calls per hook.
    pub(crate) fn faults(&self, pins: &Path) -> Vec<LinkFault> {
        let cgroup = match Cgroup::open(&self.cgroup) {
            Ok(cgroup) => cgroup,
            Err(error) => {
                return HOOKS.iter().map(|hook| LinkFault { hook: hook.name, reason: error.to_string() }).collect();
            }
        };
        let each = HOOKS.iter().zip(&self.programs);
        each.filter_map(|(hook, program)| {
            let reason = fault(*hook, program.as_fd(), &cgroup, &pins.join(hook.name))?;
            Some(LinkFault { hook: hook.name, reason })
        })
        .collect()
    }
}

/// Asks after the hooks, any time and from any thread, without a word to the datapath's owner.
#[derive(Clone, Debug)]
pub struct Links {
    pub(crate) attachment: Arc<Attachment>,
    /// Where the links are pinned.
    pub(crate) directory: PathBuf,
}

impl Links {
    /// What is wrong with the links; nothing, usually. Costs a few system calls per hook.
    pub fn faults(&self) -> Vec<LinkFault> {
        self.attachment.faults(&self.directory)
    }
}

/// An open cgroup and its id, which is its inode number.
struct Cgroup {
    directory: File,
    id: u64,
}

impl Cgroup {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let directory = File::open(path).map_err(failed("opening", path))?;
        let id = directory.metadata().map_err(failed("reading", path))?.ino();
        Ok(Self { directory, id })
    }
}

/// Whether a link of a hook on this cgroup is pinned in this directory.
pub(crate) fn has_link_on(pins: &Path, cgroup: &Path) -> bool {
    let Ok(cgroup) = Cgroup::open(cgroup) else { return false };
    HOOKS.iter().any(|hook| {
        let link = sys::open_pinned(&pins.join(hook.name));
        link.is_ok_and(|link| target(link.as_fd()) == Some((cgroup.id, hook.attach_type)))
    })
}

fn attach(hook: Hook, program: BorrowedFd<'_>, cgroup: &Cgroup, pins: &Pins) -> io::Result<LinkState> {
    let pinned = match sys::open_pinned(&pins.link(hook.name)) {
        Ok(link) => Some(link),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(link) = &pinned
        && target(link.as_fd()) == Some((cgroup.id, hook.attach_type))
        && sys::link_update(link.as_fd(), program).is_ok()
    {
        pins.crash().pass();
        return Ok(LinkState::Updated);
    }
    let link = sys::link_create(program, cgroup.directory.as_fd(), hook.attach_type)?;
    pins.replace_link(hook.name, |path| sys::pin(link.as_fd(), path))?;
    Ok(if pinned.is_some() { LinkState::Replaced } else { LinkState::Created })
}

fn fault(hook: Hook, program: BorrowedFd<'_>, cgroup: &Cgroup, pin: &Path) -> Option<String> {
    let link = match sys::open_pinned(pin) {
        Ok(link) => link,
        Err(error) => return Some(format!("its pin {} cannot be opened: {error}", pin.display())),
    };
    match target(link.as_fd()) {
        Some((id, attach_type)) if (id, attach_type) == (cgroup.id, hook.attach_type) => {}
        Some((_, attach_type)) if attach_type == hook.attach_type => {
            return Some("its link is attached to another cgroup, or to one that is gone".into());
        }
        _ => return Some(format!("{} is none of its links", pin.display())),
    }
    let runs = LinkInfo::from_fd(link.as_fd()).map(|info| info.prog_id);
    let ours = Program::id_from_fd(program);
    match (runs, ours) {
        (Ok(runs), Ok(ours)) if runs == ours => None,
        (Err(error), _) => Some(format!("its link cannot be read: {error}")),
        (_, Err(error)) => Some(format!("its program cannot be read: {error}")),
        _ => Some("it runs another program".into()),
    }
}

/// The id of the cgroup the link is attached to, 0 if that is gone, and the hook; `None` if it is no such link.
fn target(link: BorrowedFd<'_>) -> Option<(u64, bpf_attach_type)> {
    match LinkInfo::from_fd(link).ok()?.info {
        LinkTypeInfo::Cgroup(info) => Some((info.cgroup_id, info.attach_type as bpf_attach_type)),
        _ => None,
    }
}

//! The hooks: which programs are attached where, and keeping them attached. A link is pinned, so that it outlives the
//! process, and changes its program in one step, so that there is no moment without one. It is held open as well, so that
//! what is attached stays attached when its pin is removed.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libbpf_rs::Program;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo, ProgInfoIter};
use libbpf_sys::bpf_attach_type;

use crate::elsewhere;
use crate::error::{OpenError, failed};
use crate::pins::{Pins, remove_file};
use crate::probe;
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
    Hook { name: "bind4", attach_type: libbpf_sys::BPF_CGROUP_INET4_BIND },
    Hook { name: "bind6", attach_type: libbpf_sys::BPF_CGROUP_INET6_BIND },
];

/// Hooks at which only an older nodelb has programs. Their pins hold the links, so removing the pins detaches them.
const RETIRED: [Hook; 2] = [
    Hook { name: "post_bind4", attach_type: libbpf_sys::BPF_CGROUP_INET4_POST_BIND },
    Hook { name: "post_bind6", attach_type: libbpf_sys::BPF_CGROUP_INET6_POST_BIND },
];

/// Every hook that any nodelb has a program at, in the order in which they are attached; they are detached in reverse.
pub(crate) fn all_hooks() -> impl DoubleEndedIterator<Item = &'static Hook> {
    HOOKS.iter().chain(&RETIRED)
}

/// What became of a hook's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It was pinned and attached to the right cgroup; it runs the new program now.
    Updated,
    /// There was none.
    Created,
    /// The pinned one was attached elsewhere, to a cgroup that is gone, or was no link; a new one took its place.
    Replaced,
    /// It was attached all the time, and its pin was gone; it is pinned again.
    Pinned,
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

    /// Sees to it that every hook runs this attachment's program, and keeps each link open.
    pub(crate) fn attach(&self, pins: &Pins, held: &mut Held) -> Result<Vec<(&'static str, LinkState)>, OpenError> {
        let cgroup = Cgroup::open(&self.cgroup)?;
        let each = HOOKS.iter().zip(&self.programs).zip(&mut held.0);
        let states = each.map(|((hook, program), held)| {
            let state = attach(*hook, program.as_fd(), &cgroup, pins, held);
            Ok((hook.name, state.map_err(|error| self.refused(&error, *hook, pins))?))
        });
        let states = states.collect::<Result<Vec<_>, OpenError>>()?;
        for hook in RETIRED {
            let pin = pins.link(hook.name);
            remove_file(&pin, pins.crash()).map_err(failed("removing", &pin))?;
        }
        Ok(states)
    }

    /// Why a hook's link could not be made.
    fn refused(&self, error: &io::Error, hook: Hook, pins: &Pins) -> OpenError {
        let exclusive = || exclusive_at(&self.cgroup, hook);
        let is_refused = error.raw_os_error() == Some(libc::EPERM);
        is_refused.then(exclusive).flatten().unwrap_or_else(|| failed("attaching", &pins.link(hook.name))(error))
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

/// The links, open, in the order of [`HOOKS`]. What is attached stays attached for as long as its link is open or pinned.
#[derive(Debug, Default)]
pub(crate) struct Held([Option<OwnedFd>; HOOKS.len()]);

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

    /// Other pin directories whose programs are attached to the same cgroup. Looks through every BPF file system that this
    /// process can reach.
    pub fn elsewhere(&self) -> Vec<PathBuf> {
        let mountinfo = probe::mountinfo().unwrap_or_default();
        // Of `nodelb/v1/links` the first part.
        let own = self.directory.ancestors().nth(2).unwrap_or(&self.directory);
        elsewhere::attached(own, &self.attachment.cgroup, &mountinfo)
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

/// The ids of the links pinned in this directory under the hooks' names.
pub(crate) fn links_in(pins: &Path) -> Vec<u32> {
    let open = all_hooks().filter_map(|hook| sys::open_pinned(&pins.join(hook.name)).ok());
    open.filter_map(|link| LinkInfo::from_fd(link.as_fd()).ok()).map(|info| info.id).collect()
}

/// The hook that the link is attached to, if that is one of nodelb's on this cgroup.
pub(crate) fn hook_on(link: BorrowedFd<'_>, cgroup: &Path) -> Option<&'static str> {
    let cgroup = Cgroup::open(cgroup).ok()?;
    let attached = target(link)?;
    all_hooks().find(|hook| attached == (cgroup.id, hook.attach_type)).map(|hook| hook.name)
}

/// What has a hook of nodelb's to itself, if anything has: then nodelb cannot be attached there.
pub(crate) fn exclusive(cgroup: &Path) -> Option<OpenError> {
    HOOKS.iter().find_map(|hook| exclusive_at(cgroup, *hook))
}

/// A program on the cgroup that shares with none, or one on a cgroup above that lets none be attached below.
fn exclusive_at(cgroup: &Path, hook: Hook) -> Option<OpenError> {
    for at in cgroup.ancestors() {
        // Above the root of the hierarchy nothing can be asked.
        let directory = File::open(at).ok()?;
        let (flags, programs) = sys::attached(directory.as_fd(), hook.attach_type).ok()?;
        let is_here = at == cgroup;
        let is_shared = flags & libbpf_sys::BPF_F_ALLOW_MULTI != 0;
        let is_replaceable = !is_here && flags & libbpf_sys::BPF_F_ALLOW_OVERRIDE != 0;
        if let Some(&program) = programs.first()
            && !is_shared
            && !is_replaceable
        {
            // Names take CAP_SYS_ADMIN.
            let name = ProgInfoIter::default().find(|info| info.id == program);
            let name = name.map(|info| info.name.to_string_lossy().into_owned()).filter(|name| !name.is_empty());
            return Some(OpenError::Exclusive { hook: hook.name, cgroup: at.into(), is_here, program, name });
        }
    }
    None
}

fn attach(
    hook: Hook,
    program: BorrowedFd<'_>,
    cgroup: &Cgroup,
    pins: &Pins,
    held: &mut Option<OwnedFd>,
) -> io::Result<LinkState> {
    let pinned = match sys::open_pinned(&pins.link(hook.name)) {
        Ok(link) => Some(link),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let was_pinned = pinned.is_some();
    let runs = |link: &OwnedFd| {
        let is_right = target(link.as_fd()) == Some((cgroup.id, hook.attach_type));
        is_right && sys::link_update(link.as_fd(), program).is_ok()
    };
    if let Some(link) = pinned.filter(runs) {
        pins.crash().pass();
        *held = Some(link);
        return Ok(LinkState::Updated);
    }
    let (link, state) = match held.take().filter(runs) {
        Some(link) => (link, LinkState::Pinned),
        None => {
            let link = sys::link_create(program, cgroup.directory.as_fd(), hook.attach_type)?;
            (link, if was_pinned { LinkState::Replaced } else { LinkState::Created })
        }
    };
    // Held also if it cannot be pinned: it is attached for as long as this process lives.
    let link = held.insert(link);
    pins.replace_link(hook.name, |path| sys::pin(link.as_fd(), path))?;
    Ok(state)
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
